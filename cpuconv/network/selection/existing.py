"""Sizes of a network that leaves them open take algorithms whose kernels are at hand: a run does not wait for others."""

from __future__ import annotations

from dataclasses import replace

from cpuconv.conv.choice.select import at_hand
from cpuconv.conv.choice.ways import Convolution
from cpuconv.network.selection.layout import NetworkPlan, NodePlan


def by_kernels_at_hand(network_plan: NetworkPlan) -> NetworkPlan:
    """The same layout with such algorithms, which give the same bits."""
    nodes = [_by_kernels_at_hand(each) for each in network_plan.nodes]
    return replace(network_plan, nodes=nodes, recorded=None)


def _by_kernels_at_hand(node_plan: NodePlan) -> NodePlan:
    offer = node_plan.offer
    asked = None if offer is None else offer.detail
    if offer is None or not isinstance(asked, Convolution):
        return node_plan
    settled = at_hand(asked.problem, asked.target.strategy, asked.choice, asked.target.limits)
    return replace(node_plan, offer=replace(offer, detail=replace(asked, settled=settled)))
