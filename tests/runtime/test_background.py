"""What a run would rather have is compiled in the background, by one process that ends by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baselib.interpreter import python
from cpuconv.isa.table import current
from cpuconv.kernels.streams.fingerprint import FingerprintTile, fingerprint, sum_blocks
from cpuconv.runtime.code import at_hand, background, cache

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SECONDS = 30.0
RUN = """
import os, sys, time
from cpuconv.isa.table import current
from cpuconv.kernels.streams.fingerprint import FingerprintTile, fingerprint, sum_blocks
from cpuconv.runtime.code import at_hand, background
from cpuconv.runtime.code.cache import Statistics

tile = FingerprintTile(current().lanes)
kernels = {"sum_blocks": sum_blocks, "fingerprint": fingerprint}
for line in sys.stdin:
    asked = background.request([(kernels[name], tile) for name in line.split()])
    there = [at_hand.is_at_hand(kernel, tile) for kernel in kernels.values()]
    print(int(asked), background._requests._process, *map(int, there), Statistics.compiled, flush=True)
"""


class Asking:
    """A process that asks for kernels by name."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            python("-c", RUN),
            env={**os.environ, "CPUCONV_CACHE_DIR": str(folder), background.VARIABLE: "1", **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *names: str) -> list[int]:
        """Whether it is compiled in the background, by what process, which kernels are there, and how many were
        compiled here."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{' '.join(names)}\n")
        self._process.stdin.flush()
        return [int(word) for word in self._process.stdout.readline().split()]

    def end(self) -> None:
        self._process.communicate(timeout=SECONDS)

    def compiled(self, *names: str) -> bool:
        """Whether files of these kernels are there."""
        return all(any(self.folder.glob(f"kernels/*/*-fingerprint-{name.replace('_', '-')}-*.o")) for name in names)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Callable[..., Asking]]:
    made: list[Asking] = []

    def start(**environ: str) -> Asking:
        made.append(Asking(tmp_path, **environ))
        return made[-1]

    yield start
    for each in made:
        each.end()
    for process in _alive(tmp_path):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


def _alive(folder: Path) -> list[int]:
    """Processes that compile in the background for a cache folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words, environ = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
            if background.__name__.encode() in words and f"CPUCONV_CACHE_DIR={folder}\0".encode() in environ:
                found.append(int(place.name))
    return found


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_is_asked_for_is_compiled_and_the_process_ends(asking, tmp_path):
    one = asking()
    yes, process, *there = one.ask("sum_blocks")
    assert yes and process > 0 and there == [0, 0, 0]
    until(lambda: one.compiled("sum_blocks"))
    assert one.ask("fingerprint") == [1, process, 1, 0, 0], "the same process; what it compiled is there for this one"
    until(lambda: one.compiled("fingerprint"))
    assert os.getpriority(os.PRIO_PROCESS, process) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    one.end()
    until(lambda: not _alive(tmp_path))


def test_two_processes_start_one(asking, tmp_path):
    one, two = asking(), asking()
    _, first, *_ = one.ask("sum_blocks")
    yes, second, *_ = two.ask("fingerprint")
    assert yes and first > 0 and second == -1
    assert _alive(tmp_path) == [first]
    os.kill(first, signal.SIGKILL)
    until(lambda: two.ask()[1] > 0 or two.ask("sum_blocks")[1] > 0)
    until(lambda: two.compiled("fingerprint"))


def test_one_that_is_killed_loses_nothing(asking):
    one = asking()
    _, first, *_ = one.ask("sum_blocks", "fingerprint")
    os.kill(first, signal.SIGKILL)
    until(lambda: one.ask("sum_blocks", "fingerprint")[1] not in (first, -1))
    until(lambda: one.compiled("sum_blocks", "fingerprint"))
    assert one.ask()[2:] == [1, 1, 0]


def test_none_is_started_where_that_is_turned_off(asking, tmp_path):
    one = asking(**{background.VARIABLE: "0"})
    assert one.ask("sum_blocks") == [0, -1, 0, 0, 0]
    assert not _alive(tmp_path)


def test_what_runs_is_what_was_asked_for_without_a_folder_of_the_user(asking, tmp_path, monkeypatch):
    """Nothing is imported from the current folder."""
    (tmp_path / "numba.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(tmp_path)
    one = asking(PYTHONSAFEPATH="", PYTHONPATH="")
    one.ask("sum_blocks")
    until(lambda: one.compiled("sum_blocks"))
    assert not (tmp_path / "imported").exists()


def test_a_child_asks_for_nothing(monkeypatch):
    monkeypatch.setenv(background.VARIABLE, "1")
    asking = background._Requests()
    monkeypatch.setattr(asking, "_start", lambda: pytest.fail("started"))
    monkeypatch.setattr(asking, "_owner", os.getppid())
    assert not asking.request([(sum_blocks, FingerprintTile(current().lanes))])


def test_nothing_is_asked_for_at_the_end(monkeypatch):
    monkeypatch.setenv(background.VARIABLE, "1")
    asking = background._Requests()
    monkeypatch.setattr(asking, "_start", lambda: pytest.fail("started"))
    asking.end()
    assert not asking.request([(sum_blocks, FingerprintTile(current().lanes))])


def test_whether_a_kernel_is_at_hand_compiles_nothing():
    tile = FingerprintTile(current().lanes)
    before = cache.Statistics.compiled
    known = at_hand.is_at_hand(fingerprint, tile)
    assert cache.Statistics.compiled == before and isinstance(known, bool)
    fingerprint.entry(tile)
    assert at_hand.is_at_hand(fingerprint, tile) and not at_hand.missing([(fingerprint, tile)])


def test_the_first_of_options_at_hand_is_taken_where_that_is_preferred(monkeypatch):
    monkeypatch.setattr(at_hand, "missing", lambda kernels: [each for each in kernels if each[1] % 3])

    def kernels(option: int) -> list[tuple[object, int]]:
        return [(None, option)]

    assert at_hand.first([4, 6, 9], kernels) == 4
    with at_hand.preferred(False):
        assert at_hand.first([4, 6, 9], kernels) == 4
    with at_hand.preferred():
        assert at_hand.first([4, 6, 9], kernels) == 6
        assert at_hand.first([4, 5, 7], kernels) == 4
        assert at_hand.first([3, 6], kernels) == 3
