"""Execution of bodies: separate computed outputs from outputs that are inputs or constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.stopping import Stop, check
from cpuconv.network.interpret import interpret

Arrays = Sequence[np.ndarray]
Sized = Callable[[Graph, Sequence[Value]], Graph]  # specialises a body for inputs, as far as these are known


@dataclass(frozen=True)
class Ends:
    """A body without outputs that are plain inputs or constants.

    Attributes
    ----------
    graph : Graph
        The body with only its computed outputs, each once.
    computed : tuple of int
        For each output of the body, its index among the computed ones; -1 if it is not computed.
    passed : tuple of int
        For each output, the index of the input that it equals; -1 if there is none.
    constants : tuple of numpy.ndarray or None
        For each output, the constant that it equals.
    """

    graph: Graph
    computed: tuple[int, ...]
    passed: tuple[int, ...]
    constants: tuple[np.ndarray | None, ...]

    @classmethod
    def of(cls, graph: Graph, changing: int = 0) -> Ends:
        """Analyse a body. The first `changing` inputs change in place, so they are not passed as outputs."""
        sources = [_source(graph, name) for name in graph.outputs]
        inputs = {name: at for at, name in enumerate(graph.inputs) if at >= changing}
        found = [graph.constants.get(name) for name in sources]
        passed = [inputs.get(name, -1) for name in sources]
        places: dict[str, int] = {}
        computed = [
            -1 if at >= 0 or array is not None else places.setdefault(name, len(places))
            for name, at, array in zip(sources, passed, found, strict=True)
        ]
        return cls(replace(graph, outputs=tuple(places)).live(), tuple(computed), tuple(passed), tuple(found))

    def outputs(self, made: Arrays, inputs: Arrays) -> list[np.ndarray]:
        """All outputs of the body, from the computed ones and the inputs."""
        return [
            made[place] if place >= 0 else inputs[at] if array is None else array
            for place, at, array in zip(self.computed, self.passed, self.constants, strict=True)
        ]


def _source(graph: Graph, name: str) -> str:
    """The value that an output equals, without Identity nodes."""
    producer = graph.producer(name)
    while producer is not None and producer.op == "Identity" and producer.semantics is None:
        name = producer.inputs[0]
        producer = graph.producer(name)
    return name


class Step(Protocol):
    """Consecutive runs of a body in one thread. Used in ``with``, so that memory is returned."""

    def __enter__(self) -> Step:
        """Begin the runs."""

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End the runs."""

    def run(self, inputs: Arrays, outputs: Sequence[np.ndarray | None], stop: Stop | None) -> list[np.ndarray]:
        """Compute the outputs, in the given arrays if these have the right shape.

        Inputs are C-contiguous; the caller may change them afterwards, also in place.
        """


class Body(Protocol):
    """An executable body."""

    ends: Ends

    def step(self) -> Step:
        """Runs of the body in one thread."""


class Interpreted:
    """A body that references compute: slow; for constant folding and for tests.

    Parameters
    ----------
    graph : Graph
    sized : callable
    changing : int
        Number of leading inputs that the caller changes in place.
    count : callable or None
        Called before each run with its number of nodes, and afterwards with the bytes of its results. Its exceptions
        end the run.
    """

    def __init__(
        self, graph: Graph, sized: Sized, changing: int = 0, count: Callable[[int, int], None] | None = None
    ) -> None:
        self.ends, self._sized, self._count = Ends.of(graph, changing), sized, count
        self._graphs: dict[tuple[Value, ...], Graph] = {}

    def step(self) -> Interpreted:
        """Runs of the body, which share only specialised graphs."""
        return self

    def __enter__(self) -> Interpreted:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        pass

    def run(self, inputs: Arrays, outputs: Sequence[np.ndarray | None], stop: Stop | None) -> list[np.ndarray]:
        """Run the body, as specified by `Step`; given output arrays are not used."""
        check(stop)
        if self._count is not None:
            self._count(max(1, len(self.ends.graph.nodes)), 0)
        key = tuple(Value(array.shape, array.dtype) for array in inputs)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._sized(self.ends.graph, key)
        results = interpret(graph, dict(zip(graph.inputs, inputs, strict=True)), stop=stop)
        if self._count is not None:
            self._count(0, sum(array.nbytes for array in results.values()))
        return [np.array(results[name], order="C") for name in graph.outputs]


def as_inputs(graph: Graph, values: Sequence[Value]) -> Graph:
    """Set the shapes and dtypes of a body's inputs to those of its arguments, whatever shapes it states.

    Raises
    ------
    SourceError
        The body states another dtype.
    """
    given: Mapping[str, Value] = dict(zip(graph.inputs, values, strict=True))
    for name, value in given.items():
        stated = graph.value(name).dtype
        if None not in (stated, value.dtype) and stated != value.dtype:
            raise SourceError(f"its body {graph.name!r} takes {name!r} of {stated}, not of {value.dtype}.")
    return replace(graph, values={**graph.values, **given})
