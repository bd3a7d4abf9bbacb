"""One caller of a network: all that runs, bound to the memory that it has meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Node
from cpuconv.graph.stopping import Stop, check
from cpuconv.kernels.binding.place import Place
from cpuconv.kernels.calls.timed import Stopwatch, now
from cpuconv.memory.arenas import Arena
from cpuconv.network.folding import check_results
from cpuconv.network.interpret import run
from cpuconv.network.running.arena import ARENA, WORKSPACE
from cpuconv.network.running.recording import Bound, Recording
from cpuconv.problem.arrays import address


@dataclass(frozen=True)
class Host:
    """A node that its reference computes between kernels."""

    node: Node
    inputs: list[Any]  # a constant's array, a place, or None
    outputs: list[Place | None]


Segment = Recording | Host


class Caller:
    """The segments of a network bound to memory; not to be run twice at once.

    Attributes
    ----------
    calls : list of callable
        What runs, one after the other: a segment each; takes what may end it, or None.
    start : int
        Address of the memory that it is bound to; 0: none yet.
    looks : bool
        Whether references look at memory, so that it takes its place before each run.
    own : Arena or None
        Memory of its own, which runs of others do not take.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        workspace: int,
        constants: Mapping[str, np.ndarray],
        watch: Stopwatch | None = None,
    ) -> None:
        """Bind segments to constants, which are given by base; kernels timed by `watch`.

        `workspace` is where the workspace begins in the memory of a run, behind the values.
        """
        self._constants = constants  # which the segments have addresses of
        fixed = {name: address(array) for name, array in constants.items()}
        moving = {ARENA: 0, WORKSPACE: workspace}
        self._bound = [
            segment.bind(fixed, moving, watch) if isinstance(segment, Recording) else segment for segment in segments
        ]
        self._recorded = [part for part in self._bound if isinstance(part, Bound)]
        self._points = [part.point for part in self._recorded]
        self.looks = len(self._points) < len(self._bound)
        self._late: dict[str, np.ndarray] = {}
        self._names: list[str] = []
        self.own: Arena | None = None
        self.start = 0
        self.calls = [part.run if isinstance(part, Bound) else _call(part, self._late) for part in self._bound]

    def take_place(self, arena: Arena) -> None:
        """Lie there in the next run; who asks for it keeps the arena."""
        distance, self.start = arena.address - self.start, arena.address
        if distance:
            for part in self._recorded:
                part.move(distance)
        if self.looks:
            self._late[ARENA] = arena.memory

    def point(self, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Give the next run its arrays."""
        self._names = self._names or [
            *(f"input {at}" for at in range(len(arrays))),
            *(f"output {at}" for at in range(len(outputs))),
        ]
        given = (*arrays, *outputs)
        for base, array in zip(self._names, given, strict=True):
            start = address(array)
            for point in self._points:
                point(base, start)
        if self.looks:
            self._late.update(zip(self._names, given, strict=True))

    def place(self, base: str, array: np.ndarray) -> None:
        """Give the next runs one of the arrays anew, by its base: "input 0", "output 0" and so on."""
        start = address(array)
        for point in self._points:
            point(base, start)
        if self.looks:
            self._late[base] = array

    def run(self, stop: Stop | None = None) -> None:
        """Run all segments; `stop` may end it between two kernels."""
        for call in self.calls:
            if stop is not None:
                check(stop)
            call(stop)

    def watched(self) -> list[tuple[int, float, float]]:
        """Run all segments; when those began and ended that references compute, all by worker 0."""
        told = []
        for part, call in zip(self._bound, self.calls, strict=True):
            start = now()
            call(None)
            if isinstance(part, Host):
                told.append((0, start, now()))
        return told

    def release(self) -> None:
        """Let go of the arena and the caller's arrays."""
        self._late.clear()


def _call(host: Host, late: Mapping[str, np.ndarray]) -> Callable[[Stop | None], None]:
    """What runs a node's reference on an arena and the caller's arrays; it does not hold its `Caller`."""

    def view(place: Place) -> np.ndarray:
        memory = late[place.ref.name].reshape(-1).view(np.uint8)
        return np.ndarray(place.shape, place.dtype, memory, place.ref.offset, place.strides)

    def call(stop: Stop | None) -> None:
        arrays = [view(item) if isinstance(item, Place) else item for item in host.inputs]
        dtypes = [None if place is None else place.dtype for place in host.outputs]
        results = run(host.node, arrays, dtypes, stop=stop)
        check_results(host.node, [None if place is None else place.shape for place in host.outputs], results)
        for place, result in zip(host.outputs, results, strict=False):
            if place is not None:
                if result.shape != place.shape and 0 not in place.shape:
                    raise SourceError(f"{host.node.label} gives {result.shape}, and must give {place.shape}.")
                view(place)[...] = result

    return call
