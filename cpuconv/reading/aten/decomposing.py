"""Decomposition by PyTorch of operators that have no adapter into ones that have."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from cpuconv.reading.aten.functional import make_functional
from cpuconv.reading.aten.fx_reader import adapter, adapter_of, computes


def decompose(graph: fx.Graph) -> None:
    """Replace operators without adapter whose decomposition has only operators with adapters."""
    for node in [*graph.nodes]:
        if not isinstance(node.target, torch._ops.OpOverload) or adapter_of(node) is not None or not computes(node):
            continue
        found = _decomposed(node)
        if found is not None and all(map(_is_known, found.nodes)):
            _inline(graph, node, found)


@functools.cache
def _table() -> Mapping[Any, Callable[..., Any]]:
    """PyTorch's decompositions of operators without adapter."""
    return {target: whole for target, whole in torch._decomp.decomposition_table.items() if adapter(target) is None}


def _is_known(node: fx.Node) -> bool:
    return node.op != "call_function" or node.target is operator.getitem or adapter_of(node) is not None


def _decomposed(node: fx.Node) -> fx.Graph | None:
    """The graph of a decomposition as a function of the node's operands; None if PyTorch has none."""
    target: Any = node.target
    table = _table()
    whole: Callable[..., Any] | None = table.get(target)
    if whole is None and torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
        whole = target.decompose
    operands = node.all_input_nodes
    if whole is None or not all("val" in each.meta for each in operands):
        return None

    def call(*values: Any) -> Any:
        given = dict(zip(operands, values, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
        result = whole(*args, **kwargs)
        return [*result] if isinstance(result, tuple) else result  # without named tuples, which would be nodes

    try:
        with torch.no_grad():
            traced = make_fx(call, table, tracing_mode="symbolic", _allow_non_fake_inputs=True)
            made: fx.Graph = traced(*(each.meta["val"] for each in operands)).graph
        make_functional(made)
    except Exception:  # of any kind: a decomposition is any Python code, and may need elements
        return None
    made.eliminate_dead_code()
    return made


def _inline(graph: fx.Graph, node: fx.Node, found: fx.Graph) -> None:
    """Replace a node by a graph of its operands."""
    places = (each for each in found.nodes if each.op == "placeholder")
    copies: dict[fx.Node, Any] = dict(zip(places, node.all_input_nodes, strict=True))
    with graph.inserting_before(node):
        results: Any = graph.graph_copy(found, copies)
    if isinstance(results, fx.Node):
        node.replace_all_uses_with(results)
    else:
        for user in [*node.users]:
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)
