"""Thread counts and the thread pool.

Threads are our own (`runtime.thread_pool`) where the system supports them, unless NUMBA_THREADING_LAYER names one of
Numba's layers; a child of `fork` starts new ones. Of Numba's layers, `omp` and `tbb` accept concurrent calls from
several Python threads. `workqueue` kills the process then, so launches on it take a lock. After `fork` a child cannot
use the pool of a layer: it runs serially, with one warning.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from autotune.machine.cores import allowed_cores
from baselib.locks import Lock
from baselib.signals import signals_blocked
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, must
from cpuconv.runtime import thread_pool
from cpuconv.runtime.thread_pool import Helpers

_MODULES = {"omp": "omppool", "tbb": "tbbpool", "workqueue": "workqueue"}
AUTO = "auto"  # use the fastest thread count per shape
_count: int | str | None = None
_forked = False
_warned = False
_told_of_cores = False


@functools.lru_cache(maxsize=1)
def maximum_threads() -> int:
    """Return the max. threads of a program: cores allowed by affinity and quota, and Numba's own limit."""
    return max(1, min(allowed_cores(), int(_setting("NUMBA_NUM_THREADS", "NUMBA_NUM_THREADS", allowed_cores()))))


def _setting(name: str, variable: str, default: Any) -> Any:
    """Return a setting of Numba, which a program may have changed; its variable if Numba is not imported."""
    config = getattr(sys.modules.get("numba"), "config", None)
    return getattr(config, name, None) or os.environ.get(variable) or default


def get_num_threads() -> int | str:
    """Return the number of threads that `conv2d` and `plan` use by default.

    Returns
    -------
    int or str
        "auto": the fastest number per shape.
    """
    return _count if _count is not None else maximum_threads()


def set_num_threads(n: int | str) -> None:
    """Set the default number of threads.

    Parameters
    ----------
    n : int or "auto"
        At least 1. The maximum is the number of cores that this process may use: the cores of its affinity, and at most
        the whole cores of a control group's quota (a quota of 1.5 cores: one). Larger values are clamped, with one
        warning per process.

    Raises
    ------
    ArgumentTypeError
        `n` is neither an integer nor "auto".
    ArgumentError
        `n` is below 1.

    Warns
    -----
    CpuconvWarning
        `n` is more than the cores that this process may use.
    """
    global _count
    _count = wanted_threads(n, "n")


def wanted_threads(n: int | str | None, name: str = "threads") -> int | str:
    """Validate a user's number of threads or "auto"; None gives the default."""
    if n is None:
        return get_num_threads()
    return AUTO if isinstance(n, str) and n == AUTO else check_threads(n, name, "an integer, 'auto' or None")


def check_threads(n: int | str | None, name: str = "threads", kinds: str = "an integer or None") -> int:
    """Validate a user's thread count; None gives the default, or the maximum if the default is "auto"."""
    if n is None:
        return maximum_threads() if _count in (None, AUTO) else int(_count)
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise ArgumentTypeError(must(name, kinds, repr(n)))
    if int(n) < 1:
        raise ArgumentError(must(name, "1 or more", repr(n)))
    return int(n) if int(n) <= maximum_threads() else _clamped(int(n))


def _clamped(count: int) -> int:
    """Return the max. thread count, with one warning per process."""
    global _told_of_cores
    most = maximum_threads()
    if not _told_of_cores:
        _told_of_cores = True
        warnings.warn(
            f"{count} threads are more than the cores this process may use: {most} run instead",
            CpuconvWarning,
            stacklevel=_callers(),
        )
    return most


_WITHIN = ("cpuconv", "contextlib")  # packages whose frames do not belong to the calling program


def _callers() -> int:
    """Return the `stacklevel` with which a warning by the caller names the program's call of the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _WITHIN:
        frame, level = frame.f_back, level + 1
    return level


class _Layer:
    """The pool of Numba's threading layer."""

    address = 0

    def __init__(self) -> None:
        import numba
        from numba.np.ufunc import parallel

        parallel._launch_threads()
        self.layer = numba.threading_layer()
        module = importlib.import_module(f"numba.np.ufunc.{_MODULES[self.layer]}")
        self.parallel_for: int = module.parallel_for
        # Reentrant: a signal handler may call in the middle of its thread's call, when the layer's own call has ended.
        self.guard = threading.RLock() if self.layer == "workqueue" else contextlib.nullcontext()
        self._start_all()

    def _start_all(self) -> None:
        """Run one task per thread of the layer, as some layers start threads on demand."""
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        body = ctypes.CFUNCTYPE(None, *[pointer] * 4)(lambda *_: None)
        words = [(size * 1)(value) for value in (0, maximum_threads(), 1)]  # start, count, step
        kind = ctypes.CFUNCTYPE(None, *[pointer] * 5, size, size, ctypes.c_int)
        kind(self.parallel_for)(body, *map(ctypes.addressof, words), None, 0, 1, maximum_threads())


_pool: Helpers | _Layer | None = None
_own = threading.local()  # `pool`: a _StreamPool; `cores`: a tuple of cores
_unended: list[Helpers] = []  # of ended streams; their threads may still read the board
_starting = Lock(brief=False)


def pool() -> Helpers | _Layer:
    """Return the threads that help callers, or those of this thread alone (`restrict`); they start at first use."""
    global _pool
    if (own := getattr(_own, "pool", None)) is not None:
        found: Helpers = own.helpers()
        return found
    if _pool is None:
        with _starting:
            if _pool is None:
                with signals_blocked():
                    _pool = Helpers(maximum_threads() - 1) if has_own_threads() else _Layer()
    return _pool


class _StreamPool:
    """Threads that help one thread alone, and end with it."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._helpers: Helpers | None = None
        self._process = 0

    def helpers(self) -> Helpers:
        if self._helpers is None:
            with signals_blocked():  # the threads inherit the affinity of this thread
                self._helpers, self._process = Helpers(self._threads), os.getpid()
        return self._helpers

    def __del__(self) -> None:
        if self._helpers is None or self._process != os.getpid():  # a child of fork has no such threads
            return
        atexit.unregister(self._helpers.close)
        if not self._helpers.close(self._process):
            _unended.append(self._helpers)


def restrict(cores: Sequence[int], threads: int) -> None:
    """Keep this thread on some cores, with helping threads of its own on the same cores: `threads`, this one included.

    There are no more threads than cores. Without effect where the system does not allow it.
    """
    try:
        os.sched_setaffinity(0, cores)  # of this thread
    except OSError:  # the process's own set changed meanwhile
        return
    _own.cores = tuple(cores)
    if has_own_threads():
        _own.pool = _StreamPool(min(len(cores), threads) - 1)


def pinned_cores() -> tuple[int, ...]:
    """Return the cores that `restrict` keeps this thread on; empty: it may run anywhere."""
    cores: tuple[int, ...] = getattr(_own, "cores", ())
    return cores


def has_own_threads() -> bool:
    """Whether the threads that help callers are cpuconv's own, not those of a layer of Numba."""
    return _setting("THREADING_LAYER", "NUMBA_THREADING_LAYER", "default") == "default" and thread_pool.available()


def usable_threads(wanted: int) -> int:
    """Return `wanted`, or 1 in a child of `fork` (with one warning)."""
    global _warned
    if wanted == 1 or not _forked:
        return wanted
    if not _warned:
        _warned = True
        warnings.warn(
            "this process was forked after cpuconv had started its threads: convolutions run on one thread here "
            "(use the 'spawn' start method to keep them)",
            CpuconvWarning,
            stacklevel=3,
        )
    return 1


def _after_fork_in_child() -> None:
    global _forked, _pool
    _own.__dict__.clear()
    if isinstance(_pool, Helpers):
        _pool = None
    _forked = _pool is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
