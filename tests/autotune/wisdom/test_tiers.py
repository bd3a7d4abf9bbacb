"""Tiers of wisdom: which decides, and how soon a change of one is seen."""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path

import pytest

from autotune.machine.device import fingerprint
from autotune.store.database import StoreWarning
from autotune.store.rows import COLD, WARM, Row, RowLimits
from autotune.store.store import Store
from autotune.wisdom import document as wisdom
from autotune.wisdom import tiers
from autotune.wisdom.document import Wisdom
from autotune.wisdom.tiers import Tiers
from support.running import processes
from support.tuner import stored

HERE = fingerprint()
SOURCES = frozenset({"s"})
LIMITS = RowLimits(SOURCES)
row = functools.partial(stored.row, device=HERE.key)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the store lies that processes share."""
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "autotune.sqlite"


def best(asked: Tiers, problem: str = "p") -> str | None:
    found = asked.lookup(HERE.key, problem, LIMITS)
    return found and found.row.candidate


def table(path: Path, *rows: Row) -> None:
    made = Wisdom({HERE.key: HERE})
    made.add(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(wisdom.render(made))


def test_the_first_tier_that_knows_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    pinned, folder = tmp_path / "pinned.json", tmp_path / "tables"
    table(folder / f"{HERE.key}.json", row("shipped", 3e-3), row("only shipped", 1e-3, problem="q"))
    asked = Tiers(folder)
    asked.recheck_seconds = 0.0

    def ask(problem: str = "p", **limits) -> tuple[str, str] | None:
        found = asked.lookup(HERE.key, problem, LIMITS._replace(**limits))
        return found and (found.tier, found.row.candidate)

    assert ask() == ("shipped", "shipped")
    Store().put([row("stored", 5e-3, workspace=100), row("cold", 1e-3, weights=COLD, problem="r")])
    assert ask() == ("store", "stored")
    assert ask(workspace=99) == ("shipped", "shipped")
    assert ask("r") == ("store", "cold")
    Store().put([row("warm", 9e-3, problem="r")])
    assert ask("r") == ("store", "warm")
    assert ask("r", weights=(COLD, WARM)) == ("store", "cold")  # as in a network
    table(pinned, row("pinned", 9e-3), row("stale", 1e-3, sources="old"))
    monkeypatch.setenv(tiers.PINNED, str(pinned))
    assert ask() == ("pinned", "pinned")
    assert ask("q") == ("shipped", "only shipped")
    assert ask(sources=frozenset({"new"})) is None
    assert ask(prefix="st") == ("store", "stored")
    assert {name: each.tier for name, each in asked.rows(HERE.key, "p", LIMITS).items()} == {
        "pinned": "pinned",
        "stored": "store",
        "shipped": "shipped",
        "stale": "pinned",
    }
    table(pinned, row("another", 9e-3))
    assert ask() == ("pinned", "another")


@pytest.mark.parametrize("content", [b"{}", b"\xff", None])
def test_a_pinned_file_that_is_none_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content) -> None:
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(tiers.PINNED, str(tmp_path / "pinned.json"))
    if content is not None:
        (tmp_path / "pinned.json").write_bytes(content)
    with pytest.warns(StoreWarning, match="pinned.json.*it is ignored") as caught:
        for _ in range(3):
            assert Tiers(tmp_path).lookup(HERE.key, "p", LIMITS) is None
    assert len(caught) == 1


def test_winners_of_all_tiers(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("a", 2e-3, problem="k3 x"), row("b", 1e-3, problem="k3 x"), row("c", 1e-3, problem="k5 x")]
    table(
        tmp_path / f"{HERE.key}.json",
        *rows,
        row("d", 1e-3, problem="k3 y"),
        row("old", 1e-4, problem="k3 y", sources="t"),
        row("alone", 1e-4, problem="k9 x", sources="t"),
    )
    asked = Tiers(tmp_path)
    assert asked.winners(HERE.key, "k3%", SOURCES) == [("k3 x", "b"), ("k3 y", "d")]
    Store().put([row("mine", 9e-3, problem="k3 y"), row("cold", 9e-3, problem="k3 w", weights=COLD)])
    assert asked.winners(HERE.key, "k3%", SOURCES) == [("k3 x", "b"), ("k3 y", "mine")]
    assert asked.winners(HERE.key, "%x", SOURCES) == [("k3 x", "b"), ("k5 x", "c"), ("k9 x", "alone")]
    assert asked.winners(HERE.key, "k3%", SOURCES, COLD) == [("k3 w", "cold")]
    Store().put([row("first", 1e-4, problem="k9 x", sources="t"), row("then", 9e-3, problem="k9 x")])
    assert asked.winners(HERE.key, "k9%", SOURCES) == [("k9 x", "then")]


def test_rows_of_other_sources_count_until_the_problem_is_tuned_again(path: Path, tmp_path: Path) -> None:
    asked = Tiers(tmp_path)

    def older(problem: str = "p", **limits) -> list[str]:
        found = asked.older(HERE.key, problem, LIMITS._replace(**limits))
        assert not any(each.current for each in found) and {each.remark for each in found} <= {tiers.OLDER_KERNELS}
        return [each.row.candidate for each in found]

    table(
        tmp_path / f"{HERE.key}.json",
        row("shipped", 1e-3, sources="t"),
        row("a", 1e-3, sources="t", problem="q"),
        row("b", 2e-3, sources="t", problem="q", workspace=9),
    )
    assert best(asked) is None and older() == ["shipped"]
    assert (older("q"), older("q", workspace=8), older("q", prefix="b")) == (["a", "b"], ["a"], ["b"])
    # Of one tuning some rows are current: only what is faster than these counts.
    first = {"created": 5.0, "problem": "r"}
    Store().put([row("old", 1e-3, sources="t", **first), row("slow", 3e-3, sources="t", **first)])
    assert older("r") == ["old", "slow"]
    Store().put([row("new", 2e-3, **first)])
    assert (best(asked, "r"), older("r")) == ("new", ["old"])
    # Tuned again: nothing of before counts.
    Store().put([row("again", 4e-3, problem="r", created=6.0)])
    assert (best(asked, "r"), older("r")) == ("new", [])
    # What is current in any tier comes first.
    table(tmp_path / f"{HERE.key}.json", row("current", 9e-3))
    Store().put([row("old", 1e-3, sources="t")])
    asked.forget()
    assert (best(asked), older()) == ("current", [])


PUT = """
import sys
from support.tuner import stored
from autotune.store.store import Store
Store().put([stored.row("b", 1e-3, device=sys.argv[1])])
"""


def test_what_this_process_writes_is_seen_at_once(path: Path) -> None:
    asked = Tiers()
    assert best(asked) is None
    assert not path.exists()
    Store().put([row("a", 2e-3)])
    assert best(asked) == "a"
    Store().put([row("b", 1e-3)])
    assert best(asked) == "b"


def test_what_others_write_is_seen_soon(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store().put([row("a", 2e-3)])
    asked = Tiers()
    asked.recheck_seconds = 1000.0
    assert best(asked) == "a"
    processes.run("-c", PUT, HERE.key)
    assert best(asked) == "a"
    later = time.monotonic() + asked.recheck_seconds
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert best(asked) == "b"


def test_a_new_file_in_the_place_of_the_old_is_seen(path: Path) -> None:
    Store(path).put([row("a", 2e-3)])
    asked = Tiers()
    assert best(asked) == "a"
    for file in path.parent.iterdir():
        file.unlink()
    Store(path).put([row("b", 2e-3)])
    assert best(asked) == "b"


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the store was asked to find."""
    best, asked = Store.best, []
    monkeypatch.setattr(Store, "best", lambda store, *given: asked.append(given) or best(store, *given))
    return asked


def test_answers_outlive_a_look_that_finds_no_change_and_are_bounded(path, searched, monkeypatch) -> None:
    Store().put([row("a", 2e-3)])
    asked = Tiers()
    asked.recheck_seconds, asked.max_answers = 0.0, 3
    assert best(asked) == best(asked) == "a"
    assert len(searched) == 1
    for n in range(10):
        assert best(asked, f"p{n}") is None
    before = len(searched)
    assert best(asked) == "a" and len(searched) > before  # its answer was dropped
    before = len(searched)
    asked.forget()
    assert best(asked) == "a" and len(searched) > before


def test_a_look_up_asks_the_store_once(path: Path, searched: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    Store().put([row(f"c{n}", 1e-3 + n, problem=f"p{m}") for m in range(9) for n in range(3)])
    asked = Tiers()
    asked.recheck_seconds, asked.max_answers = math.inf, 9
    for _ in range(5):
        for m in range(9):
            assert best(asked, f"p{m}") == "c0"
    assert len(searched) == 9
