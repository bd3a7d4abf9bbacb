"""Regions of a graph with another mode of autograd or autocast, which torch.export keeps as graphs of their own."""

from __future__ import annotations

import operator

import torch
from torch import fx

_FIRST = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}  # position of the region's graph among arguments


def inline_regions(graph: fx.Graph, owner: torch.nn.Module) -> None:
    """Replace regions by their nodes. Types of results are those of autocast; `precision` decides how to compute them.

    Parameters
    ----------
    graph : fx.Graph
    owner : torch.nn.Module
        Has the graphs of the regions as attributes.
    """
    for node in [*graph.nodes]:
        first = _FIRST.get(getattr(node.target, "__name__", ""))
        if node.op != "call_function" or first is None:
            continue
        region = node.args[first]
        inner: fx.GraphModule = getattr(owner, region.target)
        inline_regions(inner.graph, inner)
        places = [each for each in inner.graph.nodes if each.op == "placeholder"]
        copies: dict[fx.Node, fx.Node] = dict(zip(places, node.args[first + 1 :], strict=True))
        with graph.inserting_before(node):
            results = graph.graph_copy(inner.graph, copies)
        for user in [*node.users]:
            if user.target is operator.getitem:
                user.replace_all_uses_with(results[user.args[1]])
                graph.erase_node(user)
        graph.erase_node(node)
        if not region.users:
            graph.erase_node(region)
