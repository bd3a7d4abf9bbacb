"""Reader of a graph of torch.fx with ATen operators, without in-place ones, to a graph of this project's operators.

Operators whose operands are all constant are computed by PyTorch when the graph is read.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import TABLE
from cpuconv.reading.aten.emitter import INT64, Emitter, Operand, Size, Unsupported
from cpuconv.reading.aten.table import ATEN, SIZES
from cpuconv.reading.aten.tensors import memory_order, numpy_dtype

CHECKS = ("_assert_scalar", "_assert_tensor_metadata", "_assert_async", "sym_constrain_range",
          "sym_constrain_range_for_size")  # fmt: skip
_MAX_FOLDED = 1 << 26  # elements of a constant that is computed when a graph is read


class Read(NamedTuple):
    """A graph that was read.

    Attributes
    ----------
    graph : Graph
    orders : Mapping[str, tuple[int, ...]]
        Axes in the order of memory, of inputs and outputs that the graph has in this order.
    """

    graph: Graph
    orders: Mapping[str, tuple[int, ...]]


def adapter_of(node: fx.Node) -> Any:
    """The adapter of a node's operator; None if there is none."""
    return adapter(node.target)


def adapter(target: Any) -> Any:
    """The adapter of an operator; None if there is none."""
    if not isinstance(target, torch._ops.OpOverload):
        return SIZES.get(target)
    name = target._schema.name.removeprefix("aten::")
    overload = target._schema.overload_name or "default"
    return ATEN.get(f"{name}.{overload}", ATEN.get(name))


def is_check(node: fx.Node) -> bool:
    """Whether a node checks sizes or dtypes and computes nothing."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._opname in CHECKS


def computes(node: fx.Node) -> bool:
    """Whether a node computes a tensor, not just a size or an item of a tuple."""
    found = node.meta.get("val")
    return node.target is not operator.getitem and isinstance(found, (torch.Tensor, list, tuple))


def refused(nodes: Sequence[fx.Node], constants: Mapping[fx.Node, Any]) -> list[fx.Node]:
    """Nodes among some of a graph, in order, whose adapters do not take their form."""
    reader = _Reader("graph", constants, False)
    inside = {*nodes}
    outer = {each for node in nodes for each in node.all_input_nodes if each not in inside and each not in constants}
    reader.inputs({node: node.name for node in outer})
    for node in nodes:
        reader.node(node)
    return reader.refused


def live_nodes(graph: fx.Graph, outputs: Collection[fx.Node]) -> list[fx.Node]:
    """Nodes that outputs depend on, in order."""
    needed = {*outputs}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed]


def read(
    graph: fx.Graph,
    constants: Mapping[fx.Node, Any],
    outputs: Mapping[str, fx.Node],
    name: str,
    inputs: Mapping[fx.Node, str] | None = None,
    *,
    keep_order: bool = False,
) -> Read:
    """Read the nodes of a graph that outputs depend on.

    Parameters
    ----------
    graph : fx.Graph
        A graph without in-place operators; nodes have the result of tracing in ``meta["val"]``.
    constants : Mapping[fx.Node, Any]
        Tensors and numbers for placeholders and attributes.
    outputs : Mapping[str, fx.Node]
        Nodes by the names of the outputs.
    name : str
        Name of the network.
    inputs : Mapping[fx.Node, str] or None
        Names of the inputs, in order; None: those of all other placeholders that are tensors.
    keep_order : bool
        Whether inputs and outputs have their axes in the order of memory that tracing found (see `Read.orders`).

    Raises
    ------
    SourceError
        Some operators have no adapter; the message has all of them.
    """
    reader = _Reader(name, constants, keep_order)
    nodes = live_nodes(graph, outputs.values())
    if inputs is None:
        inputs = {node: node.name for node in graph.nodes if node.op == "placeholder" and node not in constants}
    reader.inputs(inputs)
    for node in nodes:
        reader.node(node)
    if reader.missing:
        raise SourceError(f"{name} has operators without an adapter: {', '.join(reader.missing)}.")
    return reader.finished(outputs)


class _Reader:
    """Reader of one graph: the values of its nodes, and the emitter."""

    def __init__(self, name: str, constants: Mapping[fx.Node, Any], keep_order: bool) -> None:
        self.values: dict[fx.Node, Any] = dict(constants)
        self.emitter, self.keep_order = Emitter(name), keep_order
        self.missing: dict[str, None] = {}
        self.refused: list[fx.Node] = []
        self.orders: dict[str, tuple[int, ...]] = {}

    def inputs(self, names: Mapping[fx.Node, str]) -> None:
        """Add the inputs. A size that is also the size of an input's axis is read from there."""
        self.emitter.names.add(names.values())
        sizes = {node: label for node, label in names.items() if not isinstance(node.meta["val"], torch.Tensor)}
        for node, label in names.items():
            if node not in sizes:
                self.tensor_input(node, label)
        for node, label in sizes.items():
            self.values[node] = self.axis_of(node.meta["val"], names) or self.size_input(label)

    def tensor_input(self, node: fx.Node, label: str) -> None:
        """Add an input of the graph; it has its axes in the order of memory if the reader keeps it."""
        emitter, meta = self.emitter, node.meta["val"]
        emitter.origin = label
        order = memory_order(meta) if self.keep_order else None
        sizes = meta.shape if order is None else [meta.shape[axis] for axis in order]
        emitter.inputs.append(label)
        emitter.values[label] = Value(tuple(map(_symbol, sizes)), emitter.dtype(meta.dtype))
        name = label
        if order is not None:
            self.orders[label] = order
            name = emitter.add("Transpose", label, perm=[order.index(axis) for axis in range(meta.ndim)])
        self.values[node] = Operand.of(name, meta)

    def axis_of(self, size: Any, names: Mapping[fx.Node, str]) -> Size | None:
        """The size of the first axis of an input that is equal to a size."""
        for node in names:
            meta = node.meta["val"]
            for axis, other in enumerate(meta.shape if isinstance(meta, torch.Tensor) else ()):
                if isinstance(other, torch.SymInt) and other.node.expr == size.node.expr:
                    return self.emitter.size_of(self.values[node], axis)
        return None

    def size_input(self, label: str) -> Size:
        """Add a size as an int64 input."""
        self.emitter.inputs.append(label)
        self.emitter.values[label] = Value((), INT64)
        return Size(label)

    def node(self, node: fx.Node) -> None:
        """Read a node, unless its value is known."""
        if node in self.values or node.op in ("placeholder", "output"):
            return
        self.emitter.origin, self.emitter.out = node.name, node.meta.get("val")
        try:
            self.values[node] = self.applied(node)
        except Unsupported as reason:
            self.refused.append(node)
            self.missing[f"{node.target} ({reason})" if str(reason) else str(node.target)] = None
            self.values[node] = self.named("", self.emitter.out)

    def applied(self, node: fx.Node) -> Any:
        """Value of an operator: computed if all operands are constant, else of the nodes that its adapter emits."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
        if node.target is operator.getitem:
            return args[0][args[1]]
        open_operands = any(isinstance(self.values[each], (Operand, Size)) for each in node.all_input_nodes)
        if not open_operands and _is_foldable(node):
            with torch.no_grad():
                return node.target(*args, **kwargs)
        adapter = adapter_of(node)
        if adapter is None:
            raise Unsupported
        if isinstance(node.target, torch._ops.OpOverload):
            args = fx.node.map_aggregate(_all_arguments(node.target, args, kwargs), self.emitter.as_operand)
        return self.named(adapter(self.emitter, *args), self.emitter.out)

    def named(self, result: Any, meta: Any) -> Any:
        """Operands of an adapter's results, with the properties that tracing found."""
        if isinstance(meta, (list, tuple)):
            names = result if isinstance(result, (list, tuple)) else [result] * len(meta)
            return [self.named(each, item) for each, item in zip(names, meta, strict=False)]
        if isinstance(meta, torch.Tensor):
            return Operand.of(result, meta)
        return Size(result) if isinstance(result, str) else result

    def finished(self, outputs: Mapping[str, fx.Node]) -> Read:
        """The graph with outputs of these names."""
        emitter = self.emitter
        emitter.names.add(outputs)
        for label, node in outputs.items():
            name, meta = str(emitter.operand(self.values[node])), node.meta["val"]
            tensor = isinstance(meta, torch.Tensor)  # else an open size
            order = memory_order(meta) if tensor and self.keep_order else None
            if order is not None:
                self.orders[label] = order
            op, attributes = ("Identity", {}) if order is None else ("Transpose", {"perm": list(order)})
            emitter.nodes.append(TABLE[op].node([name], [label], node.name, **attributes))
            if tensor:
                sizes = meta.shape if order is None else [meta.shape[axis] for axis in order]
                emitter.values[label] = Value(tuple(map(_symbol, sizes)), numpy_dtype(meta.dtype))
        return Read(emitter.graph([*outputs]), self.orders)


def _symbol(size: Any) -> int | str | None:
    """A size as graphs state it: a number, or a symbol; None for an expression of symbols."""
    if type(size) is int:
        return size
    expression = size.node.expr
    if expression.is_number:
        return int(expression)
    return str(expression) if expression.is_symbol else None


def _is_foldable(node: fx.Node) -> bool:
    """Whether an operator of constants may be computed when the graph is read.

    Not if it draws, is very large, or dequantises weights, which stay integers.
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    if node.target._opname.startswith("dequantize"):
        return False
    meta = node.meta.get("val")
    sizes = [each.numel() for each in (meta if isinstance(meta, (list, tuple)) else [meta]) if hasattr(each, "numel")]
    drawn = torch.Tag.nondeterministic_seeded in node.target.tags
    return not drawn and all(type(size) is int and size <= _MAX_FOLDED for size in sizes)


def _all_arguments(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Arguments in the order of the operator's schema, with defaults."""
    stated = target._schema.arguments
    given = [*args, *(kwargs.get(each.name, each.default_value) for each in stated[len(args) :])]
    return given
