"""Size templates: graphs with symbolic sizes, re-instantiated for new input sizes without running the rewrites again.

The applicable rewrites and their results depend on sizes only through recorded comparisons. A template is a graph that
was rewritten with symbolic sizes (`cpuconv.symbolic.sizes`). For sizes with the same answers it is the same graph with
other numbers, which are computed in a hundredth of the time of the rewrites.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.errors import CpuconvError
from cpuconv.graph.ir import Graph, Value
from cpuconv.memory.mapped_files import backing
from cpuconv.network.sizes.cutting import Parts
from cpuconv.symbolic.filled import Number, filled
from cpuconv.symbolic.sizes import SIZES, Size, Trace

MAX_TEMPLATES = 8  # templates per network; the most recently used is tried first
Shapes = Sequence[Sequence[int]]
_PLAIN = (int, float, str, bool, bytes, type(None))

Make = Callable[[Mapping[str, Sequence[Any]]], Parts | None]


class SizedGraph:
    """A graph with symbolic sizes, to be replaced by others.

    Parameters
    ----------
    graph : Graph
    given : Graph or None
        The graph from which it was made; its nodes contain no symbolic sizes.

    Raises
    ------
    TypeError
        A node has a value that may hide symbolic sizes.
    """

    def __init__(self, graph: Graph, given: Graph | None = None) -> None:
        self.graph = graph
        known = set() if given is None else set(map(id, given.nodes))
        self._nodes = {
            at: node
            for at, node in enumerate(graph.nodes)
            if id(node) not in known and any(_holds_sizes(value) for value in node.attributes.values())
        }
        self._values = {
            name: value for name, value in graph.values.items() if value.shape is not None and _holds_sizes(value.shape)
        }
        self._constants = {name: array for name, array in graph.constants.items() if array.dtype == SIZES}

    @property
    def computes_sizes(self) -> bool:
        """Whether nodes read sizes, as constants or attributes, so that their results depend on sizes."""
        return bool(self._nodes or self._constants)

    @property
    def holds_sizes(self) -> bool:
        """Whether the graph contains symbolic sizes."""
        return self.computes_sizes or bool(self._values)

    def filled(self, number: Number) -> Graph:
        """Replace each symbolic size by `number(size)`, in order."""
        made = self.graph
        values = {name: Value(filled(value.shape, number), value.dtype) for name, value in self._values.items()}
        constants = {name: filled(array, number) for name, array in self._constants.items()}
        nodes = list(made.nodes)
        for at, node in self._nodes.items():
            attributes = {name: filled(value, number) for name, value in node.attributes.items()}
            nodes[at] = replace(node, attributes=attributes)
        return replace(
            made, nodes=tuple(nodes), constants={**made.constants, **constants}, values={**made.values, **values}
        )


class GraphTemplate:
    """A graph for all sizes with the same recorded answers.

    Parameters
    ----------
    parts : Parts
        The rewritten graph, with symbolic sizes of `trace`.
    trace : Trace
    given : Graph
        The graph from which it was made; its nodes contain no symbolic sizes.

    Raises
    ------
    TypeError
        A node has a value that may hide symbolic sizes.
    """

    def __init__(self, parts: Parts, trace: Trace, given: Graph) -> None:
        self._trace = trace
        self._head = SizedGraph(lasting(parts.head, given), given)
        self._suffix = None if parts.suffix is None else SizedGraph(lasting(parts.suffix, given), given)

    def graph(self, numbers: Sequence[int]) -> Parts | None:
        """The graph for other sizes; None if an answer differs."""
        known = self._trace.numbers(numbers)
        return None if known is None else self._filled(known)

    def followed(self, numbers: Sequence[int]) -> tuple[Parts, Trace] | None:
        """The graph with other symbolic sizes, and the forked trace that records them; None as in `graph`."""
        known = self._trace.numbers(numbers)
        if known is None:
            return None
        trace = self._trace.forked(known)
        return self._filled([trace.at(place, number) for place, number in enumerate(known)]), trace

    def _filled(self, known: Sequence[Any]) -> Parts:
        """Replace the symbolic sizes by these numbers or sizes."""

        def number(size: Any) -> Any:
            return known[size.place]

        return Parts(self._head.filled(number), None if self._suffix is None else self._suffix.filled(number))


class GraphTemplates:
    """The templates of a network; not thread-safe.

    Parameters
    ----------
    inputs : mapping of str to Value
        Inputs of the network; the sizes that they state are fixed.
    """

    def __init__(self, inputs: Mapping[str, Value]) -> None:
        """Start without templates."""
        self._inputs = inputs
        self._made: list[GraphTemplate] = []
        self._left = MAX_TEMPLATES  # templates that may still be made

    def __len__(self) -> int:
        return len(self._made)

    def graph(self, shapes: Shapes, given: Graph, make: Make) -> Parts | None:
        """The graph for inputs of these shapes, by an existing or a new template; None if there can be none.

        Parameters
        ----------
        shapes : tuple of tuple of int
            Shapes of all inputs.
        given : Graph
            The graph to rewrite.
        make : callable
            Rewrites it for shapes by input name; returns None if the result cannot become a template.
        """
        numbers = self.numbers(shapes)
        for template in self._made:
            made = template.graph(numbers)
            if made is not None:
                self._made.remove(template)
                self._made.insert(0, template)
                return made
        return self._new(shapes, numbers, given, make) if self._left else None

    def followed(self, shapes: Shapes) -> tuple[Parts, Trace] | None:
        """The graph with symbolic sizes of a forked trace, by an existing template; None if there is none."""
        numbers = self.numbers(shapes)
        return next((made for each in self._made if (made := each.followed(numbers)) is not None), None)

    def numbers(self, shapes: Shapes) -> list[int]:
        """The open sizes, which are symbolic in templates."""
        return [size for _, size in self._open(shapes)]

    def _open(self, shapes: Shapes) -> Iterator[tuple[tuple[int, int], int]]:
        """The open sizes, each with the indices of its input and axis."""
        for at, (value, shape) in enumerate(zip(self._inputs.values(), shapes, strict=True)):
            for axis, size in enumerate(shape):
                if value.shape is None or not isinstance(value.shape[axis], int):
                    yield (at, axis), size

    def _new(self, shapes: Shapes, numbers: Sequence[int], given: Graph, make: Make) -> Parts | None:
        """Make a new template, and return its graph for these sizes.

        Errors, such as sizes that do not fit, are reported when the graph is then made without a template.
        """
        trace = Trace(numbers)
        followed: list[list[Any]] = [[*shape] for shape in shapes]
        for ((at, axis), _), size in zip(self._open(shapes), trace.inputs, strict=True):
            followed[at][axis] = size
        self._left -= 1
        try:
            made = make(dict(zip(self._inputs, map(tuple, followed), strict=True)))
            template = None if made is None else GraphTemplate(made, trace, given)
        except CpuconvError:  # an error of these sizes
            self._left += 1
            return None
        except Exception:  # raised by code that does not accept symbolic sizes
            template = None
        if template is None:
            self._left = 0
            return None
        self._made.insert(0, template)
        return template.graph(numbers)


def lasting(graph: Graph, given: Graph) -> Graph:
    """Make the constants of a graph permanent, except those of the graph from which it was made.

    New constants become read-only, so that they can be recognised by identity. Those in memory of other owners are
    copied.
    """
    known = {id(_owner(array)) for array in given.constants.values()}
    made = {name: array for name, array in graph.constants.items() if id(_owner(array)) not in known}
    copied = {
        name: np.array(array, order="C")
        for name, array in made.items()
        if backing(array) is None and not isinstance(_owner(array), np.ndarray)
    }
    for array in (made | copied).values():
        each: Any = array
        while isinstance(each, np.ndarray):
            each.flags.writeable = False
            each = each.base
    return replace(graph, constants={**graph.constants, **copied}) if copied else graph


def _owner(array: np.ndarray) -> Any:
    """The object that owns the memory of an array."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def _holds_sizes(value: Any) -> bool:
    """Whether a value of a node or tensor contains symbolic sizes."""
    if type(value) is Size:
        return True
    if type(value) in _PLAIN or isinstance(value, (np.dtype, np.generic)):
        return False
    if isinstance(value, (tuple, list)):
        return any(map(_holds_sizes, value))
    if isinstance(value, np.ndarray):
        return value.dtype == SIZES
    if isinstance(value, Graph):  # a body, which is identified by its object identity
        if SizedGraph(value).holds_sizes:
            raise TypeError("the body of a control-flow node has symbolic sizes")
        return False
    pickle.dumps(value)  # raises TypeError for a symbolic size
    return False
