"""Functional form of a graph of torch.fx: in-place operators become new values, also of views and their bases.

An in-place operator on a view is written back into the base, from view to view, by the inverse of each; other views of
the base are then made again. Which tensors share memory is what tracing found.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from cpuconv.reading.aten.emitter import Unsupported

_ATEN = torch.ops.aten
_RESHAPES = ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
             "ravel")  # fmt: skip
_SAME = ("contiguous", "to", "detach", "alias", "type_as", "lift_fresh", "dropout", "feature_dropout")


def storages(node: fx.Node) -> set[StorageWeakRef]:
    """Memory of a node's results."""
    found = node.meta.get("val")
    tensors = found if isinstance(found, (list, tuple)) else [found]
    return {StorageWeakRef(each.untyped_storage()) for each in tensors if isinstance(each, torch.Tensor)}


def is_view(node: fx.Node) -> bool:
    """Whether the result of a node shares the memory of an operand, other than the tuple that it is an item of."""
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return node.op == "call_function" and any(storages(node) & storages(each) for each in node.all_input_nodes)


def viewed(node: fx.Node) -> fx.Node:
    """The operand whose memory a view shares."""
    return next(each for each in node.all_input_nodes if storages(node) & storages(each))


def written(node: fx.Node) -> list[fx.Node]:
    """The operands that a node writes to."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return []
    stated = target._schema.arguments
    given = dict(zip((each.name for each in stated), node.args, strict=False)) | node.kwargs
    return [given[each.name] for each in stated if each.alias_info is not None and each.alias_info.is_write
            and isinstance(given.get(each.name), fx.Node)]  # fmt: skip


def make_functional(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Replace the in-place operators of a graph.

    Returns
    -------
    dict[fx.Node, fx.Node]
        The final values of placeholders and attributes that the graph wrote to.

    Raises
    ------
    Unsupported
        An operator has no functional form, or a view no inverse.
    """
    if not any(map(written, graph.nodes)):
        return {}
    rewriting = _Rewriting(graph)
    for node in [*graph.nodes]:
        rewriting.node(node)
    for node in reversed(rewriting.removed):
        graph.erase_node(node)
    graph.eliminate_dead_code()
    ends = ("placeholder", "get_attr")
    return {node: value for node, value in rewriting.values.items() if node.op in ends and value is not node}


class _Rewriting:
    """Replacement of the in-place operators of one graph.

    Attributes
    ----------
    values : dict[fx.Node, fx.Node]
        Current values of the nodes of the given graph.
    removed : list[fx.Node]
        In-place operators, which nothing reads any more.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.values: dict[fx.Node, fx.Node] = {}
        self.removed: list[fx.Node] = []
        self._parents: dict[fx.Node, fx.Node] = {}  # of views: the node whose memory they share
        self._arguments: dict[fx.Node, Any] = {}  # of views, as in the given graph

    def node(self, node: fx.Node) -> None:
        """Let a node read current values; replace it if it writes to an operand."""
        targets, self.values[node] = written(node), node
        self._arguments[node] = node.args, node.kwargs
        if is_view(node):
            self._parents[node] = viewed(node)
        node.args, node.kwargs = fx.node.map_arg(self._arguments[node], self.values.__getitem__)
        if not targets:
            return
        if len(targets) > 1 or targets[0] is not self._arguments[node][0][0]:
            raise Unsupported(f"{node.target} in place")
        with self.graph.inserting_before(node):
            new = self.made(_without_writing(node), (node.args, node.kwargs), node)
            self.write(targets[0], new)
        self.values[node] = self.values[targets[0]]
        self.removed.append(node)

    def write(self, target: fx.Node, value: fx.Node) -> None:
        """Give a node a new value, the nodes whose memory it shares, and their other views."""
        written_to = {target}
        self.values[target] = value
        while target in self._parents:
            parent = self._parents[target]
            value = self.written_back(target, value, parent)
            self.values[parent] = value
            written_to.add(parent)
            target = parent
        for view, parent in self._parents.items():
            if parent in written_to and view not in written_to:
                self.values[view] = self.values[parent] if _is_same(view) else self.again(view)
                written_to.add(view)

    def again(self, view: fx.Node) -> fx.Node:
        """The same view of the current value of its operand."""
        return self.made(view.target, fx.node.map_arg(self._arguments[view], self.values.__getitem__), view)

    def written_back(self, view: fx.Node, value: fx.Node, parent: fx.Node) -> fx.Node:
        """The value of a node one of whose views has another value."""
        if _is_same(view):
            return value
        name = getattr(view.target, "_opname", "")
        if not isinstance(parent.meta["val"], torch.Tensor):
            raise Unsupported("a write to a part")
        args = fx.node.map_arg(view.args, lambda each: each)
        old, rank = self.values[parent], parent.meta["val"].ndim
        if name in _RESHAPES:
            sizes = [*parent.meta["val"].shape]
            if all(type(size) is int for size in sizes):
                return self.made(_ATEN.reshape.default, ((value, sizes), {}), parent)
        elif name in ("transpose", "t", "permute"):
            order = [*range(rank)]
            if name == "permute":
                order = [axis % rank for axis in args[1]]
            elif rank > 1:
                first, second = args[1:3] if name == "transpose" else (0, 1)
                order[first], order[second] = order[second], order[first]
            inverse = [order.index(axis) for axis in range(rank)]
            return self.made(_ATEN.permute.default, ((value, inverse), {}), parent)
        elif name == "select":
            return self.made(_ATEN.select_scatter.default, ((old, value, *args[1:]), view.kwargs), parent)
        elif name == "slice":
            return self.made(_ATEN.slice_scatter.default, ((old, value, *args[1:]), view.kwargs), parent)
        raise Unsupported(f"a write through {view.target}")

    def made(self, target: Any, arguments: Any, like: fx.Node) -> fx.Node:
        """Insert a call whose result is like that of another node."""
        new = self.graph.call_function(target, *arguments)
        new.meta = dict(like.meta)
        return new


def _is_same(view: fx.Node) -> bool:
    """Whether a view has the elements of its operand in the same places."""
    if written(view):
        return True
    return isinstance(view.target, torch._ops.OpOverload) and view.target._opname in _SAME


def _without_writing(node: fx.Node) -> Any:
    """The functional form of an in-place operator."""
    name = node.target._opname
    plain = f"__{name[3:]}" if name.startswith("__i") else name[:-1] if name.endswith("_") else ""
    packet = getattr(_ATEN, plain, None) if plain else None
    overload = node.target._overloadname
    if packet is None or overload not in packet.overloads():
        raise Unsupported(f"{node.target} in place")
    return getattr(packet, overload)
