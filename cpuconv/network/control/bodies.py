"""What runs a body: outputs that a program computes, and outputs that are inputs or constants as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.stopping import Stop, check
from cpuconv.network.interpret import interpret

Arrays = Sequence[np.ndarray]
Sized = Callable[[Graph, Sequence[Value]], Graph]  # a body with shapes and dtypes, for inputs that are known so far


@dataclass(frozen=True)
class Ends:
    """A body without the outputs that need no computing.

    Attributes
    ----------
    graph : Graph
        Its outputs are those that are computed, each once.
    computed : tuple of int
        Of each output of the body its place among those; -1 where it needs no computing.
    passed : tuple of int
        Of each output the position of the input that it is; -1 where it is none.
    constants : tuple of numpy.ndarray or None
        Of each output the constant that it is.
    """

    graph: Graph
    computed: tuple[int, ...]
    passed: tuple[int, ...]
    constants: tuple[np.ndarray | None, ...]

    @classmethod
    def of(cls, graph: Graph, changing: int = 0) -> Ends:
        """Those of a body whose first inputs, so many, change in place: no output is such an input."""
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
        """All outputs of the body, from those that were computed and the inputs."""
        return [
            made[place] if place >= 0 else inputs[at] if array is None else array
            for place, at, array in zip(self.computed, self.passed, self.constants, strict=True)
        ]


def _source(graph: Graph, name: str) -> str:
    """The value that an output is, behind nodes that only give it another name."""
    producer = graph.producer(name)
    while producer is not None and producer.op == "Identity" and producer.meaning is None:
        name = producer.inputs[0]
        producer = graph.producer(name)
    return name


class Step(Protocol):
    """Runs of a body, one after another; for one thread. Used in ``with``, so that memory can be taken over."""

    def __enter__(self) -> Step:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End."""

    def run(self, inputs: Arrays, outputs: Sequence[np.ndarray | None], stop: Stop | None) -> list[np.ndarray]:
        """The outputs that are computed, in the given arrays where there are some of the right shape.

        Inputs are C-contiguous, and may be changed by the caller afterwards, in place too.
        """


class Body(Protocol):
    """A body, ready to run."""

    ends: Ends

    def step(self) -> Step:
        """Runs of it, in one thread."""


class Interpreted:
    """A body that references run: slow; for what is computed of constants, and for tests.

    Parameters
    ----------
    graph : Graph
    sized : callable
    changing : int
        How many inputs, from the first one on, the caller changes in place.
    count : callable or None
        Is told of each run: its nodes before, and the bytes of its results after. What it raises ends the run.
    """

    def __init__(
        self, graph: Graph, sized: Sized, changing: int = 0, count: Callable[[int, int], None] | None = None
    ) -> None:
        self.ends, self._sized, self._count = Ends.of(graph, changing), sized, count
        self._graphs: dict[tuple[Value, ...], Graph] = {}

    def step(self) -> Interpreted:
        """Runs, which share nothing but graphs of known sizes."""
        return self

    def __enter__(self) -> Interpreted:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        pass

    def run(self, inputs: Arrays, outputs: Sequence[np.ndarray | None], stop: Stop | None) -> list[np.ndarray]:
        """As `Step` says; given arrays are left alone."""
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
    """A body whose inputs are what it is given, whatever it states of their shapes.

    Raises
    ------
    SourceError
        It states another type of elements.
    """
    given: Mapping[str, Value] = dict(zip(graph.inputs, values, strict=True))
    for name, value in given.items():
        stated = graph.value(name).dtype
        if None not in (stated, value.dtype) and stated != value.dtype:
            raise SourceError(f"its body {graph.name!r} takes {name!r} of {stated}, not of {value.dtype}.")
    return replace(graph, values={**graph.values, **given})
