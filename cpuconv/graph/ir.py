"""The graph of a network: nodes in the order in which they can run, constants, and what is known of every value.

Nothing here changes once made, but that a graph may let go of constants: a rewrite makes a new graph, which shares the
arrays of the old one. Every value is defined once, as an input of the graph, a constant or the output of a node, so its
name says which tensor is meant.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from autotune.data_classes import dataclass
from autotune.locks import lazy
from cpuconv.errors import SourceError
from cpuconv.following.sizes import INT64, SIZES
from cpuconv.graph.stopping import Stop

Shape = tuple[int | str | None, ...]  # of each axis: its size, the symbol that stands for it, or None: unknown

_PRINTED = 8  # constants of at most so many elements are printed where they are used


@dataclass(frozen=True)
class Value:
    """What is known of a tensor.

    Attributes
    ----------
    shape : Shape | None
        Sizes, symbols kept; None where not even the rank is known.
    dtype : np.dtype | None
        Type of the elements, or None.
    array : np.ndarray | None
        The elements, where they are known before the network runs.
    """

    shape: Shape | None = None
    dtype: np.dtype | None = None
    array: np.ndarray | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, array: np.ndarray) -> Value:
        """A tensor whose elements are known."""
        return cls(array.shape, INT64 if array.dtype == SIZES else array.dtype, array)

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether an array may have these sizes, as far as they are known."""
        if self.shape is None:
            return True
        same = (not isinstance(known, int) or known == size for known, size in zip(self.shape, sizes, strict=False))
        return len(self.shape) == len(sizes) and all(same)

    @property
    def concrete(self) -> bool:
        """Whether every size and the dtype are known."""
        return self.dtype is not None and self.shape is not None and all(isinstance(size, int) for size in self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, where sizes and dtype are known; sizes that are not count as 0."""
        assert self.shape is not None and self.dtype is not None
        return math.prod(size if isinstance(size, int) else 0 for size in self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = "?" if self.dtype is None else self.dtype.name
        if self.shape is None:
            return f"{dtype}[…]"
        return f"{dtype}[{','.join('?' if size is None else str(size) for size in self.shape)}]"


UNKNOWN = Value()
"""Of which nothing is known."""


class Meaning(Protocol):
    """What an operator does: the rows of the operators' table, and whatever a reader attaches to a node of its own."""

    def infer(self, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
        """What the outputs are."""

    def evaluate(
        self,
        node: Node,
        arrays: Sequence[np.ndarray | None],
        dtypes: Sequence[np.dtype | None],
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """The outputs, of these dtypes; what has many turns asks `stop` before each."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operator applied: ``outputs = op(inputs)``.

    Attributes
    ----------
    op : str
        Name of the operator.
    inputs : tuple[str, ...]
        Names of values; "" where an optional input is left out.
    outputs : tuple[str, ...]
        Names of values; "" where an optional output is not asked for.
    attributes : Mapping[str, Any]
        Every attribute of the operator, as plain Python values and arrays.
    origin : str
        What the model calls the node.
    parts : tuple[str, ...]
        What it calls the nodes that this one computes, where they are several.
    meaning : Meaning | None
        What the node does, where the operators' table does not know it.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    meaning: Meaning | None = None
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def __getitem__(self, attribute: str) -> Any:
        return self.attributes[attribute]

    def reads(self, names: Mapping[str, str]) -> Node:
        """The node with inputs of other names, where `names` says so."""
        inputs = tuple(names.get(name, name) for name in self.inputs)
        return self if inputs == self.inputs else replace(self, inputs=inputs)

    def writes(self, names: Mapping[str, str]) -> Node:
        """The node with outputs of other names, where `names` says so."""
        outputs = tuple(names.get(name, name) for name in self.outputs)
        return self if outputs == self.outputs else replace(self, outputs=outputs)

    @property
    def sources(self) -> tuple[str, ...]:
        """What the model calls the nodes that this one computes."""
        return self.parts or (self.origin,)

    @property
    def label(self) -> str:
        """How messages call the node."""
        return f"{self.op} node {self.origin or next(filter(None, self.outputs), '')!r}"

    def __str__(self) -> str:
        left = ", ".join(name or "_" for name in self.outputs)
        return f"{left} = {self.op}({', '.join(name or '_' for name in self.inputs)}){_attributes(self)}"


@dataclass(frozen=True, eq=False)
class Graph:
    """A network.

    Attributes
    ----------
    inputs : tuple[str, ...]
        Names of the values that a caller feeds, in order.
    outputs : tuple[str, ...]
        Names of the values that a caller gets, in order.
    nodes : tuple[Node, ...]
        In an order in which they can run; whatever order they are given in.
    constants : Mapping[str, np.ndarray]
        Arrays by name; not to be written to.
    values : Mapping[str, Value]
        What is known of the other values, by name.
    name : str
        Of the network.
    defaults : Mapping[str, Value]
        What is stated of those constants that a caller may feed in the place of their arrays.

    Raises
    ------
    SourceError
        A value is defined twice or not at all, or nodes depend on themselves.
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
        """Whether names are defined once, and nodes stand behind those they read from: what most rewrites keep."""
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

    # --- questions ---------------------------------------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """What is known of a value."""
        array = self.constants.get(name)
        return self.values.get(name, UNKNOWN) if array is None else Value.of(array)

    def operands(self, node: Node) -> list[Value | None]:
        """What is known of the inputs of a node; None for those left out."""
        return [self.value(name) if name else None for name in node.inputs]

    def producer(self, name: str) -> Node | None:
        """The node whose output a value is; None for inputs of the graph and constants."""
        return self._producers.get(name)

    def users(self, name: str) -> tuple[Node, ...]:
        """The nodes that read a value, each once, in order."""
        return self._users.get(name, ())

    def gives(self, name: str) -> bool:
        """Whether a caller gets a value."""
        return name in self._given

    def place(self, node: Node) -> int:
        """The place of a node in the order of all."""
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

    def forget(self, name: str) -> None:
        """Let go of a constant, which is not to be asked for again: a graph of weights takes as much memory as they."""
        self._held.pop(name, None)

    # --- rewrites ----------------------------------------------------------------------------------------------------

    def replaced(
        self,
        old: Iterable[Node],
        new: Iterable[Node],
        constants: Mapping[str, np.ndarray] | None = None,
        values: Mapping[str, Value] | None = None,
    ) -> Graph:
        """The graph with nodes `new` in the place of `old`, and more constants and values.

        What other nodes or the caller read of `old` must be among the outputs of `new` or the constants.
        """
        gone = {id(node) for node in old}
        nodes = (*(node for node in self.nodes if id(node) not in gone), *new)
        return replace(
            self,
            nodes=nodes,
            constants={**self.constants, **(constants or {})},
            values={**self.values, **(values or {})},
        )

    def opened(self, names: Collection[str]) -> Graph:
        """The graph with some of its defaults as inputs, behind the others."""
        added = {name: value for name, value in self.defaults.items() if name in names}
        return replace(
            self,
            inputs=(*self.inputs, *added),
            constants={name: array for name, array in self.constants.items() if name not in added},
            values={**self.values, **added},
            defaults={},
        )

    def live(self) -> Graph:
        """The graph without nodes, constants and values that no output depends on."""
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


def joined(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The `parts` of a node that computes what these do."""
    return tuple(dict.fromkeys(name for node in nodes for name in node.sources))


def names_of(graph: Graph) -> set[str]:
    """What the model calls the nodes of a graph, and those of graphs within them."""
    inner = (value for node in graph.nodes for value in node.attributes.values() if isinstance(value, Graph))
    return {node.origin for node in graph.nodes}.union(*map(names_of, inner))


def trimmed(names: Sequence[str]) -> tuple[str, ...]:
    """Inputs or outputs without those left out at the end."""
    return tuple(names[: max((at + 1 for at, name in enumerate(names) if name), default=0)])


def _attributes(node: Node) -> str:
    """The attributes as text, without those that are left open."""
    return "".join(f" {name}={value}" for name, value in node.attributes.items() if value is not None)


def _in_order(nodes: Sequence[Node], known: set[str]) -> tuple[Node, ...]:
    """The nodes, each behind those it reads from; in the given order, as far as that allows."""
    producers = {name: node for node in nodes for name in node.outputs if name}
    ordered: dict[int, Node] = {}
    for first in nodes:
        path = [(first, iter(first.inputs))]  # each waits for the next
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
