"""Many kernels that are nowhere on disk are compiled by several processes at a time.

LLVM compiles one function at a time in a process. Where a network lacks many kernels, helper processes of this
interpreter compile some of them into the user's cache. A lock of a kernel's file shows that a process compiles it; the
others skip it. Helpers compile drivers first, this process micro-kernels. Without helpers, or when one fails, compiling
only takes longer.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from autotune.interpreter import python_main, starts_again
from autotune.machine.cores import allowed_cores
from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.cache import NotCompiled, Statistics, compiling_nothing
from cpuconv.runtime.code.llvm import imported
from cpuconv.runtime.code.packs import serving
from cpuconv.runtime.code.sources.stamp import known_syntaxes
from cpuconv.runtime.target import target

VARIABLE = "CPUCONV_COMPILERS"  # processes that compile at a time, this one counted; 1: no others
MOST = 8
EACH = 8  # kernels that are worth a helper, which takes a second to start
_MOST_EARLY = 3  # helpers that start before anybody knows how many kernels are missing
LOAD = Path("/proc/loadavg")  # its fourth word: how many threads run now, of how many
_HELP_SECONDS = 120.0  # of a helper, before it is given up

Made = TypeVar("Made")
Wanted = tuple[Any, Any]
"""A `Kernel`, a `MicroKernel`, or what is asked for as they are, and a tile."""


def compiled_together(wanted: Iterable[Wanted]) -> None:
    """Have these kernels on disk, or in memory, before they are asked for one after the other."""
    lacking = _lacking(wanted)
    helpers = _early.get()
    if helpers is None:
        helpers = []
    if not helpers and len(lacking) < EACH:  # how many cores are idle is told by files
        return
    count = min(_processes() - 1, len(lacking) // EACH)
    if not (helpers or count) or not _can_help():
        return
    try:
        _start(helpers, count)
        _give(helpers, [each for each, _ in lacking])
        for (kernel, tile), file in sorted(lacking, key=lambda each: _is_driver(each[0][0])):
            if not file.is_begun():
                kernel.entry(tile)
        for each in helpers:
            each.finish()
    finally:
        while helpers:
            helpers.pop().end()


def with_kernels(wanted: Callable[[], Iterable[Wanted]], make: Callable[[], Made]) -> Made:
    """What `make` makes; where kernels that it asks for are missing, all `wanted` are compiled together before."""
    try:
        with compiling_nothing(noting=True):
            return make()
    except NotCompiled:
        compiled_together(wanted())
        return make()


def _lacking(wanted: Iterable[Wanted]) -> list[tuple[Wanted, kernel_files.KernelFile]]:
    """What must be compiled, each once, with its file."""
    found: dict[str, tuple[Wanted, kernel_files.KernelFile]] = {}
    with compiling_nothing():
        for kernel, tile in wanted:
            try:
                kernel.entry(tile)
            except NotCompiled as error:
                found.setdefault(error.file.name, ((kernel, tile), error.file))
    return list(found.values())


def _processes() -> int:
    """How many compile at a time; where none are stated, as idle cores are, because all wait for the last one."""
    stated = os.environ.get(VARIABLE, "")
    return min(MOST, int(stated) if stated.isdecimal() else min(allowed_cores(), 1 + _idle_cores()))


def _idle_cores() -> int:
    """Number of idle cores now, without this thread's own. The mean load of a minute counts processes that ended."""
    try:
        others = int(LOAD.read_text().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        others = round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
    return max(0, (os.cpu_count() or 1) - 1 - others)


def _can_help() -> bool:
    """Whether files tell of kernels, and this interpreter can be started again: not where it is inside a program."""
    place = kernel_files.folder()
    return starts_again() and place.path is not None and not place.trouble


def _is_driver(kernel: Any) -> bool:
    return hasattr(kernel, "fields")


class _Helper:
    """A process that compiles what it is given."""

    def __init__(self, number: int) -> None:
        import subprocess  # takes 5 ms

        command = python_main(__name__, repr(target()), str(number))
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null)

    def give(self, tasks: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: nothing is lost but its help
            self._process.stdin.write(tasks)
            self._process.stdin.flush()

    def finish(self) -> None:
        """Wait until it is done."""
        import subprocess

        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_HELP_SECONDS)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()


_early: contextvars.ContextVar[list[_Helper] | None] = contextvars.ContextVar("early", default=None)


@contextlib.contextmanager
def expecting(usual: Callable[[], Sequence[Wanted]] = list) -> Iterator[None]:
    """Where nothing is on disk, start helpers before it is known what they shall compile; they begin with `usual()`."""
    helpers: list[_Helper] = []
    before = _early.set(helpers)
    try:
        if nothing_is_there() and (count := min(_processes() - 1, _MOST_EARLY)) and _can_help():
            _start(helpers, count)
            _give(helpers, usual())
        yield
    finally:
        _early.reset(before)
        for each in helpers:
            each.end()


def nothing_is_there() -> bool:
    """Whether no kernel is on disk, neither in the cache folder nor in a pack; so it is where there is no folder, too,
    but then nothing can be put there: False."""
    if Statistics.compiled or Statistics.loaded:
        return False
    place = kernel_files.folder().path
    try:
        return place is not None and not serving.any_serves() and not any(place.glob("*.o"))
    except OSError:  # a folder that may not be entered: nothing can be put there, either
        return False


def _start(helpers: list[_Helper], count: int) -> None:
    with contextlib.suppress(OSError):  # no more processes
        while len(helpers) < count:
            helpers.append(_Helper(len(helpers)))


def _give(helpers: Sequence[_Helper], wanted: Sequence[Wanted]) -> None:
    tasks = pickle.dumps((len(helpers), [(kernel.module, kernel.name, tile) for kernel, tile in wanted]))
    for each in helpers:
        each.give(tasks)


def main(asked: str, number: str) -> None:
    """A helper: compile what nobody has begun, each helper from another place on; drivers first."""
    warnings.simplefilter("ignore")
    if repr(target()) != asked:  # chosen in the program, not by variables
        return
    _prepare()  # while there is nothing to do
    with contextlib.suppress(EOFError):
        while True:
            count, tasks = pickle.load(sys.stdin.buffer)
            known = [(found(module, name), tile) for module, name, tile in tasks]
            _help([each for each in known if each[0] is not None], int(number) / count)


def _prepare() -> None:
    """Import llvmlite, and read the sources of kernels."""
    imported()
    known_syntaxes()


def _help(wanted: Sequence[Wanted], share: float) -> None:
    drivers = [each for each in wanted if _is_driver(each[0])]
    micro = [each for each in reversed(wanted) if not _is_driver(each[0])]
    for each in (drivers, micro):
        start = int(len(each) * share)
        for kernel, tile in (*each[start:], *each[:start]):
            try:
                with compiling_nothing():
                    kernel.entry(tile)
            except NotCompiled as error:
                if not error.file.is_begun():
                    kernel.entry(tile)


def found(module: str, name: str) -> Any:
    """A kernel by its name, which is that of an attribute of its module."""
    found = getattr(importlib.import_module(module), name.removeprefix(f"{module}."), None)
    return found if getattr(found, "name", None) == name else None
