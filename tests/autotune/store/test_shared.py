"""Stores that several warmups share: claims, kills, misses; and the size and speed of a large one."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.store import store
from autotune.store.rows import RowLimits
from autotune.store.store import Store
from support.running.processes import run, start
from support.tuner import kills
from support.tuner.stored import row

CURRENT = RowLimits(frozenset({"s"}))
KEY = ("d", "p", "warm")


CLAIM = (
    "import sys; from autotune.store.store import Store; store = Store(sys.argv[1]); "
    "print(store.claim('d', 'p', 'warm'), flush=True)"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def test_one_claims_and_others_wait(path: Path) -> None:
    mine, other = Store(path), Store(path)
    assert mine.claim(*KEY) and mine.claim(*KEY)
    assert not other.claim(*KEY)
    assert other.claim("d", "p", "cold") and other.claim("d", "q", "warm")
    other.release(*KEY)  # not the other's to release
    assert not other.claim(*KEY)
    assert run("-c", CLAIM, str(path)).stdout == "False\n"
    mine.release(*KEY)
    assert other.claim(*KEY)


def test_a_claim_ends_with_its_process(path: Path) -> None:
    process = start("-c", CLAIM + "; sys.stdin.read()", str(path))
    assert process.stdout.readline() == "True\n"
    mine = Store(path)
    assert not mine.claim(*KEY)
    process.kill()
    process.wait()
    assert mine.claim(*KEY)
    process.communicate()


def test_where_files_cannot_be_locked_every_claim_is_granted(path: Path) -> None:
    path.with_name("store.sqlite.claims").write_text("no folder")
    mine, other = Store(path), Store(path)
    assert mine.claim(*KEY) and other.claim(*KEY)
    mine.release(*KEY)
    assert other.claim(*KEY)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is not known there")
def test_warmups_at_once_and_killed(tmp_path: Path) -> None:
    results = kills.kill_warmups(tmp_path, kills=6, seed=1)
    assert results.troubles == []
    assert results.kills == 6 and len(results.finished) == 6 * kills.PROBLEMS
    assert results.lost == results.twice == results.open == set()


def test_misses_are_counted_and_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Store(path)
    kept.add_missed("d", [("p", 1), ("q", 3)])
    kept.add_missed("d", [("p", 4)])
    kept.add_missed("e", [("r", 1)])
    assert kept.missed("d") == [("p", 5), ("q", 3)]
    monkeypatch.setattr(store, "MISSED", 3)
    kept.add_missed("d", [("x", 1), ("y", 1)])
    kept.add_missed("d", [("z", 1)])
    assert kept.missed("d") == [("p", 5), ("q", 3), ("z", 1)]  # of equals the one met last
    assert Store(path).missed("e") == [("r", 1)]
    kept.clear_missed("d", ["p", "unknown"])
    assert [key for key, _ in kept.missed("d")] == ["q", "z"]


@pytest.fixture
def filled(tmp_path: Path) -> Callable[[int], Path]:
    """Stores of so many problems with a hundred candidates each."""

    def fill(problems: int) -> Path:
        path = tmp_path / f"{problems}.sqlite"
        empty = row("", 1.0, estimate=1.0, spread=0.1, count=9)
        with Store(path) as kept:
            kept.put(
                empty._replace(problem=f"p{p}", candidate=f"c{n}(v=1)", score=1e-3 * (n + 1))
                for p in range(problems)
                for n in range(100)
            )
        return path

    return fill


def test_a_large_store_opens_at_once(filled: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the work, in instructions of SQLite, that one of a single problem takes."""
    connect, steps = sqlite3.connect, Counter()

    def count() -> None:
        steps[path] += 1

    def watched(*given: object, **options: object) -> sqlite3.Connection:
        connection = connect(*given, **options)
        connection.set_progress_handler(count, 10)
        return connection

    paths = filled(1), filled(1000)
    monkeypatch.setattr(sqlite3, "connect", watched)
    for path in paths:
        reader = Store(path, read_only=True)
        assert reader.best("d", "p0", CURRENT).candidate == "c0(v=1)"
        reader.close()
    small, large = steps.values()
    assert large < 1.2 * small
