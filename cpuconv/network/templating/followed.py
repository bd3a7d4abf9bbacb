"""Replace the sizes in a network's layout plan by symbolic sizes of a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.target import Target
from cpuconv.graph import ops
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.lowering import Offer
from cpuconv.graph.ops.base import OPERAND_ERRORS
from cpuconv.graph.ops.recurrent_states import StateProducts
from cpuconv.isa import current
from cpuconv.network.selection.layout import NetworkPlan, NodePlan
from cpuconv.network.selection.row_norms import target_of
from cpuconv.solvers import why_not
from cpuconv.symbolic.sizes import Trace


class Followed(NamedTuple):
    """A plan, and the first outputs of the nodes whose offers are valid only for checked numbers."""

    plan: NetworkPlan
    per_size: frozenset[str]


def followed(plan: NetworkPlan, graph: Graph, trace: Trace) -> Followed:
    """The plan for the same graph with symbolic sizes: the same offers, candidates and copies.

    The validity of an offer is checked by comparisons of sizes, so that the trace records for which others it is valid.

    Parameters
    ----------
    plan : NetworkPlan
    graph : Graph
        The planned graph with symbolic sizes of `trace`. It keeps its constants.
    trace : Trace

    Raises
    ------
    TypeError
        A candidate is not valid for symbolic sizes.
    """
    nodes = {node.outputs: node for node in graph.nodes}
    values = dict(graph.values)
    listed = []
    for each in plan.nodes:
        node = nodes.get(each.node.outputs)
        if node is None:  # a copy
            node = each.node
            values[node.outputs[0]] = graph.value(node.inputs[0])
        listed.append(node if node.inputs == each.node.inputs else replace(node, inputs=each.node.inputs))
    made = Graph(graph.inputs, plan.graph.outputs, tuple(listed), {**graph.constants}, values, graph.name)
    plans, per_size = [], set()
    for each, node in zip(plan.nodes, listed, strict=True):
        offer = None if each.offer is None else _followed(made, node, each.offer, plan)
        plans.append(NodePlan(node, offer))
        if (
            offer is not None
            and not isinstance(offer.detail, LayoutCandidate)
            and not _is_right(made, node, offer, target_of(made, node, plan.target), trace)
        ):
            per_size.add(next(filter(None, node.outputs)))
    return Followed(replace(plan, graph=made, nodes=plans, recorded=None), frozenset(per_size))


def _followed(graph: Graph, node: Node, offer: Offer, plan: NetworkPlan) -> Offer:
    """An offer for symbolic sizes."""
    asked = offer.detail
    if not isinstance(asked, LayoutCandidate):
        return offer
    op, operands, made = ops.TABLE[node.op], graph.operands(node), None
    if isinstance(asked, StateProducts):
        x, lengths = operands[0], operands[4] if len(operands) > 4 else None
        assert x is not None and x.shape is not None
        made = None if lengths is not None and lengths.array is not None else asked.resized(x.shape)  # type: ignore[arg-type]  # concrete
    elif op.restored is not None:
        found = op.restored(node, operands, target_of(graph, node, plan.target), asked.recorded(), False)
        alike = found is not None and (found.inputs, found.outputs) == (offer.inputs, offer.outputs)
        made = found.detail if found is not None and alike else None
    candidate = asked.choice.candidate
    if made is None or why_not(candidate.solver, made.problem, current()) is not None:
        made = None
    elif plan.target.limits.closed and candidate.solver.is_closed is not None:
        made = made if candidate.solver.is_closed(made.problem, candidate.params, current()) else None
    if made is None:
        raise TypeError(f"{node.label} has no kernel calls for symbolic sizes")
    return replace(offer, detail=replace(made, seconds=asked.seconds, settled=asked.choice))


def _is_right(graph: Graph, node: Node, offer: Offer, target: Target, trace: Trace) -> bool:
    """Whether a node with these symbolic sizes has the offer; False if only numbers can decide that.

    Raises
    ------
    TypeError
        It does not have the offer.
    """
    op, operands = ops.TABLE[node.op], graph.operands(node)
    assert op.offers is not None
    try:
        with trace.strictly():
            offers = op.offers(node, operands, target)
    except MemoryError:
        raise
    except OPERAND_ERRORS:
        if offer.view:  # its addresses are computed from sizes in any case
            raise
        return False
    if not any(each.has_forms_of(offer) for each in offers):
        raise TypeError(f"{node.label} has no kernel calls for symbolic sizes")
    return True
