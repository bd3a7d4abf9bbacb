"""The store: rows kept, chosen by limits, and safe from damaged, foreign, newer, read-only and full files."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest

from autotune import database, store
from autotune.database import StoreWarning
from autotune.store import Row, Store, shared
from autotune.workload import Problem

REPO = Path(__file__).parents[1]


def row(candidate: str, seconds: float, **values) -> Row:
    given = {"device": "d", "problem": "p", "sources": "s", "state": "ok", "median": seconds, "score": seconds}
    return Row(**{**given, "candidate": candidate, **values})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(database, "_warned", set())
    return tmp_path / "folder" / "store.sqlite"


def test_rows_come_back_as_they_were(path: Path) -> None:
    whole = row("a", 2e-3, spread=1e-5, count=7, error=1e-6, error_limit=1e-4, workspace=10, bound=1e-3, estimate=3e-3)
    bad = row("b", math.nan, state="rejected", reason="wrong: 1 over 2")
    Store(path).put([whole._replace(created=5.0), bad])
    first, second = Store(path).rows("d", "p")
    assert first == whole._replace(created=5.0)
    assert (second.candidate, second.state, second.reason) == ("b", "rejected", "wrong: 1 over 2")
    assert math.isnan(second.median)
    assert second.created == pytest.approx(time.time(), abs=60)


def test_a_row_replaces_its_elder(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 2e-3)])
    kept.put([row("a", 1e-3)])
    assert [each.median for each in kept.rows("d", "p")] == [1e-3]


@pytest.mark.parametrize("ask", [Store.best, Store.lookup])
def test_limits_choose_again(path: Path, ask) -> None:
    kept = Store(path)
    kept.put(
        [
            row("fast", 1e-3, accuracy="fast", workspace=100),
            row("large", 2e-3, workspace=1000),
            row("small", 3e-3, workspace=10),
            row("exact", 4e-3, accuracy="exact"),
            row("stale", 1e-4, sources="old"),
            row("wrong", 1e-4, state="rejected", reason="wrong"),
        ]
    )

    def name(**limits) -> str | None:
        found = ask(kept, "d", "p", **{"sources": "s", **limits})
        return found and found.candidate

    assert name() == "fast"
    assert name(accuracies=("exact", "standard")) == "large"
    assert name(accuracies=("exact", "standard"), workspace_limit=999) == "small"
    assert name(accuracies=("exact",)) == "exact"
    assert name(accuracies=("exact", "standard"), workspace_limit=9) == "exact"
    assert name(accuracies=("stand",)) is None
    assert name(sources="old") == "stale"
    assert name(sources="new") is None


def test_ties_go_to_the_better_estimate(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 1e-3, estimate=2e-3), row("b", 1e-3, estimate=1e-3)])
    assert kept.best("d", "p", sources="s").candidate == "b"
    assert [each.candidate for each in kept.rows("d", "p")] == ["b", "a"]


def test_finished(path: Path) -> None:
    kept = Store(path)
    kept.finish("d", "p", effort="normal", sources="s")
    again = Store(path)
    assert again.is_finished("d", "p", efforts=("normal", "exhaustive"), sources="s")
    assert not again.is_finished("d", "p", efforts=("exhaustive",), sources="s")
    assert not again.is_finished("d", "p", efforts=("normal",), sources="t")
    assert not again.is_finished("e", "p", efforts=("normal",), sources="s")


def test_problems_in_their_networks_order(path: Path) -> None:
    kept = Store(path)
    kept.note([Problem("p2", "z", 3, 1e9, "net"), Problem("p", "a", 1, 2e9, "net"), Problem("q", "q", 1, 1.0, "net")])
    kept.put([row("a", 1e-3), row("a", 1e-3, problem="p2")])
    assert [(use.label, use.count, use.flops) for use in kept.problems("d")] == [("z", 3, 1e9), ("a", 1, 2e9)]
    assert kept.problems("other") == []


def test_lookup_sees_what_others_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Store(path, read_only=True)
    assert reader.lookup("d", "p", sources="s") is None
    assert not path.exists()
    writer = Store(path)
    writer.put([row("a", 2e-3)])
    assert reader.lookup("d", "p", sources="s").candidate == "a"
    monkeypatch.setattr(store, "RECHECK_SECONDS", 0.0)
    code = f"""
        import sys; sys.path[:0] = [{str(REPO)!r}]
        from autotune.store import Row, Store
        Store({str(path)!r}).put([Row("d", "p", "b", "s", "ok", median=1e-3, score=1e-3)])
    """
    reader._recheck = 0.0
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=30)
    assert reader.lookup("d", "p", sources="s").candidate == "b"


def test_lookup_sees_a_new_file_in_the_place_of_the_old(path: Path) -> None:
    Store(path).put([row("a", 2e-3)])
    reader = Store(path, read_only=True)
    assert reader.lookup("d", "p", sources="s").candidate == "a"
    for file in path.parent.iterdir():
        file.unlink()
    Store(path).put([row("b", 2e-3)])
    assert reader.lookup("d", "p", sources="s").candidate == "b"


def test_a_writer_whose_file_was_deleted_begins_another(path: Path) -> None:
    writer = Store(path)
    for file in path.parent.iterdir():
        file.unlink()
    writer.put([row("a", 2e-3)])
    assert Store(path).best("d", "p", sources="s").candidate == "a"


def test_lookup_is_quick(path: Path) -> None:
    Store(path).put([row(f"c{n}", 1e-3 + n, problem=f"p{m}") for m in range(500) for n in range(20)])
    reader = Store(path, read_only=True)
    reader.lookup("d", "p0", sources="s")

    def seconds(problems: list[str]) -> float:
        took = []
        for problem in problems:
            start = time.perf_counter()
            assert reader.lookup("d", problem, sources="s").candidate == "c0"
            took.append(time.perf_counter() - start)
        return sorted(took)[len(took) // 2]

    assert seconds([f"p{m}" for m in range(1, 400)]) < 200e-6
    assert seconds(["p1"] * 1000) < 20e-6


DAMAGED = {
    "garbage": b"this is no database" * 100,
    "short": b"x",
    "torn": None,
}


def spoil(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "torn":
        Store(path).put([row(f"c{n}", 1e-3) for n in range(500)])
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        content = path.read_bytes()
        path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    elif kind == "foreign":
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE trials (mine)")
        connection.close()
    elif kind == "newer":
        Store(path).close()
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version={database.VERSION + 1}")
        connection.close()
    else:
        path.write_bytes(DAMAGED[kind])


@pytest.mark.parametrize("kind", ["garbage", "short", "torn", "foreign", "newer"])
def test_what_cannot_be_used_is_set_aside(path: Path, kind: str) -> None:
    spoil(path, kind)
    content = path.read_bytes()
    with pytest.warns(StoreWarning, match=r"moved to store\.sqlite\.corrupt-1") as caught:
        kept = Store(path)
        kept.put([row("a", 1e-3)])
        assert kept.rows("d", "p")[0].candidate == "a"
    assert len(caught) == 1
    assert path.with_name("store.sqlite.corrupt-1").read_bytes()[:16] == content[:16]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store(path).best("d", "p", sources="s").candidate == "a"


def test_the_second_set_aside_has_its_own_name(path: Path) -> None:
    for number in (1, 2):
        spoil(path, "garbage")
        database._warned.clear()
        with pytest.warns(StoreWarning, match=f"corrupt-{number}"):
            Store(path).close()


@pytest.mark.parametrize("kind", ["garbage", "torn", "foreign", "newer"])
def test_a_reader_leaves_the_file_alone(path: Path, kind: str) -> None:
    spoil(path, kind)
    reader = Store(path, read_only=True)
    with pytest.warns(StoreWarning, match="cannot be read") as caught:
        assert reader.lookup("d", "p", sources="s") is None
        assert reader.lookup("d", "q", sources="s") is None
    assert len(caught) == 1
    assert not list(path.parent.glob("*corrupt*"))


def test_values_that_no_tuner_writes_are_ignored(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 1e-3), row("b", -1.0), row("c", 1e-4, workspace="much"), row("d", "soon"), row("e", math.inf)])
    assert [each.candidate for each in kept.rows("d", "p")] == ["a"]
    assert kept.best("d", "p", sources="s").candidate == "a"


def test_a_full_disk_leaves_memory(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 2e-3)])
    (pages,) = kept._connection.execute("PRAGMA page_count").fetchone()
    kept._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.warns(StoreWarning, match="full.*in memory only") as caught:
        kept.put([row(f"c{n}" * 50, 1e-3 + n) for n in range(1000)])
        kept.put([row("z", 1e-4)])
    assert len(caught) == 1
    assert len(kept.rows("d", "p")) == 1002
    assert kept.lookup("d", "p", sources="s").candidate == "z"
    assert "in memory" in kept.health()
    assert [each.candidate for each in Store(path).rows("d", "p")] == ["a"]


def test_a_read_only_file_leaves_memory(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 2e-3)])
    kept._connection.execute("PRAGMA query_only=1")
    with pytest.warns(StoreWarning, match="readonly.*in memory only"):
        kept.put([row("b", 1e-3)])
    assert [each.candidate for each in kept.rows("d", "p")] == ["b", "a"]


def test_a_folder_that_cannot_be_made_leaves_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(StoreWarning, match="in memory only"):
        kept = Store(tmp_path / "file" / "store.sqlite")
    kept.put([row("a", 1e-3)])
    assert kept.best("d", "p", sources="s").candidate == "a"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_read_and_left_alone(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 1e-3)])
    kept.close()
    path.parent.chmod(0o555)
    try:
        assert Store(path, read_only=True).lookup("d", "p", sources="s").candidate == "a"
        with pytest.warns(StoreWarning, match="in memory only"):
            Store(path).put([row("b", 1e-4)])
    finally:
        path.parent.chmod(0o755)


def test_two_processes_write_at_once(path: Path) -> None:
    code = """
        import sys; sys.path[:0] = [sys.argv[1]]
        from autotune.store import Row, Store
        kept = Store(sys.argv[2])
        for n in range(100):
            kept.put([Row("d", f"p{n}", sys.argv[3], "s", "ok", median=1e-3, score=1e-3)])
        assert not kept.trouble
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(REPO), str(path)]
    writers = [subprocess.Popen([*command, name]) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    kept = Store(path)
    for n in range(100):
        assert [each.candidate for each in kept.rows("d", f"p{n}")] == ["a", "b"]


def test_threads_share_a_store(path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    kept = Store(path)

    def write_and_read(n: int) -> str:
        kept.put([row(f"c{n}", 1e-3, problem=f"p{n}")])
        return kept.lookup("d", f"p{n}", sources="s").candidate

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write_and_read, range(64))) == [f"c{n}" for n in range(64)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_opens_its_own_connection(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(path.parent))
    writer = Store()
    writer.put([row("a", 1e-3)])
    parents = shared()
    assert parents.lookup("d", "p", sources="s").candidate == "a"
    child = os.fork()
    if child == 0:
        found = shared().lookup("d", "p", sources="s")
        writer.put([row("b", 1e-4)])
        os._exit(0 if shared() is not parents and found.candidate == "a" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert writer.best("d", "p", sources="s").candidate == "b"


def test_shared_follows_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = []
    for name in ("a", "b"):
        monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path / name))
        stores.append(shared())
        assert shared() is stores[-1]
        assert shared().path.parent == tmp_path / name
        assert shared(read_only=False) is not shared()
    assert stores[0] is not stores[1]


def test_an_interrupted_write_leaves_nothing(path: Path) -> None:
    kept = Store(path)

    def rows():
        yield row("a", 1e-3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.put(rows())
    with pytest.raises(sqlite3.Error):
        kept.put([row("b", 1e-3), row("c", 1e-3, problem=object())])
    assert kept.rows("d", "p") == []
    kept.put([row("d", 1e-3)])
    assert len(kept.rows("d", "p")) == 1


def test_a_reader_names_the_trouble(path: Path) -> None:
    spoil(path, "foreign")
    reader = Store(path, read_only=True)
    assert "another program" in reader.health()
    with pytest.warns(StoreWarning, match="another program"):
        assert reader.rows("d", "p") == []
    assert reader.devices() == {}


def test_a_store_closes_and_opens_again(path: Path) -> None:
    with Store(path) as kept:
        kept.put([row("a", 1e-3)])
    assert not path.with_name("store.sqlite-wal").exists()
    assert kept.best("d", "p", sources="s").candidate == "a"
