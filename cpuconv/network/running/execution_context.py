"""Execution context: the segments of a program, bound to the memory of one run at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Node
from cpuconv.graph.stopping import Stop, check
from cpuconv.kernels.binding.failure import FAILURE, WORDS, taken_message
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.calls.timed import Stopwatch, now
from cpuconv.memory.arenas import Arena
from cpuconv.network.folding import check_results
from cpuconv.network.interpret import run
from cpuconv.network.running.arena import ARENA, WORKSPACE
from cpuconv.network.running.recording import BoundRecording, Recording
from cpuconv.problem.arrays import address


@dataclass(frozen=True)
class Host:
    """A node that its reference computes, between kernels."""

    node: Node
    inputs: list[Any]  # arrays of constants, places, or None
    outputs: list[TensorView | None]


Segment = Recording | Host


class ExecutionContext:
    """The segments of a network bound to memory; only one thread at a time may run it.

    Attributes
    ----------
    calls : list of callable
        Functions that run the segments in order; the argument may end the run, or is None.
    start : int
        Address of the arena that it is bound to; 0: none yet.
    looks : bool
        Whether references access memory, so that the arena must be set before each run.
    own : Arena or None
        An arena that belongs to this context, not shared with other runs.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        workspace: int,
        constants: Mapping[str, np.ndarray],
        watch: Stopwatch | None = None,
    ) -> None:
        """Bind segments to constants, given by base; `watch` times the kernels.

        `workspace` is the offset of the workspace in the arena, after the values.
        """
        self._constants = constants  # kept alive, as the segments have their addresses
        report = np.zeros(WORDS, np.int64)
        self._report = memoryview(report)  # type: ignore[arg-type]  # NumPy's stubs lack the buffer of an array
        fixed = {name: address(array) for name, array in constants.items()}
        fixed[FAILURE] = address(report)
        moving = {ARENA: 0, WORKSPACE: workspace}
        self._bound = [
            segment.bind(fixed, moving, watch) if isinstance(segment, Recording) else segment for segment in segments
        ]
        self._recorded = [part for part in self._bound if isinstance(part, BoundRecording)]
        self.looks = len(self._recorded) < len(self._bound)
        self._late: dict[str, np.ndarray] = {}
        self._names: list[str] = []
        self._words: list[tuple[memoryview, int, int, int]] = []  # those of the caller's arrays
        self.own: Arena | None = None
        self.start = 0
        self.calls = [part.run if isinstance(part, BoundRecording) else _call(part, self._late) for part in self._bound]

    def take_place(self, arena: Arena) -> None:
        """Bind the next run to an arena, which the context of this method must keep alive."""
        distance, self.start = arena.address - self.start, arena.address
        if distance:
            for part in self._recorded:
                part.move(distance)
        if self.looks:
            self._late[ARENA] = arena.memory

    def point(self, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Set the arrays of the next run."""
        if not self._names:
            inputs = [f"input {at}" for at in range(len(arrays))]
            self._names = [*inputs, *(f"output {at}" for at in range(len(outputs)))]
            self._words = [word for part in self._recorded for word in part.pointing(self._names)]
        given = [*arrays, *outputs]
        starts = [address(array) for array in given]
        for cells, place, offset, number in self._words:
            cells[place] = offset + starts[number]
        if self.looks:
            self._late.update(zip(self._names, given, strict=True))

    def place(self, base: str, array: np.ndarray) -> None:
        """Set one array for the next runs, by its base: "input 0", "output 0" and so on."""
        start = address(array)
        for part in self._recorded:
            part.point(base, start)
        if self.looks:
            self._late[base] = array

    def run(self, stop: Stop | None = None) -> None:
        """Run all segments; `stop` may end it between two kernels.

        Raises
        ------
        SourceError
            An index was out of bounds, or a node that a reference computes does not accept its inputs.
        """
        for call in self.calls:
            if stop is not None:
                check(stop)
            call(stop)
            if self._report[0]:
                raise SourceError(taken_message(self._report))

    def watched(self) -> list[tuple[int, float, float]]:
        """Run all segments; return start and end of those that references compute, all by worker 0."""
        told = []
        for part, call in zip(self._bound, self.calls, strict=True):
            start = now()
            call(None)
            if isinstance(part, Host):
                told.append((0, start, now()))
        return told

    def release(self) -> None:
        """Drop the references to the arena and the caller's arrays."""
        self._late.clear()


def _call(host: Host, late: Mapping[str, np.ndarray]) -> Callable[[Stop | None], None]:
    """A function that runs a node's reference on the arena and the caller's arrays; it does not own the context."""

    def view(place: TensorView) -> np.ndarray:
        memory = late[place.ref.name].reshape(-1).view(np.uint8)
        return np.ndarray(place.shape, place.dtype, memory, place.ref.offset, place.strides)

    def call(stop: Stop | None) -> None:
        arrays = [view(item) if isinstance(item, TensorView) else item for item in host.inputs]
        dtypes = [None if place is None else place.dtype for place in host.outputs]
        results = run(host.node, arrays, dtypes, stop=stop)
        check_results(host.node, [None if place is None else place.shape for place in host.outputs], results)
        for place, result in zip(host.outputs, results, strict=False):
            if place is not None:
                if result.shape != place.shape and 0 not in place.shape:
                    raise SourceError(f"{host.node.label} must return shape {place.shape}, not {result.shape}.")
                view(place)[...] = result

    return call
