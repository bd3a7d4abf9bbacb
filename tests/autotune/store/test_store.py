"""The store: rows kept, found again by their keys, and chosen by limits; shared by threads and processes."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from pathlib import Path

import pytest

from autotune.store.rows import KEY, RowLimits
from autotune.store.store import Store, shared
from autotune.workload import Problem
from support.running.processes import finish, start
from support.tuner.stored import row

CURRENT = RowLimits(frozenset({"s"}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
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


def test_limits_choose_again(path: Path) -> None:
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
        found = kept.best("d", "p", CURRENT._replace(**limits))
        return found and found.candidate

    assert name() == "fast"
    assert name(accuracies=("exact", "standard")) == "large"
    assert name(accuracies=("exact", "standard"), workspace=999) == "small"
    assert name(accuracies=("exact",)) == "exact"
    assert name(accuracies=("exact", "standard"), workspace=9) == "exact"
    assert name(accuracies=("stand",)) is None
    assert name(sources=frozenset({"old"})) == "stale"
    assert name(sources=frozenset({"new"})) is None


def test_weights_and_names_are_asked_for(path: Path) -> None:
    kept = Store(path)
    kept.put([row("direct(v=2)", 1e-3), row("winograd(rows=4,v=2)", 2e-3), row("winograd(rows=6,v=2)", 3e-3)])
    kept.put([row("winograd(rows=6,v=2)", 1e-3, weights="cold"), row("direct(v=2)", 5e-3, weights="cold")])

    def name(weights: str = "warm", **limits) -> str | None:
        found = kept.best("d", "p", CURRENT._replace(**limits), weights)
        return found and found.candidate

    assert name() == "direct(v=2)"
    assert name(weights="cold") == "winograd(rows=6,v=2)"
    assert name(prefix="winograd(") == "winograd(rows=4,v=2)"
    assert name(prefix="winograd(rows=6,") == "winograd(rows=6,v=2)"
    assert name(prefix="fft(") is None
    assert len(kept.rows("d", "p")) == 3 and len(kept.rows("d", "p", "cold")) == 2


def test_every_field_of_the_key_makes_another_row(path: Path) -> None:
    kept, first = Store(path), row("a", 1e-3)
    others = {name: first._replace(**{name: "other"}) for name in KEY}
    kept.put([first, *others.values()])
    assert kept.best("d", "p", CURRENT).candidate == "a"
    for name, other in others.items():
        found = kept.rows(other.device, other.problem, other.weights)
        assert [each._replace(created=0.0) for each in found if getattr(each, name) == "other"] == [
            pytest.approx(other, nan_ok=True)
        ]


def test_ties_go_to_the_better_estimate(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 1e-3, estimate=2e-3), row("b", 1e-3, estimate=1e-3)])
    assert kept.best("d", "p", CURRENT).candidate == "b"
    assert [each.candidate for each in kept.rows("d", "p")] == ["b", "a"]


def test_finished(path: Path) -> None:
    kept = Store(path)
    kept.finish("d", "p", effort="normal", sources={"s"})
    again = Store(path)
    assert again.is_finished("d", "p", efforts=("normal", "exhaustive"), sources={"s"})
    assert not again.is_finished("d", "p", efforts=("exhaustive",), sources={"s"})
    assert not again.is_finished("d", "p", efforts=("normal",), sources={"t"})
    assert not again.is_finished("e", "p", efforts=("normal",), sources={"s"})


def test_problems_in_their_networks_order(path: Path) -> None:
    kept = Store(path)
    kept.note([Problem("p2", "z", 3, 1e9, "net"), Problem("p", "a", 1, 2e9, "net"), Problem("q", "q", 1, 1.0, "net")])
    kept.put([row("a", 1e-3), row("a", 1e-3, problem="p2")])
    assert [(use.label, use.count, use.flops) for use in kept.problems("d")] == [("z", 3, 1e9), ("a", 1, 2e9)]
    assert kept.problems("other") == []


def test_a_writer_whose_file_was_deleted_begins_another(path: Path) -> None:
    writer = Store(path)
    for file in path.parent.iterdir():
        file.unlink()
    writer.put([row("a", 2e-3)])
    assert Store(path).best("d", "p", CURRENT).candidate == "a"


def test_values_that_no_tuner_writes_are_ignored(path: Path) -> None:
    kept = Store(path)
    kept.put([row("a", 1e-3), row("b", -1.0), row("c", 1e-4, workspace="much"), row("d", "soon"), row("e", math.inf)])
    assert [each.candidate for each in kept.rows("d", "p")] == ["a"]
    assert kept.best("d", "p", CURRENT).candidate == "a"


WRITER = """
import sys
from support.tuner.stored import row
from autotune.store.store import Store
kept = Store(sys.argv[1])
for n in range(100):
    kept.put([row(sys.argv[2], 1e-3, problem=f"p{n}")])
assert not kept.trouble
"""


def test_two_processes_write_at_once(path: Path) -> None:
    writers = [start("-W", "error", "-c", WRITER, str(path), name) for name in ("a", "b")]
    for writer in writers:
        finish(writer)
    kept = Store(path)
    for n in range(100):
        assert [each.candidate for each in kept.rows("d", f"p{n}")] == ["a", "b"]


def test_threads_share_a_store(path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    kept = Store(path)

    def write_and_read(n: int) -> str:
        kept.put([row(f"c{n}", 1e-3, problem=f"p{n}")])
        return kept.best("d", f"p{n}", CURRENT).candidate

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write_and_read, range(64))) == [f"c{n}" for n in range(64)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_opens_its_own_connection(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(path.parent))
    writer = Store()
    writer.put([row("a", 1e-3)])
    parents = shared()
    assert parents.best("d", "p", CURRENT).candidate == "a"
    child = os.fork()
    if child == 0:
        found = shared().best("d", "p", CURRENT)
        writer.put([row("b", 1e-4)])
        os._exit(0 if shared() is not parents and found.candidate == "a" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert writer.best("d", "p", CURRENT).candidate == "b"


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


def test_a_store_closes_and_opens_again(path: Path) -> None:
    with Store(path) as kept:
        kept.put([row("a", 1e-3)])
    assert not path.with_name("store.sqlite-wal").exists()
    assert kept.best("d", "p", CURRENT).candidate == "a"
