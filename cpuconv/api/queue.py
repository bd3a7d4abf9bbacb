"""Throughput: queues of runs over several streams, and a map of a model over many inputs."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.api.gathering import best_batch, run_together
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, kind_of, must
from cpuconv.network.batched_model import BatchedModel
from cpuconv.network.model import Model
from cpuconv.runtime.streams import Streams, reported
from cpuconv.runtime.threads import maximum_threads

Outputs = dict[str, Any]


class Queue:
    """Runs of a model in several streams, each with its threads on cores of its own.

    Parameters
    ----------
    model : Model
        Throughput is highest with ``threads=1`` for small and ``hint="throughput"`` for any networks.
    streams : int or None
        Max. concurrent runs. None: `model.streams`.
    pin : bool
        Whether each stream and its threads stay on an equal part of the cores, where the system allows it and there are
        cores for all of them; those of a model of one thread may share cores.
    max_waiting : int or None
        Max. runs that wait for a stream; `submit` waits for room. None: twice the streams.
    callback : callable or None
        ``callback(future, tag)`` after each run, in the stream's thread; ``future.result()`` has the outputs or raises.
        An exception of the callback is reported like that of any thread, and the queue goes on.
    ordered : bool
        Whether callbacks are called in the order of submission, one at a time.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type.
    """

    def __init__(
        self,
        model: Model,
        streams: int | None = None,
        *,
        pin: bool = True,
        max_waiting: int | None = None,
        callback: Callable[[Future[Outputs], Any], object] | None = None,
        ordered: bool = False,
    ) -> None:
        if not isinstance(model, Model):
            raise ArgumentTypeError(must("model", "a cpuconv.Model", kind_of(model)))
        if callback is not None and not callable(callback):
            raise ArgumentTypeError(must("callback", "a callable of a future and a tag, or None", kind_of(callback)))
        count = model.streams if streams is None else _positive("streams", streams)
        waiting = 2 * count if max_waiting is None else _positive("max_waiting", max_waiting)
        self._model, self._callback, self._ordered = model, callback, ordered
        self._streams = Streams(count, "cpuconv-queue", model.threads if pin else 0)
        self._places = count + waiting  # max. submitted runs that are not done
        self._closed = False
        self._begin()
        _queues.add(self)

    def _begin(self) -> None:
        """Begin without runs: at first, and in a child of `fork`, which does not have the parent's threads."""
        self._room = threading.BoundedSemaphore(self._places)
        self._state = threading.Condition()
        self._pending: dict[Future[Outputs], Any] = {}  # tags of runs not yet reported, in order of submission
        self._reporting = False  # whether a thread calls callbacks, if these are ordered
        self._stopped = threading.Event()

    @property
    def streams(self) -> int:
        """Max. number of concurrent runs."""
        return self._streams.count

    def submit(self, feed: Mapping[str, Any], tag: Any = None) -> Future[Outputs]:
        """Queue a run; wait while `max_waiting` runs wait for a stream.

        Parameters
        ----------
        feed : mapping of str to array
            As for `Model.run`. Do not write into the arrays until the run is done.
        tag : any
            Passed to the callback.

        Returns
        -------
        Future
            Its `result()` is the dict of outputs; `cancel()` works until the run begins.

        Raises
        ------
        ArgumentError
            The queue is closed.
        """
        return self._submit(self._run, feed, tag)

    def _submit(self, call: Callable[[Any], Any], argument: Any, tag: Any = None) -> Future[Any]:
        """Queue a call."""
        self._room.acquire()
        try:
            with self._state:
                if self._closed:
                    raise ArgumentError(must("submit", "called before the queue is closed", "called after it"))
                future = self._streams.submit(call, argument)
                self._pending[future] = tag
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(self._done)
        return future

    async def run_async(self, feed: Mapping[str, Any], tag: Any = None) -> Outputs:
        """Queue a run as `submit` does, and return its outputs to a coroutine; only this coroutine waits for room."""
        import asyncio  # deferred: takes 20 ms

        return await asyncio.wrap_future(await asyncio.to_thread(self.submit, feed, tag))

    def wait(self) -> None:
        """Wait until all submitted runs and their callbacks are done."""
        with self._state:
            self._state.wait_for(lambda: not self._pending)

    def close(self, cancel: bool = False) -> None:
        """Accept no more runs, and wait for those submitted; with `cancel`, drop waiting ones and stop running ones."""
        with self._state:
            self._closed = True
            pending = [*self._pending]
        if cancel:
            self._stopped.set()
            for future in pending:
                future.cancel()
        self.wait()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel=kind is not None)

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        import asyncio

        await asyncio.to_thread(self.close, kind is not None)

    def _run(self, feed: Mapping[str, Any]) -> Outputs:
        return self._model.run(feed, stop=self._stopped.is_set)

    def _done(self, future: Future[Outputs]) -> None:
        """Report this run; or, if ordered, all runs at the head of the queue that are done."""
        self._room.release()
        while (ready := self._to_report(future)) is not None:
            if self._callback is not None:
                reported(self._callback, ready, self._pending[ready])
            with self._state:
                del self._pending[ready]
                self._reporting = False
                self._state.notify_all()

    def _to_report(self, future: Future[Outputs]) -> Future[Outputs] | None:
        with self._state:
            if not self._ordered:
                return future if future in self._pending else None
            head = next(iter(self._pending), None)
            if self._reporting or head is None or not head.done():
                return None  # a thread that is reporting looks again
            self._reporting = True
            return head


_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


def _begin_again() -> None:
    for queue in list(_queues):
        queue._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)


@dataclass(frozen=True)
class Failed:
    """An input on which a run failed, in place of its outputs.

    Attributes
    ----------
    index : int
        Place of the input, from 0.
    error : Exception
    """

    index: int
    error: Exception


def map(
    model: Model,
    inputs: Iterable[Mapping[str, Any]],
    *,
    streams: int | None = None,
    workers: int | None = None,
    pin: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> Iterator[Outputs | Failed]:
    """Run a model on many inputs in several streams or processes; yield the outputs in the order of the inputs.

    Parameters
    ----------
    model : Model
    inputs : iterable of (mapping of str to array)
        Feeds as for `Model.run`; read in the caller's thread, a few ahead of the results. A model that was compiled
        with `batches` runs several at a time, as many as make the most items per second.
    streams
        As for `Queue`.
    workers : int or None
        Number of processes that run the model in place of streams; it must be one that can be pickled. They are started
        as by `multiprocessing` with "spawn", so a script needs ``if __name__ == "__main__"``. One that ends is
        replaced, and its run repeated once. None: threads of this process.
    pin : bool
        As for `Queue`; a process stays on an equal part of the cores.
    progress : callable or None
        ``progress(done, total)`` after each result; a total of 0 means unknown.

    Yields
    ------
    dict of str to numpy.ndarray, or Failed
        The outputs; `Failed`, with a warning, where a run raised.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument has a wrong value or type.
    """
    if workers is None:
        queue = Queue(model, streams, pin=pin)
    else:
        from cpuconv.api.processes import ProcessQueue  # deferred: few programs need it

        if streams is not None:
            raise ArgumentError(must("streams", "left out where 'workers' is given", streams))
        queue = ProcessQueue(model, _positive("workers", workers), pin)
    total = len(inputs) if isinstance(inputs, Sized) else 0
    return _mapped(queue, model, inputs, total, progress)


def _mapped(
    queue: Queue,
    model: Model,
    inputs: Iterable[Mapping[str, Any]],
    total: int,
    progress: Callable[[int, int], object] | None,
) -> Iterator[Outputs | Failed]:
    feeds, size = iter(inputs), best_batch(model)
    batched = model.batched[1] if isinstance(model, BatchedModel) else frozenset[str]()
    together = functools.partial(run_together, queue._run, batched)
    running: deque[Future[list[Outputs | Exception]]] = deque()
    more, done = True, 0
    with queue:
        while more or running:
            while more and len(running) < 2 * queue.streams:
                group = list(itertools.islice(feeds, size))
                more = len(group) == size
                if group:
                    running.append(queue._submit(together, group))
            for result in running.popleft().result() if running else ():
                done += 1
                if progress is not None:
                    progress(done, total)
                yield _failed(done - 1, result) if isinstance(result, Exception) else result


def _failed(index: int, error: Exception) -> Failed:
    warnings.warn(f"input {index} failed: {error}", CpuconvWarning, stacklevel=3)
    return Failed(index, error)


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(must(name, "an integer of at least 1, or None", repr(value)))
    return min(value, 8 * maximum_threads()) if name == "streams" else value
