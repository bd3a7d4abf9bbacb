"""Which kernels are at hand: in memory, in the user's cache or in a pack. To ask loads and compiles nothing.

Where a run must not wait for a compiler, a choice between kernels that give the same bits takes one that is at hand.
Files are told by their names alone: one that goes, or is damaged, is compiled again when it is called.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from cpuconv.runtime.code import cache, kernel_files
from cpuconv.runtime.code.packs import serving

Found = TypeVar("Found")
_END = ".o"
_MOST_ASKED = 100  # options
_preferred: contextvars.ContextVar[bool] = contextvars.ContextVar("preferred", default=False)
name_of = functools.lru_cache(maxsize=2048)(cache.name_of)
"""The name of a kernel's file for a tile; empty if it has none."""


@contextlib.contextmanager
def preferred(wanted: bool = True) -> Iterator[None]:
    """Let choices of this thread take kernels at hand meanwhile; `wanted` false: as they did before."""
    before = _preferred.set(wanted or _preferred.get())
    try:
        yield
    finally:
        _preferred.reset(before)


def is_preferred() -> bool:
    """Whether choices take kernels at hand."""
    return _preferred.get()


def is_at_hand(kernel: Any, tile: Any) -> bool:
    """Whether nothing is compiled when a `Kernel` or `MicroKernel` is asked for `tile`."""
    name = name_of(kernel, tile)
    return bool(name) and is_named_at_hand(name)


def is_named_at_hand(name: str) -> bool:
    """The same by the name of the kernel's file."""
    return cache.is_in_memory(name) or f"{name}{_END}" in files() or serving.has(name)


def missing(wanted: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The kernels, with tiles, that would be compiled, each once."""
    return list({name_of(*each): each for each in wanted if not is_at_hand(*each)}.values())


def first(options: Iterable[Found], kernels: Callable[[Found], Iterable[tuple[Any, Any]]]) -> Found:
    """The first of some options, best first, that give the same bits; where kernels at hand are preferred, the first
    one whose `kernels` are, if there is one."""
    options = iter(options)
    best = next(options)
    if not is_preferred() or not missing(kernels(best)):
        return best
    others = itertools.islice(options, _MOST_ASKED)
    return next((each for each in others if not missing(kernels(each))), best)


def files() -> frozenset[str]:
    """The names of all files in the folder of kernels."""
    path = kernel_files.folder().path
    return frozenset() if path is None else _listed(os.fspath(path), _changed(path))


def among(names: Iterable[str]) -> set[str]:
    """Those of some names of kernels' files that are at hand."""
    there, names = files(), list(names)
    found = {each for each in names if f"{each}{_END}" in there}
    if serving.any_serves():
        found.update(filter(serving.has, names))
    if not there:  # what is in memory is on disk, too, where there is a folder
        found.update(filter(cache.is_in_memory, names))
    return found


def state() -> tuple[int, int, bool]:
    """What changes when more kernels are at hand."""
    path = kernel_files.folder().path
    return 0 if path is None else _changed(path), cache.Statistics.compiled, serving.any_serves()


def _changed(path: os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=1)
def _listed(path: str, changed: int) -> frozenset[str]:
    try:
        return frozenset(os.listdir(path))
    except OSError:
        return frozenset()
