"""Runs of a model in other processes, each on cores of its own: for `cpuconv.map(..., workers=...)`."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from cpuconv.api.queue import Queue
from cpuconv.errors import CpuconvError
from cpuconv.network.model import Model
from cpuconv.runtime.streams import shares

_TRIES = 2  # processes that may end during a run of the same input

Outputs = dict[str, Any]


class ProcessQueue(Queue):
    """A queue whose runs are computed by processes; each thread of the queue waits for one process.

    Parameters
    ----------
    model : Model
        A model that can be pickled.
    workers : int
        Number of processes, each started at its first run; it makes the model again.
    pin : bool
        Whether each process stays on an equal part of this process's cores, where the system allows it.
    """

    def __init__(self, model: Model, workers: int, pin: bool) -> None:
        self._workers: list[_Worker] = []
        super().__init__(model, workers, pin=False)
        made = pickle.dumps(model)
        cores = sorted(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_setaffinity") else []
        self._workers = [_Worker(made, own) for own in shares(cores, self.streams)]
        for worker in self._workers:
            self._free.put(worker)

    def _begin(self) -> None:
        super()._begin()
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()  # new: in a child of `fork`, busy ones return too
        for worker in self._workers:
            worker.forget()
            self._free.put(worker)

    def close(self, cancel: bool = False) -> None:
        """Accept no more runs, wait for those submitted, and end the processes; with `cancel`, drop waiting runs."""
        super().close(cancel)
        for worker in self._workers:
            worker.close()

    def _run(self, feed: Mapping[str, Any]) -> Outputs:
        worker = self._free.get()
        try:
            return worker.run(feed)
        finally:
            self._free.put(worker)


class _Worker:
    """One process, which is replaced if it ends."""

    def __init__(self, made: bytes, cores: Sequence[int]) -> None:
        self._made, self._cores = made, cores
        self._process: ProcessPoolExecutor | None = None

    def run(self, feed: Mapping[str, Any]) -> Outputs:
        for _ in range(_TRIES):
            if self._process is None:
                context = multiprocessing.get_context("spawn")
                self._process = ProcessPoolExecutor(1, context, _begin, (self._made, self._cores))
            try:
                outputs: Outputs = self._process.submit(_run, feed).result()
            except BrokenProcessPool:
                self.close()
            else:
                return outputs
        raise CpuconvError(f"The worker process ended during this run, {_TRIES} times in a row.")

    def forget(self) -> None:
        """Start another process for the next run, and leave this one to the parent of `fork`, which owns it."""
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self._process.shutdown()
        self._process = None


# --- in the processes -------------------------------------------------------------------------------------------------

_pickled: list[bytes] = []


def _begin(made: bytes, cores: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    if cores:
        with contextlib.suppress(OSError):  # the process's own set changed meanwhile
            os.sched_setaffinity(0, cores)
    _pickled.append(made)


def _run(feed: Mapping[str, Any]) -> Outputs:
    model: Model = pickle.loads(_pickled[0])  # the same object again; here, so that its errors reach the caller
    return model.run(feed)
