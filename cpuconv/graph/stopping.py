"""Stopping a run on request: between kernels and between nodes that references compute, including those in a `Loop`."""

from __future__ import annotations

from collections.abc import Callable

from cpuconv.errors import RunStopped

Stop = Callable[[], object]
"""Called during a run, in the running thread; a true result stops the run."""


def check(stop: Stop | None) -> None:
    """Raise if a run is to stop.

    Raises
    ------
    RunStopped
        `stop` returned a true value.
    """
    if stop is not None and stop():
        raise RunStopped("The run was ended by its 'stop'; it gives no results.")
