"""The calls about what a process remembers and what is tuned beside it: caches, their limit, background tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpuconv.conv import session
from cpuconv.problem.integers import integer

if TYPE_CHECKING:
    from autotune.tuning.background import Background


def clear_cache() -> None:
    """Forget the plans and packed weights that `conv2d` remembers, and free workspaces; plans that you hold stay.

    Read-only weights are read again at their next call.
    """
    session.current.clear()


def set_cache_limit(limit: int) -> None:
    """Set how many bytes of plans and packed weights `conv2d` may remember.

    Parameters
    ----------
    limit : int
        Bytes, 0 or more; by default a quarter of the machine's memory, at most 2 GiB. What was used least recently is
        forgotten first.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `limit` is negative or no integer.
    """
    session.current.remembered.resize(integer(limit, "limit", 0))


def tune_in_background(effort: str = "quick") -> Background:
    """Start a process of low priority that tunes shapes which programs on this machine asked for and nobody tuned.

    It ends with this process, or by `.stop()`; a second call returns the one that runs. Calls of `conv2d` use what it
    finds within seconds, as do plans made later.

    Parameters
    ----------
    effort : "quick", "normal" or "exhaustive"
        Effort spent on a shape.

    Raises
    ------
    ValueError
        `effort` is another.
    OSError
        There is no cache folder that the process could share with this one.
    """
    global _background
    from autotune.paths import store_path
    from autotune.tuning.background import Background

    if _background is None or not _background.is_running():
        _background = Background("cpuconv.tuning.workload:workload", store_path(), effort)
    return _background


_background: Background | None = None
