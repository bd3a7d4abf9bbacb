"""Throughput: queues of runs over several streams, and a map of a model over many inputs."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, kind_of, must
from cpuconv.network.model import Model
from cpuconv.runtime.streams import Streams, reported
from cpuconv.runtime.threads import maximum_threads

Outputs = dict[str, Any]


class Queue:
    """Runs of a model in several streams: one thread of the program each, on a core of its own.

    Parameters
    ----------
    model : Model
        Throughput is highest with ``threads=1`` for small and ``hint="throughput"`` for any networks.
    streams : int or None
        Max. concurrent runs. None: `model.streams`.
    pin : bool
        Whether each stream stays on one core, where the model has one thread and the system allows it.
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
        self._streams = Streams(count, "cpuconv-queue", pin and model.threads == 1)
        self._room = threading.BoundedSemaphore(count + waiting)
        self._state = threading.Condition()
        self._pending: dict[Future[Outputs], Any] = {}  # tags of runs not yet reported, in order of submission
        self._reporting = False  # whether a thread calls callbacks, if these are ordered
        self._stopped = threading.Event()
        self._closed = False

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
        self._room.acquire()
        try:
            with self._state:
                if self._closed:
                    raise ArgumentError(must("submit", "called before the queue is closed", "called after it"))
                future = self._streams.submit(self._run, feed)
                self._pending[future] = tag
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(self._done)
        return future

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
    pin: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> Iterator[Outputs | Failed]:
    """Run a model on many inputs in several streams; yield the outputs in the order of the inputs.

    Parameters
    ----------
    model : Model
    inputs : iterable of (mapping of str to array)
        Feeds as for `Model.run`; read in the caller's thread, a few ahead of the results.
    streams, pin
        As for `Queue`.
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
    queue = Queue(model, streams, pin=pin)
    total = len(inputs) if isinstance(inputs, Sized) else 0
    return _mapped(queue, inputs, total, progress)


def _mapped(
    queue: Queue, inputs: Iterable[Mapping[str, Any]], total: int, progress: Callable[[int, int], object] | None
) -> Iterator[Outputs | Failed]:
    feeds = iter(inputs)
    running: deque[Future[Outputs]] = deque()
    more, done = True, 0
    with queue:
        while more or running:
            while more and len(running) < 2 * queue.streams:
                try:
                    running.append(queue.submit(next(feeds)))
                except StopIteration:
                    more = False
            if running:
                result = _result(running.popleft(), done)
                done += 1
                if progress is not None:
                    progress(done, total)
                yield result


def _result(future: Future[Outputs], index: int) -> Outputs | Failed:
    try:
        return future.result()
    except Exception as error:
        warnings.warn(f"input {index} failed: {error}", CpuconvWarning, stacklevel=4)
        return Failed(index, error)


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(must(name, "an integer of at least 1, or None", repr(value)))
    return min(value, 8 * maximum_threads()) if name == "streams" else value
