"""The command line, as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli import warmup as cli_warmup
from autotune.cli.main import main
from autotune.cli.options import FAILED, INTERRUPTED, OK, USAGE
from autotune.machine.device import fingerprint
from autotune.report import doctor
from autotune.report.table_rows import ProblemRow
from autotune.store.database import StoreWarning
from autotune.store.store import Store, Use
from autotune.workload import Reading
from baselib.interpreter import python
from support.running.processes import run
from support.tuner import fake
from support.tuner.fake import workload

pytestmark = pytest.mark.usefixtures("fake_workload")


def test_the_whole_way(tmp_path: Path) -> None:
    source = tmp_path / "net.txt"
    source.write_text("good:3\ntie:2\n")
    done = run("-m", "autotune", "warmup", str(source), "--threads", "1", "--layouts", "auto")
    assert re.search(r"good:3: (9|10)\.\d GFLOP/s", done.stderr)
    assert "2 tuned" in done.stderr
    assert "net, 1 thread, auto,auto" in done.stdout
    assert "fast" in done.stdout and "total: 5 executions" in done.stdout
    assert (tmp_path / "cache" / "autotune.sqlite").exists()

    again = run("-m", "autotune", "warmup", str(source), "--threads", "1", "--layouts", "auto,auto", "--json")
    told = json.loads(again.stdout)
    assert (told["tuned"], len(told["resumed"])) == ([], 2)
    assert [each["algorithm"] for each in told["problems"]] == ["fast", "model"]
    assert told["problems"][0]["gflops"] == pytest.approx(10.0, rel=0.05)

    doctor = run("-m", "autotune", "doctor", "--measure", "--json")
    assert "1 thread: FMA peak, float32: 15.0 GFLOP/s" in doctor.stderr
    findings = json.loads(doctor.stdout)
    assert findings["roofs"]["1"]["float32_gflops"] == 15.0
    assert set(findings["roofs"]) == {"1", str(findings["device"]["cores"])}
    assert findings["store"]["health"] == "ok"
    assert findings["workload"]["threading_layer"] == "none"
    assert findings["device"]["cores"] >= 1

    table = json.loads(run("-m", "autotune", "table", "--format", "json").stdout)
    (device,) = table["devices"]
    (network,) = device["networks"]
    assert network["total"]["layers"] == 5
    assert network["total"]["time_ms"] == pytest.approx(0.5, rel=0.05)
    assert network["total"]["roof_share"] == pytest.approx(2 / 3, rel=0.05)
    assert network["problems"][0]["roof_share"] == pytest.approx(2 / 3, rel=0.05)
    assert network["problems"][0]["bound_by"] == "compute"
    assert network["problems"][0]["total_ms"] == pytest.approx(0.3, rel=0.05)
    assert device["device"]["key"] == findings["device"]["key"]

    show = json.loads(run("-m", "autotune", "show", "--json").stdout)
    assert show["devices"][0]["finished"] == 2
    assert show["bytes"] > 0 and show["health"] == "ok"

    # By its label in the table, as the user knows it.
    explained = run("-m", "autotune", "explain", "good:3")
    for word in ("fast", "model", "slow", "other", "does not apply", "±"):
        assert word in explained.stdout


def test_the_first_warmup_measures_the_roofs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, altered: Callable[..., None]
) -> None:
    log, probed = tmp_path / "log", []
    altered(log=str(log))
    inner = fake.Fake.probe

    def probe(self: fake.Fake, threads: int):
        assert not log.exists()  # nothing has been compiled yet
        probed.append(threads)
        return inner(self, threads)

    altered(probe=probe)
    monkeypatch.setattr(doctor, "allowed_cores", lambda: 2)
    monkeypatch.setattr("autotune.cli.options.allowed_cores", lambda: 2)
    assert main(["warmup", "good:2", "--threads", "1", "--no-roofs"]) == OK
    assert probed == [] and "roofs not measured" in capsys.readouterr().out
    log.unlink()
    assert main(["warmup", "good:2", "--threads", "1"]) == OK  # tuned before
    told = capsys.readouterr()
    assert "measuring the roofs of this device (1 thread)" in told.err and "% of the roofs" in told.out
    assert main(["warmup", "good:2", "--threads", "2"]) == OK
    assert main(["warmup", "good:3", "--threads", "2"]) == OK
    assert main(["warmup", "good:3", "--threads", "3"]) == OK  # more than there are cores
    assert probed == [1, 2]
    (fields,) = Store().devices().values()
    assert set(fields["roofs"]) == {"1", "2"}


def test_roofs_that_lack_the_peak_of_a_data_type_are_measured_again(
    capsys: pytest.CaptureFixture[str], altered: Callable[..., None]
) -> None:
    assert main(["warmup", "good:2", "--threads", "1"]) == OK
    capsys.readouterr()
    inner = fake.Fake.probe

    def probe(self: fake.Fake, threads: int):
        yield "int8_gflops", 60.0
        yield from inner(self, threads)

    altered(dtypes=frozenset({"float32", "int8"}), probe=probe)
    assert main(["table"]) == OK and "% of the roofs" in capsys.readouterr().out  # the older ones can be read
    for told in ("measuring the roofs of this device (1 thread)", ""):
        assert main(["warmup", "good:3", "--threads", "1"]) == OK
        assert (told in capsys.readouterr().err) if told else "measuring" not in capsys.readouterr().err
    assert main(["doctor"]) == OK and "peak, int8" in capsys.readouterr().out


def test_a_warmup_goes_on_without_roofs(capsys: pytest.CaptureFixture[str], altered: Callable[..., None]) -> None:
    def probe(self: fake.Fake, threads: int):
        raise RuntimeError("no clock")

    altered(probe=probe)
    assert main(["warmup", "good:2", "--threads", "1"]) == OK
    told = capsys.readouterr()
    assert "the roofs cannot be measured: RuntimeError: no clock" in told.err and "roofs not measured" in told.out


def test_rows_say_what_a_problem_is(capsys: pytest.CaptureFixture[str], altered: Callable[..., None]) -> None:
    altered(summary=lambda self, key: "3→64 7x7/2 @224x224")
    use = Use("net", 1, "auto", "conv1", "good:1 threads=1", 1, 1e6)
    assert ProblemRow(use, None, summary=workload.summary(use.problem)).title == "conv1 · 3→64 7x7/2 @224x224"
    assert ProblemRow(use, None).title == "conv1"
    assert (
        ProblemRow(replace(use, label="good:1"), None, summary="3→64").title == "3→64"
    )  # a name that only repeats the key
    assert main(["warmup", "good:2", "--threads", "1"]) == OK
    for arguments in (["table"], ["table", "--format", "html"], ["explain", "good:2"]):
        capsys.readouterr()
        assert main(arguments) == OK
        assert "3→64 7x7/2 @224x224" in capsys.readouterr().out


def test_formats_and_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "good:2", "classes:1", "--threads", "1", "--no-roofs"]) == OK
    capsys.readouterr()

    def table(*options: str) -> str:
        assert main(["table", *options]) == OK
        return capsys.readouterr().out

    shown = table()
    assert "| good:2    |       2 |" in shown and "roofs not measured" in shown
    assert main(["doctor"]) == OK
    assert "not measured" in capsys.readouterr().out
    assert main(["doctor", "--measure"]) == OK
    capsys.readouterr()
    assert main(["doctor"]) == OK
    assert re.search(r"roofs measured +20\d\d-\d\d-\d\d \d\d:\d\d \(1 thread\)", capsys.readouterr().out)
    shown = table()
    assert re.search(r"GFLOP/s, 4\d% of the roofs|GFLOP/s, 50% of the roofs", shown)
    assert "- bound by compute: Do less arithmetic" in shown and "- bound by overhead: Starting threads" in shown
    assert table("--device", "all") == table("--device", fingerprint().key[:6]) == table()
    assert "good:2" in table("--format", "plain")
    records = list(csv.DictReader(io.StringIO(table("--format", "csv"))))
    assert [record["algorithm"] for record in records] == ["fast", "good"]
    assert float(records[0]["time_us"]) == pytest.approx(100, rel=0.05)
    cells = re.findall(r"<td[^>]*>([^<]+)", table("--format", "html"))
    assert {"fast", "4 KiB"} <= {cell.strip() for cell in cells}
    output = tmp_path / "table.md"
    output.write_text("old")
    assert table("--output", str(output)) == ""
    assert "| good:2" in output.read_text()
    assert main(["table", "--output", str(tmp_path / "missing" / "table.md")]) == FAILED
    assert main(["table", "--device", "elsewhere"]) == FAILED
    assert "no results for a device 'elsewhere'" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_explain_what_was_not_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "bounded:1", "--threads", "1", "--json"]) == OK
    (told,) = json.loads(capsys.readouterr().out)
    by_name = {each["candidate"]: each for each in told["lines"]}
    assert (told["algorithm"], told["decided_by"]) == ("model", "model")
    assert by_name["hopeless"]["state"] == "untimed"
    assert by_name["hopeless"]["bound"] == pytest.approx(1e-3)
    assert by_name["other"]["left_out"] == "does not apply"
    assert main(["warmup", "bounded:1", "--threads", "1"]) == OK
    capsys.readouterr()
    assert main(["explain", "bounded:1", "--json"]) == OK
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["algorithm"], told["decided_by"]) == ("model", "store")
    assert [line["state"] for line in told["lines"]] == ["timed", "rejected", "inapplicable"]
    assert main(["warmup", "good:1", "--store", "other.sqlite", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert told["store"] == "other.sqlite"


def test_layers_and_weights_are_told(tmp_path: Path, capsys, monkeypatch) -> None:
    """Warm before cold; the pinned file before the store, whichever store is asked."""

    def told(*arguments: str) -> dict:
        assert main([*arguments, "--json"]) == OK
        (found,) = json.loads(capsys.readouterr().out)
        return found

    def line() -> dict[str, str]:
        assert main(["table", "--format", "csv"]) == OK
        return next(csv.DictReader(io.StringIO(capsys.readouterr().out)))

    assert main(["warmup", "weights:1", "--threads", "1", "--weights", "cold"]) == OK
    capsys.readouterr()
    found = told("explain", "weights:1")
    assert (found["algorithm"], found["decided_by"], found["lines"][0]["weights"]) == ("lean", "store", "cold")
    shown = line()
    assert (shown["algorithm"], shown["weights"], shown["tier"]) == ("lean", "cold", "store")
    assert main(["warmup", "weights:1", "--threads", "1", "--weights", "warm", "--store", "other.sqlite"]) == OK
    assert main(["export", "--store", "other.sqlite", "pinned.json"]) == OK
    monkeypatch.setenv("CPUCONV_WISDOM", str(tmp_path / "pinned.json"))
    capsys.readouterr()
    found = told("explain", "weights:1")
    assert (found["algorithm"], found["decided_by"]) == ("model", "pinned")
    lines = [(each["candidate"], each["weights"], each["tier"]) for each in found["lines"] if each["state"] == "timed"]
    assert lines[0] == ("model", "warm", "pinned") and set(lines) >= {("lean", "cold", "store")}
    shown = line()
    assert (shown["algorithm"], shown["weights"], shown["tier"]) == ("model", "warm", "pinned")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["warmup", "nonsense"], USAGE, "is no problem"),
        (["warmup", "good", "--workload", "no_such_module:x"], USAGE, "no_such_module"),
        (["warmup", "none", "--threads", "1"], FAILED, "without a working candidate"),
        (["table"], FAILED, "has no results"),
        (["explain", "nonsense"], USAGE, "is no problem"),
    ],
)
def test_exit_codes(capsys, arguments: list[str], code: int, said: str) -> None:
    assert main(arguments) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["warmup"],
        ["warmup", "good", "--effort", "much"],
        ["warmup", "good", "--threads", "0"],
        ["warmup", "good", "--budget", "-1"],
        ["warmup", "good", "--budget", "nan"],
        ["warmup", "good", "--layouts", "a,b,c"],
        ["warmup", "good", "--threads", "some"],
        ["warmup", "good", "--shape-limit", "0"],
        ["warmup", "good", "--weights", "hot"],
        ["warmup", "good", "--batches", "1,0"],
        ["warmup", "good", "--input", "x=1xAx3"],
        ["table", "--format", "pdf"],
    ],
)
def test_wrong_usage(capsys, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("autotune: ") and line.endswith(" --help'")


def test_help_tells_the_exit_codes(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["warmup", "--help"])
    assert stopped.value.code == OK
    assert f"{INTERRUPTED}  interrupted" in capsys.readouterr().out


def test_a_damaged_store_is_named(tmp_path: Path, capsys) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"no database")
    with pytest.warns(StoreWarning, match="not a database"):
        assert main(["table", "--store", str(bad)]) == FAILED
    assert main(["doctor", "--store", str(bad)]) == FAILED
    assert "not a database" in capsys.readouterr().out
    assert bad.read_bytes() == b"no database"


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent otherwise there")
def test_interrupt(tmp_path: Path) -> None:
    source = tmp_path / "net.txt"
    source.write_text("\n".join(f"lazy:{n}" for n in range(1, 40)))
    process = subprocess.Popen(
        python("-m", "autotune", "warmup", str(source), "--threads", "1", "--no-roofs"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in background jobs
    )
    assert "GFLOP/s" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == INTERRUPTED
    assert "interrupted" in err and "Traceback" not in err
    assert out == ""
    show = json.loads(run("-m", "autotune", "show", "--json").stdout)
    assert 1 <= show["devices"][0]["finished"] < 39


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")
def test_a_terminal_gets_a_bar() -> None:
    import pty

    leader, follower = pty.openpty()
    command = python("-m", "autotune", "warmup", "good:1", "--threads", "1")
    process = subprocess.Popen(command, env={**os.environ, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    seen = b""
    while True:
        try:
            seen += os.read(leader, 4096)
        except OSError:  # the other end closed
            break
    os.close(leader)
    assert process.wait() == OK
    assert b"%" in seen and b"compiling" in seen and b"GFLOP/s" in seen
    assert b"total" in process.stdout.read()


def test_missed_problems_are_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "--missed"]) == FAILED
    assert "no problem was missed" in capsys.readouterr().err
    device = fingerprint().key
    with Store() as store:
        store.add_missed(device, [("good:1 layouts= threads=1", 3), ("nonsense", 2)])
    assert main(["warmup", "--missed", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert [(each["network"], each["count"]) for each in told["problems"]] == [("missed", 3)]
    with Store() as store:
        assert [key for key, _ in store.missed(device)] == ["nonsense"]


def test_what_another_warmup_is_at_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = fake.workload.load("good:1", Reading(None))
    with Store() as other:
        assert other.claim(fingerprint().key, problem.key)
        assert main(["warmup", "good:1", "--threads", "1", "--json"]) == OK
    out, err = capsys.readouterr()
    assert json.loads(out)["elsewhere"] == [problem.task]
    assert "1 being tuned by another warmup" in err and "lack of time" not in err


def test_threads_and_weights(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(cli_warmup, "allowed_cores", lambda: 4)
    assert main(["warmup", "shared:1", "--threads", "auto", "--weights", "both", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert len(told["tuned"]) == 6 and sum(task.endswith(" cold") for task in told["tuned"]) == 3
    assert sorted({each["threads"] for each in told["problems"]}) == [1, 2, 4]
    assert all(each["serial_fraction"] == pytest.approx(0.1, abs=0.05) for each in told["problems"])
    assert main(["explain", "shared:1", "--json"]) == OK
    explained = json.loads(capsys.readouterr().out)
    assert [each["serial_fraction"] for each in explained] == [each["serial_fraction"] for each in told["problems"]]


def test_networks_are_timed_as_a_whole_where_no_layouts_are_asked_for(
    capsys: pytest.CaptureFixture[str], altered: Callable[..., None]
) -> None:
    altered(time_whole=lambda self, source, reading: [(source, reading.threads, 0.002)])
    assert main(["warmup", "good:1", "--threads", "1"]) == OK
    assert "autotune: good:1, 1 thread: 2.00 ms for a whole run\n" in capsys.readouterr().err
    for other in (["--layouts", "auto"], ["--types", "bf16"]):
        assert main(["warmup", "good:1", "--threads", "1", *other]) == OK
        assert "whole run" not in capsys.readouterr().err


def test_open_axes_reach_the_workload(capsys: pytest.CaptureFixture[str], altered) -> None:
    seen: list[Reading] = []
    inner = fake.Fake.load

    def load(self, source: str, reading: Reading):
        seen.append(reading)
        return inner(self, source, reading)

    altered(load=load)
    arguments = ["--batches", "1,8,8", "--input", "a=1x3", "--input", "b=2x2", "--threads", "1"]
    assert main(["warmup", "good:1", *arguments]) == OK
    assert seen == [Reading(None, 1, (1, 8), {"a": (1, 3), "b": (2, 2)})]
    assert main(["warmup", "good:1", "--types", "u8:s8:u8", "--threads", "1"]) == OK
    assert seen[-1] == Reading(None, 1, types="u8:s8:u8")
