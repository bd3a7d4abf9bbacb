"""Another size of a network takes algorithms whose kernels exist, where they are nearly as fast as others."""

from __future__ import annotations

from dataclasses import replace

from cpuconv.conv.choice.select import existing
from cpuconv.conv.choice.ways import Convolution
from cpuconv.network.selection.layout import NetworkPlan, NodePlan


def by_kernels_that_exist(network_plan: NetworkPlan) -> NetworkPlan:
    """The same layout with such algorithms."""
    nodes = [_by_kernels_that_exist(each) for each in network_plan.nodes]
    return replace(network_plan, nodes=nodes, recorded=None)


def _by_kernels_that_exist(node_plan: NodePlan) -> NodePlan:
    offer = node_plan.offer
    asked = None if offer is None else offer.detail
    if offer is None or not isinstance(asked, Convolution):
        return node_plan
    settled = existing(asked.problem, asked.target.strategy, asked.target.limits, asked.choice)
    return replace(node_plan, offer=replace(offer, detail=replace(asked, settled=settled)))
