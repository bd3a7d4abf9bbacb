"""One list of problems for many machines: shards, a dask cluster, and the commands that carry wisdom between them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli.main import FAILED, OK, USAGE, main
from autotune.machine.device import fingerprint
from autotune.store.rows import RowLimits
from autotune.store.store import Row, Store
from autotune.tuning import fleet
from autotune.wisdom.document import read
from autotune.workload import Problem
from support.tuner.fake import workload

pytestmark = pytest.mark.usefixtures("fake_workload")


def problems(count: int) -> list[Problem]:
    return [Problem(f"good:{n} threads=1", f"good:{n}", n, 1e6, "net") for n in range(1, count + 1)]


def weight(part: list[Problem]) -> float:
    return sum(problem.count * problem.flops for problem in part)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_are_everything_once_and_of_equal_weight(count: int) -> None:
    asked = problems(40) + problems(5)
    shards = [fleet.shard(workload, asked, index, count) for index in range(1, count + 1)]
    assert sorted(p.key for part in shards for p in part) == sorted(p.key for p in asked)
    keys = [{problem.key for problem in part} for part in shards]
    assert sum(map(len, keys)) == 40
    weights = list(map(weight, shards))
    assert max(weights) < 1.1 * min(weights)
    assert fleet.shard(workload, asked[::-1], 1, count)[::-1] == shards[0]


def test_problems_that_differ_in_threads_stay_together() -> None:
    asked = [
        Problem(workload.with_threads(p.key, n), p.label, p.count, p.flops, p.network, n)
        for p in problems(6)
        for n in (1, 2)
    ]
    for index in (1, 2):
        part = fleet.shard(workload, asked, index, 2)
        assert {p.key for p in part if p.threads == 1} == {workload.with_threads(p.key, 1) for p in part}


def test_shards_merge_into_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.txt").write_text("".join(f"good:{n}\n" for n in range(1, 7)))
    for index in (1, 2):
        command = ["warmup", "net.txt", "--threads", "1", "--store", f"{index}.sqlite", "--shard", f"{index}/2"]
        assert main(command) == OK
    assert main(["export", "1.json", "--store", "1.sqlite"]) == OK
    assert main(["merge", "1.json", "2.sqlite", "--output", "all.json"]) == OK
    assert len(read(Path("all.json")).rows) == 6
    capsys.readouterr()
    assert main(["import", "all.json", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert told["trusted"] == read(Path("all.json")).count() and told["seeds"] == told["stale"] == 0

    assert main(["warmup", "net.txt", "--threads", "1", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["tuned"], len(told["resumed"])) == ([], 6)
    assert main(["diff", "all.json", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == []
    assert main(["diff", "1.json", "2.sqlite"]) == OK
    out, err = capsys.readouterr()
    assert "good:6" in out and "6 problems have different best candidates" in err


def test_tables_and_pruning(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    assert main(["warmup", "good:1", "--threads", "1"]) == OK
    assert main(["export", "--device-table", "tables"]) == OK
    key = fingerprint().key
    table = read(Path("tables") / f"{key}.json")
    assert {row.candidate for row in table} == {"model", "fast", "slow"}  # each a solver of its own
    assert main(["export", "--device-table"]) == USAGE  # this workload ships none
    capsys.readouterr()
    assert main(["export"]) == OK
    assert json.loads(capsys.readouterr().out)["format"] == "autotune-wisdom"
    assert main(["export", "--device", "0123456789abcdef"]) == FAILED
    assert main(["prune", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["dropped"] == {key: 0}
    monkeypatch.setenv("FAKE_SOURCES", "sources-2")
    assert main(["prune", "--others", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["dropped"] == {key: 0}  # they serve until the problem is tuned again
    assert main(["export", "--device-table", "tables"]) == OK
    assert read(Path("tables") / f"{key}.json").count() == 0
    assert main(["warmup", "good:1", "--threads", "1"]) == OK
    capsys.readouterr()
    assert main(["prune", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["dropped"] == {key: 3}


def test_what_is_refused_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.json").write_text("{}")
    for command in (["import", "bad.json"], ["merge", "bad.json"], ["diff", "bad.json"], ["import", "missing.json"]):
        assert main(command) == FAILED
        assert "Traceback" not in capsys.readouterr().err
    Path("bad.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    assert main(["import", "bad.sqlite"]) == FAILED
    assert "refused" in capsys.readouterr().err
    with Store("hostile.sqlite") as hostile:
        hostile.register(fingerprint())
        row = Row(fingerprint().key, "p", "\x1b[2Jdirect", "sources-1", "ok", median=1e-3, score=1e-3)
        hostile.put([row])
    assert main(["import", "hostile.sqlite"]) == FAILED
    assert "printable" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["warmup", "good:1", "--shard", "3/2"])
    assert Store().devices() == {}


# -- a cluster of two processes


@pytest.fixture
def cluster(fake_workload: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))

    def start(*variables: dict[str, str]):
        workers = {
            number: {"cls": distributed.Nanny, "options": {"nthreads": 2, "env": each}}
            for number, each in enumerate(variables)
        }
        scheduler = {"cls": distributed.Scheduler, "options": {"dashboard_address": None, "port": 0}}
        made.append(distributed.SpecCluster(workers, scheduler, silence_logs=50))
        return made[-1]

    made: list = []
    yield start
    for each in made:
        each.close(timeout=20)


def prepared(tmp_path: Path) -> list[str]:
    """The problems that were tuned, each as often as it was."""
    lines = (tmp_path / "log").read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith("prepare") and line.endswith(" model")]


def test_a_cluster_tunes_each_problem_once(cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = cluster({}, {})
    Path("net.txt").write_text("".join(f"good:{n}\n" for n in range(1, 7)) + "none:1\n")
    command = ["warmup", "net.txt", "--threads", "1", "--dask", running.scheduler_address, "--json"]
    assert main(command) == OK
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert {key: len(tasks) for key, tasks in told["tuned"].items()} == {fingerprint().key: 7}
    assert len({line.rpartition(" by ")[2] for line in err.splitlines() if " by " in line}) == 2
    with Store() as store:
        assert len(store.finished(fingerprint().key)) == 7
        assert store.best(fingerprint().key, store.problems(fingerprint().key)[0].problem, RowLimits(workload.sources))
    assert main(["warmup", "net.txt", "--threads", "1", "--json"]) == OK
    assert len(json.loads(capsys.readouterr().out)["resumed"]) == 7
    tried = [problem for problem in prepared(tmp_path) if problem.startswith("good")]
    assert len(set(tried)) == 6


def test_each_kind_of_device_has_its_results(cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = cluster({"NUMBA_CPU_NAME": "generic"}, {})
    command = ["warmup", "good:1", "good:2", "--threads", "1", "--dask", running.scheduler_address, "--json"]
    assert main(command) == OK
    told = json.loads(capsys.readouterr().out)
    assert sorted(map(len, told["tuned"].values())) == [2, 2]
    with Store() as store:
        assert {each["cpu_name"] for each in store.devices().values()} >= {"generic", fingerprint().cpu_name}
    assert main(["export", "--all", "all.json"]) == OK
    assert len(read(Path("all.json")).devices) == 2


def test_a_dead_worker_costs_its_task_only(cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The task that kills is tried twice; the others are tuned by who is left, or said not to be."""
    running = cluster({}, {})
    command = ["warmup", "fatal:1", "good:2", "--threads", "1", "--dask", running.scheduler_address, "--json"]
    assert main(command) == FAILED
    told = json.loads(capsys.readouterr().out)
    assert any("fatal" in name for name in told["failed"])
    tuned = [name for tasks in told["tuned"].values() for name in tasks]
    assert len(tuned) + len(told["failed"]) == 2


def test_no_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(fleet, "CONNECT_SECONDS", 0.5)
    assert main(["warmup", "good:1", "--threads", "1", "--dask", "tcp://127.0.0.1:9"]) == FAILED
    assert "autotune: " in capsys.readouterr().err
