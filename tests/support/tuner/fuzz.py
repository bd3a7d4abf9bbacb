"""Damaged and hostile files: wisdom and stores with random changes of bytes, values and names.

A wisdom file is attacked in two ways: by damage, which its checksum detects, and by changes with a valid checksum.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.store.rows import Row
from autotune.store.store import Store
from autotune.wisdom import document as wisdom
from autotune.wisdom import exchange
from autotune.wisdom.document import Wisdom, WisdomError
from support.damage.mutations import change, damaged

EXECUTIONS = ("exec", "compile", "import", "marshal", "pickle", "subprocess", "os.system", "os.exec", "os.spawn")
PAGE = 4096
_BEFORE = 32  # readings of the intact file first, so that late imports and compilations are done
WRITTEN = 250  # every n-th damaged store is also written to …
WRITTEN_ROW = Row("device", "problem", "written", "sources", "ok", median=1e-3, score=1e-3)  # … with this

Done = Callable[[], object]


@dataclass
class Tally:
    """Results of the readings.

    Attributes
    ----------
    attempts, refused, taken : int
        Numbers of files; a store with rows is "taken", one without is "refused".
    written : int
        Stores that accepted a row.
    longest : float
        Seconds of the longest attempt.
    executed : list[str]
        Forbidden executions by a reader.
    wrong : list[str]
        Wrong content that was read.
    """

    attempts: int = 0
    refused: int = 0
    taken: int = 0
    written: int = 0
    longest: float = 0.0
    executed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Count and watch one attempt."""
        self.attempts += 1
        begun = time.perf_counter()
        with _watched(self.executed):
            yield
        self.longest = max(self.longest, time.perf_counter() - begun)


def signed(told: object) -> bytes:
    """Return the file with a valid checksum, as an attacker would write it."""
    if not isinstance(told, dict):
        return json.dumps(told).encode()
    return json.dumps({**told, "sha256": wisdom.digest(told)}).encode()


def fuzz_wisdom(
    content: bytes, count: int, seed: int, look: Callable[[bytes, Wisdom], str | None] | None = None, done: Done = int
) -> Tally:
    """Read a file of wisdom with `count` changes, one at a time.

    Parameters
    ----------
    look : Callable[[bytes, Wisdom], str | None] | None
        Function of the file and the wisdom read from it; returns what is wrong, or None.
    """
    rng, tally, told = random.Random(seed), Tally(), json.loads(content)
    for _ in range(_BEFORE):
        wisdom.parse(content)
    for number in range(count):
        damage = number % 2 == 1
        attempt = damaged(content, rng) if damage else signed(mutated(told, rng))
        found = None
        with tally.attempt(), contextlib.suppress(WisdomError):
            found = wisdom.parse(attempt)
        done()
        if found is None:
            tally.refused += 1
            continue
        tally.taken += 1
        if not all(row.is_sound() and row.candidate.isprintable() and row.device in found.devices for row in found):
            tally.wrong.append(f"number {number} has rows that no tuner writes")
        if damage and json.loads(attempt) != told:  # a change of white space does not count
            tally.wrong.append(f"number {number} is damaged and was taken")
        if look is not None and (trouble := look(attempt, found)):
            tally.wrong.append(f"number {number}: {trouble}")
    return tally


def fuzz_store(path: Path, count: int, seed: int, folder: Path, done: Done = int) -> Tally:
    """Read a store with `count` changes of its bytes, one at a time, and sometimes write to it.

    Whatever the file contains, reader and writer must not fail, and a row must be as it was written or be missing.
    """
    rng, tally = random.Random(seed), Tally()
    with Store(path, read_only=True) as store:
        known = {repr(row) for row in exchange.from_store(store)}
        problems = sorted({(key, *each) for key in store.devices() for each in store.tuned(key)})
    content = path.read_bytes()
    pages = [at for at in range(0, len(content), PAGE) if content[at : at + PAGE].strip(b"\0")]
    attempt = folder / "mutated.sqlite"
    attempt.write_bytes(content)
    for _ in range(_BEFORE):
        _read(attempt, problems, thorough=True)
        _write(attempt)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            attempt.write_bytes(_broken(content, pages, rng, cut=number % 50 == 0))
            with tally.attempt():
                found = _read(attempt, problems, thorough=number % 10 == 0)
                back = _write(attempt) if number % WRITTEN == 0 else []
            tally.written += bool(back)
            # In a tree with a damaged order a row may not be found again, but must not be another one.
            if not {row.candidate for row in back} <= {WRITTEN_ROW.candidate}:
                tally.wrong.append(f"number {number} gives back what was not written")
            if not known.issuperset(map(repr, found)):
                tally.wrong.append(f"number {number} has rows that nobody wrote")
            tally.taken += bool(found)
            tally.refused += not found
            for left in folder.glob("mutated*"):
                left.unlink()
            done()
    return tally


def mutated(told: Any, rng: random.Random) -> Any:
    """Return a copy with one value, name or place changed."""
    copied = copy.deepcopy(told)
    if isinstance(copied, (dict, list)):
        change(copied, rng)
    return copied


def _broken(content: bytes, pages: list[int], rng: random.Random, cut: bool) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        changed[rng.choice(pages) + rng.randrange(PAGE)] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed))] if cut else changed)


def _read(path: Path, problems: list[tuple[str, str, str]], thorough: bool) -> list[Row]:
    with Store(path, read_only=True) as reader:
        found = [row for problem in problems for row in reader.rows(*problem)]
        if thorough:
            reader.health(), reader.devices()
            for device, key, _ in problems:
                reader.missed(device), reader.problems(device), reader.finished(device), reader.seeds(key)
    return found


def _write(path: Path) -> list[Row]:
    with Store(path) as writer:
        writer.put([WRITTEN_ROW])
        return writer.rows(WRITTEN_ROW.device, WRITTEN_ROW.problem)


_watching: list[list[str]] = []


@contextlib.contextmanager
def _watched(executed: list[str]) -> Iterator[None]:
    """Record the interpreter's executions, imports and unpickling within the context."""
    _watch_for_good()
    _watching.append(executed)
    try:
        yield
    finally:
        _watching.pop()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event.startswith(EXECUTIONS):
        _watching[-1].append(f"{event} {arguments!r:.200}")


@functools.cache
def _watch_for_good() -> None:
    sys.addaudithook(_watch)  # cannot be removed
