"""Rewrites and their driver, replacement of values by equal ones, queries, and construction of new nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.graph import ops
from cpuconv.graph.ir import Graph, Node, Value, merged_parts, trimmed
from cpuconv.graph.ops.base import OPERAND_ERRORS, operand_error
from cpuconv.symbolic.sizes import is_symbolic, sizes_array


@dataclass(frozen=True, eq=False)
class Rewrite:
    """Nodes to remove, and nodes and constants to add.

    Outputs of `new` include all values of `old` that other nodes read, with the same shape and dtype. Instead of new
    nodes, `equal` may name the values that the outputs of one old node equal.
    """

    old: Sequence[Node]
    new: Sequence[Node] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    equal: Sequence[str] = ()

    @property
    def fresh(self) -> set[str]:
        """Names that are added to the graph."""
        return self._written(self.new) - self._written(self.old) | {*self.constants}

    @property
    def gone(self) -> set[str]:
        """Names that are removed from the graph; readers of removed names that equal others are renamed."""
        return set() if self.equal else self._written(self.old) - self._written(self.new)

    @property
    def read(self) -> set[str]:
        """Names that are read afterwards."""
        return {name for node in self.new for name in node.inputs}.union(self.equal)

    @staticmethod
    def _written(nodes: Iterable[Node]) -> set[str]:
        return {name for node in nodes for name in node.outputs if name}


Rule = Callable[[Graph, Node], Rewrite | None]
Rules = Mapping[str, Rule]  # by operator, for nodes without semantics of their own
Step = Rules | Callable[[Graph], Graph]


@dataclass(frozen=True)
class Pass:
    """A rewrite of graphs. It is applied by calling it with a graph.

    Attributes
    ----------
    name : str
        Name by which it can be skipped.
    text : str | None
        What it does and why results are equal.
    steps : tuple[Step, ...]
        Applied in order: rules as by `rewritten`, or a function of the graph, such as a `Formula`.
    needs : tuple[str, ...]
        Rewrites that must leave nothing to do before this one runs.
    undoes : tuple[str, ...]
        Rewrites that may have something to do after this one.
    includes : tuple[str, ...]
        Rewrites whose work this one does too.
    early : bool
        Whether it also runs before the dequantisation of constants is folded.
    """

    name: str
    text: str | None
    steps: tuple[Step, ...]
    needs: tuple[str, ...] = ()
    undoes: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    early: bool = False

    def __call__(self, graph: Graph) -> Graph:
        """Apply the rewrite."""
        for step in self.steps:
            graph = rewritten(graph, step) if isinstance(step, Mapping) else step(graph)
        return graph


def scheduled(passes: Iterable[Pass]) -> tuple[Pass, ...]:
    """Order rewrites by what they need; those that a later one undoes run again. Missing ones count as done."""
    known = {each.name: each for each in passes}
    order: list[Pass] = []
    left = {*known}

    def run(name: str) -> None:
        while missing := next((need for need in known[name].needs if need in left), ""):
            run(missing)
        order.append(known[name])
        assert len(order) < len(known) ** 2, "rewrites undo each other"
        left.update(known.keys() & known[name].undoes)
        left.difference_update((name, *known[name].includes))

    while left:
        run(min(left))
    return tuple(order)


def either(*rules: Rules) -> Rules:
    """Merge rules; of several for an operator, the first that replaces a node counts."""

    def rule(graph: Graph, node: Node) -> Rewrite | None:
        found = (each[node.op](graph, node) for each in rules if node.op in each)
        return next((rewrite for rewrite in found if rewrite is not None), None)

    return dict.fromkeys(itertools.chain(*rules), rule)


def rewritten(graph: Graph, rules: Rules) -> Graph:
    """Apply `rules` until no node is replaced; remove nodes that no output needs.

    Parameters
    ----------
    graph : Graph
        A specialised graph.
    rules : Rules
        Rules that return the replacement of a node. They must not replace their own results forever, or rewriting
        does not terminate.

    Raises
    ------
    SourceError
        A node is invalid for its operator.
    """
    while (found := _found(graph, rules)) and (made := _applied(graph, found)) is not graph:
        graph = made
    return graph


def _found(graph: Graph, rules: Rules) -> list[Rewrite]:
    """Collect independent rewrites of all nodes, except for nodes of an earlier one, so that a chain is searched once.

    Rewrites that share a node or a new name with an earlier one are skipped, and so are those that read a value which
    an earlier one removes, and vice versa. A later round applies them.

    Raises
    ------
    SourceError
        A node is invalid for its operator.
    """
    nodes: set[int] = set()
    fresh: set[str] = set()
    gone: set[str] = set()
    read: set[str] = set()
    found = []
    for node in graph.nodes:
        rule = rules.get(node.op)
        if rule is None or node.semantics is not None or id(node) in nodes:
            continue
        try:
            rewrite = rule(graph, node)
        except OPERAND_ERRORS as error:
            raise operand_error(node, graph.operands(node), error) from error
        if rewrite is None:
            continue
        old = {id(node) for node in rewrite.old}
        apart = fresh.isdisjoint(rewrite.fresh) and gone.isdisjoint(rewrite.read) and read.isdisjoint(rewrite.gone)
        if apart and nodes.isdisjoint(old):
            found.append(rewrite)
            nodes |= old
            fresh |= rewrite.fresh
            gone |= rewrite.gone
            read |= rewrite.read
    return found


def _applied(graph: Graph, rewrites: Sequence[Rewrite]) -> Graph:
    """Apply independent rewrites."""
    equal = [(rewrite.old[0], rewrite.equal) for rewrite in rewrites if rewrite.equal]
    if len(equal) < len(rewrites):
        graph = _replaced(graph, [rewrite for rewrite in rewrites if not rewrite.equal])
    return without(graph, equal)


def _replaced(graph: Graph, rewrites: Sequence[Rewrite]) -> Graph:
    """Replace nodes: new ones take the place of the last of the old ones in the order."""
    constants, values = dict(graph.constants), dict(graph.values)
    replaced: dict[int, Rewrite] = {}
    for rewrite in rewrites:
        constants.update(rewrite.constants)
        for node in rewrite.new:
            values.update(_inferred(node, constants, values))
        replaced |= {id(node): rewrite for node in rewrite.old}
    nodes: list[Node] = []
    done = set()
    for node in reversed(graph.nodes):
        taken = replaced.get(id(node))
        if taken is None:
            nodes.append(node)
        elif id(taken) not in done:
            done.add(id(taken))
            nodes += reversed(_with_parts(taken))
    return replace(graph, nodes=tuple(reversed(nodes)), constants=constants, values=values).live()


def _with_parts(rewrite: Rewrite) -> list[Node]:
    """New nodes with their `parts`: data movement has the old moving nodes, computation the others; if none, all."""
    alike: dict[bool, list[Node]] = {True: [], False: []}
    for node in rewrite.old:
        alike[_moves(node)].append(node)
    return [replace(node, parts=merged_parts(alike[_moves(node)] or rewrite.old)) for node in rewrite.new]


def _moves(node: Node) -> bool:
    """Whether a node only changes the view of its data."""
    return node.semantics is None and ops.TABLE[node.op].view is not None


def _inferred(node: Node, constants: Mapping[str, np.ndarray], values: Mapping[str, Value]) -> dict[str, Value]:
    """Infer a new node's outputs, which must equal the old ones; with open sizes, the known properties are kept."""
    inputs = [
        (Value.of(constants[name]) if name in constants else values.get(name, Value())) if name else None
        for name in node.inputs
    ]
    if any(value is not None and not value.concrete for value in inputs):
        return {name: values.get(name, Value()) for name in node.outputs if name}
    outputs = zip(node.outputs, ops.semantics(node).infer(node, inputs), strict=False)
    made = {name: Value(value.shape, value.dtype) for name, value in outputs if name}
    for name, value in made.items():
        assert values.get(name, value) == value, f"{node} gives {value}, not {values[name]}"
    return made


def without(graph: Graph, equal: Iterable[tuple[Node, Sequence[str]]]) -> Graph:
    """Remove nodes whose outputs equal other values.

    Names of graph inputs and outputs do not change; a node from one to another such name stays.

    Parameters
    ----------
    equal : Iterable[tuple[Node, Sequence[str]]]
        Nodes in order, each with the values that its outputs equal, which do not depend on the node.
    """
    names: dict[str, str] = {}
    gone: set[int] = set()

    def final(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    for node, sources in equal:
        renamed: dict[str, str] = {}
        for copy, source in zip(node.outputs, map(final, sources), strict=True):
            if not graph.is_output(copy):
                renamed[copy] = source
            elif graph.is_output(source) or source in renamed or graph.producer(source) is None:
                break
            else:
                renamed[source] = copy
        else:
            names |= {name: other for name, other in renamed.items() if name}
            gone.add(id(node))
    if not gone:
        return graph
    names = {name: final(name) for name in names}
    nodes = (node.reads(names).writes(names) for node in graph.nodes if id(node) not in gone)
    return replace(graph, nodes=tuple(nodes)).live()


# --- queries --------------------------------------------------------------------------------------------------------


def sole_reader(graph: Graph, name: str) -> Node | None:
    """The only reader of a value; None if there are more readers or the value is an output."""
    users = graph.users(name)
    return users[0] if len(users) == 1 and not graph.is_output(name) else None


def constant(graph: Graph, name: str) -> np.ndarray | None:
    """Elements of a constant; None for other values."""
    return graph.constants.get(name)


def scalar(graph: Graph, name: str) -> float | None:
    """Element of a constant with one element."""
    array = graph.constants.get(name)
    return float(array.item()) if array is not None and array.size == 1 else None


def is_float(graph: Graph, name: str) -> bool:
    """Whether a value is floating-point."""
    dtype = graph.value(name).dtype
    return dtype is not None and ops.base.is_float(dtype)


def shape_of(graph: Graph, name: str) -> tuple[int, ...]:
    """Sizes of a value; all are numbers, as the graph is specialised."""
    shape = graph.value(name).shape
    assert shape is not None, name
    return cast(tuple[int, ...], shape)


def operand(node: Node, position: int) -> str:
    """Name of an input; "" if it is absent."""
    return node.inputs[position] if position < len(node.inputs) else ""


def per_channel(array: np.ndarray, shape: Sequence[int], axis: int, shared: bool = False) -> np.ndarray | None:
    """Convert a constant to one float64 number per index on `axis` of a tensor of `shape`.

    None if it differs along another axis or enlarges the tensor. A single number is not repeated if it may be `shared`,
    or if the size of the axis is symbolic.
    """
    if array.ndim > len(shape):
        return None
    sizes = (*[1] * (len(shape) - array.ndim), *array.shape)
    if any(size != 1 for at, size in enumerate(sizes) if at != axis) or sizes[axis] not in (1, shape[axis]):
        return None
    numbers = array.reshape(-1).astype(np.float64)
    return numbers if shared or is_symbolic(shape[axis]) else np.broadcast_to(numbers, shape[axis])


# --- construction ---------------------------------------------------------------------------------------------------


class Maker:
    """Builder of the nodes and constants that replace nodes, with new names.

    Parameters
    ----------
    graph : Graph
    old : Node
        Nodes to remove; the last one's output name is used for the result.
    origin : str
        Name of the new nodes in the model; by default that of the first of `old`.
    """

    def __init__(self, graph: Graph, *old: Node, origin: str = "") -> None:
        self.graph, self.old = graph, old
        self.output = old[-1].outputs[0]
        self.origin = origin or old[0].origin
        self.new: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self._names: set[str] = set()

    def constant(self, array: np.ndarray, part: str) -> str:
        """Add a constant and return its name."""
        name = self.named(part)
        array = array.view()
        array.flags.writeable = False
        self.constants[name] = array
        return name

    def node(self, op: str, *inputs: str, part: str = "", **attributes: Any) -> str:
        """Add a node and return its output's name: a new one with the suffix `part`, or that of the last old node."""
        output = self.named(part) if part else self.output
        self.new.append(ops.TABLE[op].node(trimmed(inputs), [output], self.origin, **attributes))
        return output

    def reshape(self, x: str, shape: Sequence[int], part: str = "") -> str:
        """Add a Reshape and return its output's name."""
        sizes = self.constant(sizes_array(shape), f"{part or 'out'}.shape")
        return self.node("Reshape", x, sizes, part=part, allowzero=1)

    def done(self) -> Rewrite:
        """Make the rewrite."""
        return Rewrite(self.old, self.new, self.constants)

    def named(self, part: str) -> str:
        """Make a name that the graph does not have."""
        hints = (f"{self.output}.{part}{number or ''}" for number in itertools.count())
        known = (self.graph.constants, self.graph.values, self._names)
        name = next(name for name in hints if not any(name in names for names in known))
        self._names.add(name)
        return name


def instead(graph: Graph, node: Node, op: str, *inputs: str, **attributes: Any) -> Rewrite:
    """Replace a node by another one."""
    maker = Maker(graph, node)
    maker.node(op, *inputs, **attributes)
    return maker.done()


def reshaped(graph: Graph, node: Node, x: str) -> Rewrite:
    """Replace a node by a Reshape of `x` to the shape of its output."""
    maker = Maker(graph, node)
    maker.reshape(x, shape_of(graph, node.outputs[0]))
    return maker.done()
