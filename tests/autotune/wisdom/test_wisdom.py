"""Wisdom: written and read back, merged, compared, and refused when it is not what it should be."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.machine.device import fingerprint
from autotune.store.rows import COLD, Finished, RowLimits
from autotune.store.store import Store
from autotune.wisdom import document as wisdom
from autotune.wisdom import exchange
from autotune.wisdom.document import Wisdom, WisdomError
from autotune.workload import Problem
from support.tuner import stored
from support.tuner.fuzz import Tally, fuzz_store, fuzz_wisdom, signed

HERE = fingerprint()
OTHER = replace(HERE, model="Another CPU", cores=HERE.cores + 1)
SOURCES = frozenset({"s"})
row = functools.partial(stored.row, device=HERE.key, created=1e9)


@pytest.fixture
def kept(tmp_path: Path) -> Store:
    """A store of two devices, with every kind of row."""
    made = Store(tmp_path / "a.sqlite")
    made.register(HERE)
    made.register(OTHER)
    made.write([(HERE, {"1": {"float32_gflops": 122.5, "measured": 1e9}})])
    made.note([Problem("p", "first", 2, 1e9, "net"), Problem("q", "second", 1, 2e9, "net")], threads=1, layouts="auto")
    made.put([row("direct(v=2)", 1e-3, spread=1e-5, count=7, error=1e-7, error_limit=2e-5, workspace=64, bound=5e-4)])
    made.put([row("winograd(rows=4)", 2e-3, accuracy="exact", threads_fraction=0.25), row("x", 3e-3, weights=COLD)])
    made.put(
        [row("y", math.nan, state="rejected", reason="wrong: 1 over 2"), row("z", 1e-4, sources="old", created=9e8)]
    )
    made.put([row("fft(n=8)", 1e-3, problem="q", device=OTHER.key)])
    made.finish(HERE.key, "p", effort="quick", sources=SOURCES, threads=1)
    return made


def same(a: Wisdom, b: Wisdom) -> bool:
    def plain(each: Wisdom) -> list[str]:
        return sorted(map(repr, each))  # NaN is not equal to itself

    return plain(a) == plain(b) and (a.devices, a.roofs, a.finished, a.uses) == (b.devices, b.roofs, b.finished, b.uses)


def test_what_is_written_is_read(kept: Store, tmp_path: Path) -> None:
    told = exchange.from_store(kept)
    assert set(told.devices) == {HERE.key, OTHER.key} and told.count() == 6
    text = wisdom.render(told)
    again = wisdom.parse(text.encode())
    assert same(again, told)
    assert wisdom.render(again) == text
    with Store(tmp_path / "b.sqlite") as second:
        exchange.into_store(again, second)
        assert same(exchange.from_store(second), told)
        assert second.best(HERE.key, "p", RowLimits(SOURCES)).candidate == "direct(v=2)"
        assert second.is_finished(HERE.key, "p", efforts=("quick",), sources=SOURCES)
        assert [use.label for use in second.problems(HERE.key)] == ["first"]
        exchange.into_store(again, second)
        assert same(exchange.from_store(second), told)
    assert exchange.from_store(kept, [OTHER.key]).count() == 1
    assert same(exchange.load(kept.path), told)


def test_another_device_only_seeds(kept: Store, tmp_path: Path) -> None:
    with Store(tmp_path / "b.sqlite") as here:
        exchange.into_store(exchange.from_store(kept), here)
        assert here.best(HERE.key, "q", RowLimits(SOURCES)) is None
        assert here.seeds("q") == ["fft(n=8)"]
        assert here.seeds("p")[0] == "z"  # once the best, from sources that are no more
        assert here.seeds("unknown") == []


def test_merging_keeps_the_newest_in_its_own_terms(kept: Store) -> None:
    slow_day = [row("a", 2e-3, created=2e9), row("b", 3e-3, created=2e9)]
    fast_day = [row("b", 1.5e-3), row("c", 0.5e-3), row("a", 1e-3, spread=1e-4)]
    for pair in ((slow_day, fast_day), (fast_day, slow_day)):
        found = {each.candidate: each for each in exchange.combined(*pair)}
        assert {name: each.median for name, each in found.items()} == {"a": 2e-3, "b": 3e-3, "c": 1e-3}
    second = Wisdom({HERE.key: HERE}, {HERE.key: {"1": {"float32_gflops": 1.0}, "2": {"l2_gbs": 1.0}}})
    second.add([row("new", 1e-5, created=2e9, problem="q")])
    second.finished = [Finished(HERE.key, "p", "warm", "quick", "later", 1, 2e9)]
    first = exchange.from_store(kept)
    merged = exchange.merge([first, second])
    assert same(merged, exchange.merge([second, first]))
    assert merged.count() == 7 and len(merged.roofs[HERE.key]) == 2
    assert merged.roofs[HERE.key]["1"]["float32_gflops"] == 122.5  # the one whose date is known
    assert [each.sources for each in merged.finished] == ["later"]


def test_differences(kept: Store) -> None:
    first = exchange.from_store(kept)
    second = copy.deepcopy(first)
    assert exchange.diff(first, second) == []
    second.rows[HERE.key, "p", COLD] = [row("faster", 1e-3, weights=COLD)]
    second.rows.pop((OTHER.key, "q", "warm"))
    told = {(each.problem, each.weights): each for each in exchange.diff(first, second)}
    assert told["p", COLD][3:] == ("x", "faster", 3e-3, 1e-3)
    assert told["q", "warm"][3:] == ("fft(n=8)", None, 1e-3, None)


def test_a_table_holds_what_some_limit_would_choose(kept: Store) -> None:
    kept.put([row("direct(v=3)", 4e-3, workspace=64), row("direct(v=4)", 5e-3, workspace=0)])
    table = exchange.table_of(exchange.from_store(kept), HERE.key, RowLimits(SOURCES), lambda name: "s")
    assert {each.candidate for each in table} == {"direct(v=2)", "direct(v=4)", "winograd(rows=4)", "x"}
    assert (table.finished, table.uses) == ([], [])


def test_prune(kept: Store) -> None:
    assert kept.prune(HERE.key, SOURCES) == 1
    assert {each.candidate for each in kept.rows(HERE.key, "p")} == {"direct(v=2)", "winograd(rows=4)", "y"}
    assert kept.is_finished(HERE.key, "p", efforts=("quick",), sources=SOURCES)
    assert kept.prune(OTHER.key, keep=False) == 1
    assert set(kept.devices()) == {HERE.key}
    # What nothing has replaced since still serves where the model agrees.
    assert kept.prune(HERE.key, {"other"}) == 1
    (known, *_) = (each for each in kept.rows(HERE.key, "p") if each.is_timed)
    kept.put([known._replace(sources="other", created=known.created + 1)])
    assert kept.prune(HERE.key, {"other"}) == 2
    assert [each.sources for each in kept.rows(HERE.key, "p")] == ["other"]
    kept.shrink()
    assert kept.health() == "ok"


# -- hostile files


def set_in(path: str, value: object):
    def change(told: dict) -> None:
        *way, last = [int(part) if part.lstrip("-").isdigit() else part for part in path.split("/")]
        for part in way:
            told = told[part]
        told[last] = value

    return change


COLUMN = {name: at for at, name in enumerate(wisdom.ROW_RULES)}
ROW = "devices/0/rows/0"
HOSTILE = {
    "another format": (set_in("format", "pickle"), "format is not"),
    "a newer version": (set_in("version", 2), "version must be 1, not 2"),
    "a version that is no number": (set_in("version", True), "version must be 1, not True"),
    "more keys": (set_in("exec", "import os"), "must be an object with"),
    "other columns": (set_in("columns/rows/0", "shell"), "columns"),
    "a forged device": (set_in("devices/0/fields/model", "Another"), None),
    "a device field too many": (set_in("devices/0/fields/x", 1), "must be an object with"),
    "a device twice": (lambda told: told["devices"].append(told["devices"][0]), "duplicates an earlier device"),
    "negative time": (set_in(f"{ROW}/{COLUMN['median']}", -1.0), "median must be a number from 0"),
    "no time": (set_in(f"{ROW}/{COLUMN['median']}", None), "must have a median"),
    "text for a time": (set_in(f"{ROW}/{COLUMN['score']}", "1e-3"), "score must be"),
    "truth for a number": (set_in(f"{ROW}/{COLUMN['workspace']}", True), "workspace must be an integer"),
    "truth beside its number": (
        lambda told: [
            set_in(f"devices/0/rows/{at}/{COLUMN['count']}", each)(told) for at, each in enumerate((1, True))
        ],
        r"rows\[1\].count must be an integer",
    ),
    "a huge workspace": (set_in(f"{ROW}/{COLUMN['workspace']}", 1 << 70), "workspace must be an integer"),
    "a fraction for a count": (set_in(f"{ROW}/{COLUMN['count']}", 1.5), "count must be an integer"),
    "an unknown class": (set_in(f"{ROW}/{COLUMN['accuracy']}", "sloppy"), "accuracy must be one of"),
    "an unknown weights": (set_in(f"{ROW}/{COLUMN['weights']}", ["warm"]), "weights must be one of"),
    "terminal codes": (set_in(f"{ROW}/{COLUMN['candidate']}", "\x1b[2Jdirect"), "candidate must be a printable text"),
    "half a character": (set_in(f"{ROW}/{COLUMN['problem']}", "\ud800"), "problem must be a printable text"),
    "a long text": (set_in(f"{ROW}/{COLUMN['reason']}", "x" * 3000), "reason must be a printable text"),
    "a short row": (set_in(ROW, []), "must be a list of"),
    "an object for a row": (set_in(ROW, {}), "must be a list of"),
    "rows that are none": (set_in("devices/0/rows", "rows"), "must be a list"),
    "roofs that are none": (set_in("devices/0/roofs", {"fma": "fast"}), "roofs must be numbers by name"),
    "a roof that is none": (set_in("devices/0/roofs", {"1": {"l1_gbs": "high"}}), "roofs must be numbers by name"),
    "a roof out of sight": (set_in("devices/0/roofs", {"1": {"l1_gbs": 10**400}}), "roofs must be numbers by name"),
    "roofs of no threads": (set_in("devices/0/roofs", {"0": {"l1_gbs": 1.0}}), "roofs must be numbers by name"),
    "uses that are none": (set_in("uses/0/5", -1), "count must be an integer"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_whole(kept: Store, tmp_path: Path, case: str) -> None:
    change, said = HOSTILE[case]
    told = json.loads(wisdom.render(exchange.from_store(kept)))
    change(told)
    path = tmp_path / "hostile.json"
    path.write_bytes(signed(told))
    if case == "a forged device":  # no secret keeps anybody from it: it is another device, that only seeds
        assert HERE.key not in wisdom.read(path).devices or OTHER.key not in wisdom.read(path).devices
        return
    with pytest.raises(WisdomError, match=f"refused: .*{said or ''}") as raised:
        wisdom.read(path)
    assert str(raised.value).isprintable() and len(str(raised.value)) < 600


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"[" * 200_000, "not a wisdom file"),
        (b'{"format": NaN}', "NaN is not a number"),
        (b'{"format": 1' + b"0" * 100_000 + b"}", "not valid JSON"),
        (b'{"format": 1, "format": 2}', "occurs twice"),
        (b"null", "format is not"),
        (b"\x80\x04\x95cposix\nsystem\n", "not valid JSON"),
    ],
)
def test_contents_that_are_not_wisdom(content: bytes, said: str) -> None:
    with pytest.raises(WisdomError, match=said):
        wisdom.parse(content)


def test_files_that_are_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_bytes(b" " * 1001)
    for path, said in ((large, "larger than"), (tmp_path, "not a regular file")):
        with pytest.raises(WisdomError, match=said):
            wisdom.read(path, 1000)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(WisdomError, match="not a regular file"):
            wisdom.read(tmp_path / "pipe")


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'"",', b"1,", b'{"a":[0]},'])
def test_what_decoding_would_take_is_bounded_first(tmp_path: Path, piece: bytes) -> None:
    """A text of 3 bytes may become an object of a hundred."""
    path = tmp_path / "large.json"
    path.write_bytes((b"[" + piece * ((4 << 20) // len(piece))).removesuffix(b",") + b"]")
    size = path.stat().st_size
    tracemalloc.start()
    try:
        with pytest.raises(WisdomError):
            wisdom.read(path)
        assert tracemalloc.get_traced_memory()[1] < 16 * size
    finally:
        tracemalloc.stop()


def test_a_file_past_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(120 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(WisdomError, match="larger than 32 MiB"):
            exchange.load(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_pipe_is_no_file_of_rows(tmp_path: Path) -> None:
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises((WisdomError, OSError), match="not a regular file"):
            exchange.load(tmp_path / "pipe")


def test_too_many_rows(kept: Store) -> None:
    told = exchange.from_store(kept)
    content = wisdom.render(told).encode()
    assert wisdom.parse(content, told.count()).count() == told.count()
    with pytest.raises(WisdomError, match="must be a list, of"):
        wisdom.parse(content, told.count() - 1)


def test_ten_thousand_mutations_of_a_file(kept: Store) -> None:
    """Damage is refused by its checksum; malice that keeps to every rule is wisdom, with sound rows only."""
    tally = fuzz_wisdom(wisdom.render(exchange.from_store(kept)).encode(), 10_000, seed=20)
    assert (tally.attempts, tally.wrong, tally.executed) == (10_000, [], [])
    assert tally.refused > 5000 and tally.taken > 50 and tally.longest < 5.0


@pytest.mark.slow
def test_thousands_of_mutations_of_a_store(kept: Store, tmp_path: Path) -> None:
    """Whatever a file holds, a reader and a writer go on, and rows are as they were written or not there."""
    kept.close()
    tally = fuzz_store(kept.path, 3000, seed=30, folder=tmp_path)
    assert (tally.attempts, tally.wrong, tally.executed) == (3000, [], [])
    assert tally.taken > 1500 and tally.written > 10 and tally.longest < 5.0


def test_what_reads_pickles_is_caught() -> None:
    tally = Tally()
    with tally.attempt():
        pickle.loads(pickle.dumps(Path))
    with tally.attempt():
        exec("")
    pickle.loads(pickle.dumps(Path))
    assert [each.split()[0] for each in tally.executed] == ["pickle.find_class", "compile", "exec"]


def test_files_of_the_former_columns_are_read(store: Store, tmp_path: Path, monkeypatch) -> None:
    store.register(HERE)
    store.put([row("a", 1e-3, weights=COLD)])
    with monkeypatch.context() as patch:
        patch.setattr(wisdom, "COLUMNS", wisdom.FORMER_COLUMNS)
        patch.setattr(wisdom, "ROW_RULES", {name: wisdom.ROW_RULES[name] for name in wisdom.FORMER_COLUMNS["rows"]})
        path = tmp_path / "former.json"
        path.write_text(wisdom.render(exchange.from_store(store)))
    assert '"kernels"' not in path.read_text()
    (known,) = wisdom.read(path)
    assert (known.candidate, known.weights) == ("a", COLD)
