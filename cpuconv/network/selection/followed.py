"""The plan of a network with sizes that a trace follows in the place of numbers."""

from __future__ import annotations

from dataclasses import replace

from cpuconv.conv.choice.ways import Convolution
from cpuconv.graph import ops
from cpuconv.graph.ir import Graph, Node
from cpuconv.network.selection.layout import NetworkPlan, NodePlan


def followed(plan: NetworkPlan, graph: Graph) -> NetworkPlan:
    """The plan for the same graph with other sizes: the same offers, candidates and copies.

    Parameters
    ----------
    plan : NetworkPlan
    graph : Graph
        The graph that was laid out, with sizes that are followed. It keeps its constants.

    Raises
    ------
    TypeError
        A candidate cannot be taken over.
    """
    nodes = {node.outputs: node for node in graph.nodes}
    values = dict(graph.values)
    listed = []
    for each in plan.nodes:
        node = nodes.get(each.node.outputs, each.node)
        if node is each.node and each.node.outputs not in nodes:  # a copy
            values[node.outputs[0]] = graph.value(node.inputs[0])
        listed.append(node if node.inputs == each.node.inputs else replace(node, inputs=each.node.inputs))
    made = Graph(graph.inputs, plan.graph.outputs, tuple(listed), {**graph.constants}, values, graph.name)
    plans = [_followed(made, each, node, plan) for each, node in zip(plan.nodes, listed, strict=True)]
    return replace(plan, graph=made, nodes=plans, recorded=None)


def _followed(graph: Graph, node_plan: NodePlan, node: Node, plan: NetworkPlan) -> NodePlan:
    """A node of the plan with other sizes."""
    offer = node_plan.offer
    asked = None if offer is None else offer.detail
    if offer is None or not isinstance(asked, Convolution):
        return NodePlan(node, offer)
    op, target = ops.TABLE[node.op], plan.target.of(node.sources)
    assert op.restored is not None
    made = op.restored(node, graph.operands(node), target, asked.recorded(), False)
    if made is None or (made.inputs, made.outputs) != (offer.inputs, offer.outputs):
        raise TypeError(f"{node.label} cannot follow sizes")
    return NodePlan(node, replace(offer, detail=replace(made.detail, seconds=asked.seconds, settled=asked.choice)))
