"""Keep values after the last matrix multiplication or convolution in float32, as no later sum averages their errors.

Rounding a logit of 8 to bfloat16 changes its probability by a hundredth.
"""

from __future__ import annotations

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.lowering import Offer
from cpuconv.graph.ops import traits_of
from cpuconv.kernels.binding.tensor_view import FLOAT32, stored_as


def float32_values(graph: Graph, target: Target) -> frozenset[str]:
    """The values that no convolution or matrix multiplication depends on; empty if nothing is rounded."""
    if not target.rounds:
        return frozenset()
    early: set[str] = set()
    for node in reversed(graph.nodes):
        if traits_of(node).product or not early.isdisjoint(node.outputs):
            early.update(node.inputs)
    return frozenset(name for node in graph.nodes for name in node.outputs if name not in early)


def keeps_float32(offer: Offer | None, node: Node, late: frozenset[str]) -> bool:
    """Whether an offer reads and writes these values as float32."""
    if offer is None or not late:
        return True
    forms = zip((*node.inputs, *node.outputs), (*offer.inputs, *offer.outputs), strict=False)
    return not any(name in late and stored_as(form, FLOAT32) != FLOAT32 for name, form in forms)
