"""Prefer algorithms with kernels at hand in networks with open sizes, so that runs do not wait for a compiler."""

from __future__ import annotations

import functools
from dataclasses import replace

from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.model import Choice
from cpuconv.conv.choice.substitutes import with_kernels_at_hand
from cpuconv.network.selection.layout import NetworkPlan, NodePlan


def by_kernels_at_hand(network_plan: NetworkPlan) -> NetworkPlan:
    """Replace the algorithms of a layout plan by those with kernels at hand and the same rounding."""
    replaced = functools.cache(with_kernels_at_hand)  # cached, as layers may be equal

    def settled(node_plan: NodePlan) -> NodePlan:
        offer = node_plan.offer
        detail = None if offer is None else offer.detail
        if offer is None or not isinstance(detail, LayoutCandidate):
            return node_plan
        choice: Choice = replaced(detail.problem, detail.target.strategy, detail.choice, detail.target.limits)
        return replace(node_plan, offer=replace(offer, detail=replace(detail, settled=choice)))

    return replace(network_plan, nodes=list(map(settled, network_plan.nodes)), recorded=None)
