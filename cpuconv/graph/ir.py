"""Graph of a network: nodes in an executable order, constants, and shapes and dtypes of all values.

Graphs are immutable, except that a graph may release constants. A rewrite makes a new graph, which shares the arrays of
the old one. Every value is defined once, as a graph input, a constant or a node output (SSA form), so that its name
identifies it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.errors import SourceError
from cpuconv.graph.stopping import Stop
from cpuconv.symbolic.sizes import INT64, SIZES

Shape = tuple[int | str | None, ...]  # per axis: size, symbol of an open size, or None if unknown

_PRINTED = 8  # maximum number of elements of constants that are printed inline


@dataclass(frozen=True)
class Value:
    """Known properties of a tensor.

    Attributes
    ----------
    shape : Shape | None
        Sizes or symbols per axis; None if the rank is unknown.
    dtype : np.dtype | None
        Type of the elements, or None.
    array : np.ndarray | None
        Elements, if known before the network runs.
    """

    shape: Shape | None = None
    dtype: np.dtype | None = None
    array: np.ndarray | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, array: np.ndarray) -> Value:
        """Make the value of a tensor with known elements."""
        return cls(array.shape, INT64 if array.dtype == SIZES else array.dtype, array)

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether an array of these sizes matches the known shape."""
        if self.shape is None:
            return True
        same = (not isinstance(known, int) or known == size for known, size in zip(self.shape, sizes, strict=False))
        return len(self.shape) == len(sizes) and all(same)

    @property
    def concrete(self) -> bool:
        """Whether all sizes and the dtype are known."""
        return self.dtype is not None and self.shape is not None and all(isinstance(size, int) for size in self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes; rank and dtype must be known, and unknown sizes count as 0."""
        assert self.shape is not None and self.dtype is not None
        return math.prod(size if isinstance(size, int) else 0 for size in self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = "?" if self.dtype is None else self.dtype.name
        if self.shape is None:
            return f"{dtype}[…]"
        return f"{dtype}[{','.join('?' if size is None else str(size) for size in self.shape)}]"


UNKNOWN = Value()
"""Value without known properties."""


class Semantics(Protocol):
    """Semantics of an operator: a row of the operator table, or an object that a reader attaches to a node."""

    def infer(self, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
        """Infer shapes and dtypes of the outputs."""

    def evaluate(
        self,
        node: Node,
        arrays: Sequence[np.ndarray | None],
        dtypes: Sequence[np.dtype | None],
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """Compute the outputs in these dtypes; long loops check `stop` before each iteration."""


@dataclass(frozen=True, eq=False)
class Node:
    """Application of an operator: ``outputs = op(inputs)``.

    Attributes
    ----------
    op : str
        Name of the operator.
    inputs : tuple[str, ...]
        Names of values; "" for an absent optional input.
    outputs : tuple[str, ...]
        Names of values; "" for an optional output that is not needed.
    attributes : Mapping[str, Any]
        All attributes of the operator, as plain Python values and arrays.
    origin : str
        Name of the node in the model.
    parts : tuple[str, ...]
        Names of the model's nodes that this one computes, if there are several.
    semantics : Semantics | None
        Semantics of the node, if the operator table does not have the operator.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    semantics: Semantics | None = None
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def __getitem__(self, attribute: str) -> Any:
        return self.attributes[attribute]

    def reads(self, names: Mapping[str, str]) -> Node:
        """Rename inputs by `names`."""
        inputs = tuple(names.get(name, name) for name in self.inputs)
        return self if inputs == self.inputs else replace(self, inputs=inputs)

    def writes(self, names: Mapping[str, str]) -> Node:
        """Rename outputs by `names`."""
        outputs = tuple(names.get(name, name) for name in self.outputs)
        return self if outputs == self.outputs else replace(self, outputs=outputs)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the model's nodes that this one computes."""
        return self.parts or (self.origin,)

    @property
    def label(self) -> str:
        """Name of the node in messages."""
        return f"{self.op} node {self.origin or next(filter(None, self.outputs), '')!r}"

    def __str__(self) -> str:
        left = ", ".join(name or "_" for name in self.outputs)
        return f"{left} = {self.op}({', '.join(name or '_' for name in self.inputs)}){_attributes(self)}"


@dataclass(frozen=True, eq=False)
class Graph:
    """Graph of a network.

    Attributes
    ----------
    inputs : tuple[str, ...]
        Names of the values that a caller feeds, in order.
    outputs : tuple[str, ...]
        Names of the values that a caller gets, in order.
    nodes : tuple[Node, ...]
        Nodes in an executable order; they are sorted on construction.
    constants : Mapping[str, np.ndarray]
        Read-only arrays by name.
    values : Mapping[str, Value]
        Properties of the other values, by name.
    name : str
        Name of the network.
    defaults : Mapping[str, Value]
        Properties of the constants that a caller may replace by feeding them.

    Raises
    ------
    SourceError
        A value is defined twice or not at all, or the graph has a cycle.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    name: str = "graph"
    defaults: Mapping[str, Value] = field(default_factory=dict)
    _held: dict[str, np.ndarray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "_held", dict(self.constants))
        object.__setattr__(self, "constants", MappingProxyType(self._held))
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))
        object.__setattr__(self, "defaults", MappingProxyType(dict(self.defaults)))
        object.__setattr__(self, "nodes", tuple(self.nodes))
        if not self._is_in_order():
            self._check_names()
            object.__setattr__(self, "nodes", _in_order(self.nodes, {*self.inputs, *self.constants}))

    def _is_in_order(self) -> bool:
        """Whether names are defined once and nodes are topologically sorted, which most rewrites preserve."""
        defined = {*self.inputs, *self.constants, ""}
        count = len(self.inputs) + len(self.constants) + 1
        for node in self.nodes:
            if not defined.issuperset(node.inputs):
                return False
            written = [name for name in node.outputs if name]
            count += len(written)
            defined.update(written)
        return len(defined) == count and defined.issuperset(self.outputs) and "" not in self.outputs

    def _check_names(self) -> None:
        defined = set()
        for name in (*self.inputs, *self.constants, *(name for node in self.nodes for name in node.outputs if name)):
            if name in defined:
                raise SourceError(f"The graph defines the value {name!r} twice.")
            if not name:
                raise SourceError("The graph has an input or a constant without a name.")
            defined.add(name)
        for node in self.nodes:
            for name in node.inputs:
                if name and name not in defined:
                    raise SourceError(f"{node.label} reads {name!r}, which nothing in the graph defines.")
        for name in self.outputs:
            if name not in defined:
                raise SourceError(f"The graph's output {name!r} is defined by nothing in it.")

    # --- queries -----------------------------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """Known properties of a value."""
        array = self.constants.get(name)
        return self.values.get(name, UNKNOWN) if array is None else Value.of(array)

    def operands(self, node: Node) -> list[Value | None]:
        """Known properties of a node's inputs; None for absent ones."""
        return [self.value(name) if name else None for name in node.inputs]

    def producer(self, name: str) -> Node | None:
        """Node that writes a value; None for graph inputs and constants."""
        return self._producers.get(name)

    def users(self, name: str) -> tuple[Node, ...]:
        """Nodes that read a value, each once, in order."""
        return self._users.get(name, ())

    def is_output(self, name: str) -> bool:
        """Whether a value is a graph output."""
        return name in self._given

    def place(self, node: Node) -> int:
        """Index of a node in the order of all nodes."""
        return self._places[id(node)]

    @lazy
    def _given(self) -> frozenset[str]:
        return frozenset(self.outputs)

    @lazy
    def _places(self) -> Mapping[int, int]:
        return {id(node): at for at, node in enumerate(self.nodes)}

    @lazy
    def _producers(self) -> Mapping[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs if name}

    @lazy
    def _users(self) -> Mapping[str, tuple[Node, ...]]:
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, node.inputs)):
                users.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in users.items()}

    def release_constant(self, name: str) -> None:
        """Release a constant, which must not be used again: with packed weights, it would take twice the memory."""
        self._held.pop(name, None)

    # --- rewrites ----------------------------------------------------------------------------------------------------

    def replaced(
        self,
        old: Iterable[Node],
        new: Iterable[Node],
        constants: Mapping[str, np.ndarray] | None = None,
        values: Mapping[str, Value] | None = None,
    ) -> Graph:
        """Replace the nodes `old` by `new`, and add constants and values.

        The outputs of `new` and the constants must include all values of `old` that other nodes or the caller read.
        """
        gone = {id(node) for node in old}
        nodes = (*(node for node in self.nodes if id(node) not in gone), *new)
        return replace(
            self,
            nodes=nodes,
            constants={**self.constants, **(constants or {})},
            values={**self.values, **(values or {})},
        )

    def with_defaults_as_inputs(self, names: Collection[str]) -> Graph:
        """Convert some of the defaults to inputs, after the other inputs."""
        added = {name: value for name, value in self.defaults.items() if name in names}
        return replace(
            self,
            inputs=(*self.inputs, *added),
            constants={name: array for name, array in self.constants.items() if name not in added},
            values={**self.values, **added},
            defaults={},
        )

    def live(self) -> Graph:
        """Remove nodes, constants and values that no output depends on."""
        needed = {*self.outputs}
        nodes = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                nodes.append(node)
                needed.update(filter(None, node.inputs))
        defined = {*self.inputs, *(name for node in nodes for name in node.outputs if name)}
        return replace(
            self,
            nodes=tuple(reversed(nodes)),
            constants={name: array for name, array in self.constants.items() if name in needed},
            values={name: value for name, value in self.values.items() if name in defined},
        )

    # --- text --------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        ends = [", ".join(f"{name}: {self.value(name)}" for name in names) for names in (self.inputs, self.outputs)]
        return "\n".join([f"{self.name}({ends[0]}) -> ({ends[1]})", *map(self._line, self.nodes)])

    def _line(self, node: Node) -> str:
        left = ", ".join(f"{name}: {self.value(name)}" if name else "_" for name in node.outputs)
        return f"  {left} = {node.op}({', '.join(map(self._operand, node.inputs))}){_attributes(node)}"

    def _operand(self, name: str) -> str:
        array = self.constants.get(name)
        if array is None or array.size > _PRINTED:
            return name or "_"
        return str(array.tolist())


def merged_parts(nodes: Iterable[Node]) -> tuple[str, ...]:
    """`parts` of a node that replaces these nodes."""
    return tuple(dict.fromkeys(name for node in nodes for name in node.sources))


def names_of(graph: Graph) -> set[str]:
    """Names of the model's nodes in a graph, including nested graphs."""
    inner = (value for node in graph.nodes for value in node.attributes.values() if isinstance(value, Graph))
    return {node.origin for node in graph.nodes}.union(*map(names_of, inner))


def trimmed(names: Sequence[str]) -> tuple[str, ...]:
    """Remove trailing absent inputs or outputs."""
    return tuple(names[: max((at + 1 for at, name in enumerate(names) if name), default=0)])


def _attributes(node: Node) -> str:
    """Text of the attributes, without those that are None."""
    return "".join(f" {name}={value}" for name, value in node.attributes.items() if value is not None)


def _in_order(nodes: Sequence[Node], known: set[str]) -> tuple[Node, ...]:
    """Sort the nodes topologically, in the given order as far as possible."""
    producers = {name: node for node in nodes for name in node.outputs if name}
    ordered: dict[int, Node] = {}
    for first in nodes:
        path = [(first, iter(first.inputs))]  # depth-first path; each node waits for the next
        waiting = {id(first)}
        while path:
            node, inputs = path[-1]
            before = (producers[name] for name in inputs if name and name not in known)
            missing = next((other for other in before if id(other) not in ordered), None)
            if missing is None:
                ordered[id(node)] = node
                waiting.discard(id(node))
                path.pop()
            elif id(missing) in waiting:
                raise SourceError(f"The graph has a cycle: {missing.label} reads, by way of others, its own output.")
            else:
                path.append((missing, iter(missing.inputs)))
                waiting.add(id(missing))
    return tuple(ordered.values())
