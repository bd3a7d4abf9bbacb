"""Kernels at hand: in memory, in the user's cache folder or in a pack. Queries load and compile nothing.

Where a run must not wait for a compiler, a selection among kernels with bit-identical results prefers one at hand.
Files are identified by name alone: a missing or damaged one is recompiled when it is called.
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
from cpuconv.runtime.code.packs import active_pack

Found = TypeVar("Found")
_END = ".o"
_MAX_ASKED = 100  # max. options that are checked after the best one
_preferred: contextvars.ContextVar[bool] = contextvars.ContextVar("preferred", default=False)
name_of = functools.lru_cache(maxsize=2048)(cache.name_of)
"""File name of a kernel for a tile; empty if it has none."""


@contextlib.contextmanager
def preferred(wanted: bool = True) -> Iterator[None]:
    """Prefer kernels at hand in this thread's selections inside this context; `wanted` False changes nothing."""
    before = _preferred.set(wanted or _preferred.get())
    try:
        yield
    finally:
        _preferred.reset(before)


def is_preferred() -> bool:
    """Whether selections prefer kernels at hand."""
    return _preferred.get()


def is_at_hand(kernel: Any, tile: Any) -> bool:
    """Whether requesting `tile` from a `Kernel` or `MicroKernel` compiles nothing."""
    name = name_of(kernel, tile)
    return bool(name) and is_named_at_hand(name)


def is_named_at_hand(name: str) -> bool:
    """Whether the kernel with this file name is at hand."""
    return cache.is_in_memory(name) or f"{name}{_END}" in files() or active_pack.has(name)


def missing(wanted: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the kernels, with tiles, that would have to be compiled, without duplicates."""
    return list({name_of(*each): each for each in wanted if not is_at_hand(*each)}.values())


def first(options: Iterable[Found], kernels: Callable[[Found], Iterable[tuple[Any, Any]]]) -> Found:
    """Return the first of some options with bit-identical results, sorted from the best one.

    Where kernels at hand are preferred, return the first option whose `kernels` are all at hand, if there is one.
    """
    options = iter(options)
    best = next(options)
    if not is_preferred() or not missing(kernels(best)):
        return best
    others = itertools.islice(options, _MAX_ASKED)
    return next((each for each in others if not missing(kernels(each))), best)


def files() -> frozenset[str]:
    """Return the names of all files in the kernel folder."""
    path = kernel_files.folder().path
    return frozenset() if path is None else _listed(os.fspath(path), _changed(path))


def among(names: Iterable[str]) -> set[str]:
    """Return the names, out of `names` of kernel files, whose kernels are at hand."""
    there, names = files(), list(names)
    found = {each for each in names if f"{each}{_END}" in there}
    if active_pack.is_any_active():
        found.update(filter(active_pack.has, names))
    if not there:  # with a folder, kernels in memory are also on disk
        found.update(filter(cache.is_in_memory, names))
    return found


def state() -> tuple[int, int, bool]:
    """Return a value that changes when more kernels are at hand."""
    path = kernel_files.folder().path
    return 0 if path is None else _changed(path), cache.Statistics.compiled, active_pack.is_any_active()


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
