"""Parallel compilation of many missing kernels by several processes.

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

from autotune.machine.cores import allowed_cores
from baselib.interpreter import python_main, starts_again
from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.cache import NotCompiled, Statistics, without_compiling
from cpuconv.runtime.code.llvm import imported
from cpuconv.runtime.code.packs import active_pack
from cpuconv.runtime.code.sources.stamp import known_syntaxes
from cpuconv.runtime.target import target

VARIABLE = "CPUCONV_COMPILERS"  # number of compiling processes, including this one; 1: no helpers
MAX_PROCESSES = 8
MIN_KERNELS_PER_HELPER = 8  # min. missing kernels per helper, which takes 1 s to start
_MAX_EARLY_HELPERS = 3  # max. helpers that start before the number of missing kernels is known
LOAD = Path("/proc/loadavg")  # its fourth field: running threads / all threads
_HELP_SECONDS = 120.0  # time limit of a helper

Made = TypeVar("Made")
Wanted = tuple[Any, Any]
"""A `Kernel`, a `MicroKernel` or an object with their interface, and a tile."""


def compile_in_parallel(wanted: Iterable[Wanted]) -> None:
    """Compile kernels in parallel, so that they are on disk or in memory before they are requested one by one."""
    missing = _missing(wanted)
    helpers = _early.get()
    if helpers is None:
        helpers = []
    if not helpers and len(missing) < MIN_KERNELS_PER_HELPER:  # checked first, as counting idle cores reads a file
        return
    count = min(_processes() - 1, len(missing) // MIN_KERNELS_PER_HELPER)
    if not (helpers or count) or not _can_start_helpers():
        return
    try:
        _start(helpers, count)
        _send(helpers, [each for each, _ in missing])
        for (kernel, tile), file in sorted(missing, key=lambda each: _is_driver(each[0][0])):
            if not file.is_begun():
                kernel.entry(tile)
        for each in helpers:
            each.finish()
    finally:
        while helpers:
            helpers.pop().end()


def with_kernels(wanted: Callable[[], Iterable[Wanted]], make: Callable[[], Made]) -> Made:
    """Return the result of `make`; if it lacks kernels, compile all `wanted` in parallel first."""
    try:
        with without_compiling(record=True):
            return make()
    except NotCompiled:
        compile_in_parallel(wanted())
        return make()


def _missing(wanted: Iterable[Wanted]) -> list[tuple[Wanted, kernel_files.KernelFile]]:
    """Return the kernels that must be compiled, without duplicates, with their files."""
    found: dict[str, tuple[Wanted, kernel_files.KernelFile]] = {}
    with without_compiling():
        for kernel, tile in wanted:
            try:
                kernel.entry(tile)
            except NotCompiled as error:
                found.setdefault(error.file.name, ((kernel, tile), error.file))
    return list(found.values())


def _processes() -> int:
    """Return the number of compiling processes; by default 1 + idle cores, as a run waits for the slowest process."""
    stated = os.environ.get(VARIABLE, "")
    return min(MAX_PROCESSES, int(stated) if stated.isdecimal() else min(allowed_cores(), 1 + _idle_cores()))


def _idle_cores() -> int:
    """Number of idle cores now, without this thread's own. The mean load of a minute counts processes that ended."""
    try:
        others = int(LOAD.read_text().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        others = round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
    return max(0, (os.cpu_count() or 1) - 1 - others)


def _can_start_helpers() -> bool:
    """Whether kernels are cached on disk, and this interpreter can be started again (not if embedded)."""
    place = kernel_files.folder()
    return starts_again() and place.path is not None and not place.trouble


def _is_driver(kernel: Any) -> bool:
    return hasattr(kernel, "fields")


class _Helper:
    """A process that compiles the kernels it is sent."""

    def __init__(self, number: int) -> None:
        import subprocess  # the import takes 5 ms

        command = python_main(__name__, repr(target()), str(number))
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null)

    def send(self, tasks: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the helper has ended: this process compiles its share
            self._process.stdin.write(tasks)
            self._process.stdin.flush()

    def finish(self) -> None:
        """Wait until the helper is done."""
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
def early_helpers(usual: Callable[[], Sequence[Wanted]] = list) -> Iterator[None]:
    """If no kernel is on disk, start helpers before the missing kernels are known; they begin with `usual()`."""
    helpers: list[_Helper] = []
    before = _early.set(helpers)
    try:
        if is_cache_empty() and (count := min(_processes() - 1, _MAX_EARLY_HELPERS)) and _can_start_helpers():
            _start(helpers, count)
            _send(helpers, usual())
        yield
    finally:
        _early.reset(before)
        for each in helpers:
            each.end()


def is_cache_empty() -> bool:
    """Whether no kernel is on disk, neither in the cache folder nor in a pack. False without a cache folder, as
    kernels cannot be stored then."""
    if Statistics.compiled or Statistics.loaded:
        return False
    place = kernel_files.folder().path
    try:
        return place is not None and not active_pack.is_any_active() and not any(place.glob("*.o"))
    except OSError:  # the folder is not accessible, so kernels cannot be stored
        return False


def _start(helpers: list[_Helper], count: int) -> None:
    with contextlib.suppress(OSError):  # no more processes can be started
        while len(helpers) < count:
            helpers.append(_Helper(len(helpers)))


def _send(helpers: Sequence[_Helper], wanted: Sequence[Wanted]) -> None:
    tasks = pickle.dumps((len(helpers), [(kernel.module, kernel.name, tile) for kernel, tile in wanted]))
    for each in helpers:
        each.send(tasks)


def main(expected_target: str, number: str) -> None:
    """Run a helper: compile kernels that no process has begun, drivers first, from a start that differs per helper."""
    warnings.simplefilter("ignore")
    if repr(target()) != expected_target:  # the program set its target by calls, not by environment variables
        return
    _prepare()  # while there are no tasks
    with contextlib.suppress(EOFError):
        while True:
            count, tasks = pickle.load(sys.stdin.buffer)
            known = [(found(module, name), tile) for module, name, tile in tasks]
            _compile_share([each for each in known if each[0] is not None], int(number) / count)


def _prepare() -> None:
    """Import llvmlite, and read the sources of kernels."""
    imported()
    known_syntaxes()


def _compile_share(wanted: Sequence[Wanted], share: float) -> None:
    drivers = [each for each in wanted if _is_driver(each[0])]
    micro = [each for each in reversed(wanted) if not _is_driver(each[0])]
    for each in (drivers, micro):
        start = int(len(each) * share)
        for kernel, tile in (*each[start:], *each[:start]):
            try:
                with without_compiling():
                    kernel.entry(tile)
            except NotCompiled as error:
                if not error.file.is_begun():
                    kernel.entry(tile)


def found(module: str, name: str) -> Any:
    """Return a kernel by its name, which is that of an attribute of its module; None if there is none."""
    found = getattr(importlib.import_module(module), name.removeprefix(f"{module}."), None)
    return found if getattr(found, "name", None) == name else None
