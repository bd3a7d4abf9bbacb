"""Ending a run on request: between kernels, and between nodes that references compute, those in a `Loop` too."""

from __future__ import annotations

from collections.abc import Callable

from cpuconv.errors import RunStopped

Stop = Callable[[], object]
"""Asked while a network runs, from the thread that runs it: something true ends the run."""


def check(stop: Stop | None) -> None:
    """Go on, or end the run.

    Raises
    ------
    RunStopped
        `stop` says so.
    """
    if stop is not None and stop():
        raise RunStopped("The run was ended by its 'stop'; it gives no results.")
