"""Public calls for the caches of the process and for background tuning: clear, limit, tune."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpuconv.conv import session
from cpuconv.problem.integers import integer

if TYPE_CHECKING:
    from autotune.tuning.background import Background


def clear_cache() -> None:
    """Clear the plans and packed weights that `conv2d` caches, and free workspaces; plans that you own stay valid.

    Read-only weights are read again at their next call.
    """
    session.current.clear()


def set_cache_limit(limit: int) -> None:
    """Set the maximum size of the plans and packed weights that `conv2d` caches.

    Parameters
    ----------
    limit : int
        Size in bytes, 0 or more; by default a quarter of the machine's memory, at most 2 GiB. The least recently used
        entries are evicted first.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `limit` is negative or not an integer.
    """
    session.current.cache.resize(integer(limit, "limit", 0))


def tune_in_background(effort: str = "quick") -> Background:
    """Start a low-priority process that tunes the untuned shapes that programs on this machine have requested.

    It ends with this process, or by `.stop()`; a second call returns the running one. `conv2d` calls use its results
    within seconds, as do plans made later.

    Parameters
    ----------
    effort : "quick", "normal" or "exhaustive"
        Tuning effort per shape.

    Raises
    ------
    ValueError
        `effort` has another value.
    OSError
        There is no cache folder for sharing results between the two processes.
    """
    global _background
    from autotune.tuning.background import Background
    from baselib.paths import store_path

    if _background is None or not _background.is_running():
        _background = Background("cpuconv.tuning.workload:workload", store_path(), effort)
    return _background


_background: Background | None = None
