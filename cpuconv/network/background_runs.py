"""Runs of a model in the background: futures, coroutines, and the number of streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from baselib.locks import Lock
from cpuconv.runtime.streams import Streams
from cpuconv.runtime.threads import maximum_threads

if TYPE_CHECKING:
    from concurrent.futures import Future


class BackgroundRuns:
    """Base class of `Model`, whose `run` and `threads` it uses."""

    run: Any
    threads: Any

    def __init__(self) -> None:
        self._starting = Lock()
        self._stated_streams: int | None = None
        self._background: Streams | None = None

    @property
    def streams(self) -> int:
        """Number of concurrent runs that occupy all cores, or that ``hint="throughput"`` selected."""
        return self._stated_streams or max(1, maximum_threads() // self.threads)

    def set_streams(self, count: int) -> None:
        """State the number of streams."""
        self._stated_streams = count

    def submit(self, feed: Mapping[str, Any]) -> Future[dict[str, np.ndarray]]:
        """Run the network in the background: in one of `streams` threads, after the runs submitted before.

        Parameters
        ----------
        feed : mapping of str to array
            As for `run`; do not write into the arrays until the run is done.

        Returns
        -------
        concurrent.futures.Future
            Its `result()` is the dict of outputs, or raises what `run` raises; `cancel()` works until the run begins.
        """
        with self._starting:
            if self._background is None:
                self._background = Streams(self.streams)
        return self._background.submit(self.run, feed)

    async def run_async(self, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the network in the background, as `submit` does, and return its outputs to a coroutine."""
        import asyncio  # deferred: takes 20 ms

        return await asyncio.wrap_future(self.submit(feed))
