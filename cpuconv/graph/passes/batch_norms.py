"""BatchNormalization by constants, where it went into no weights, becomes Mul and Add.

(x - mean) / sqrt(variance + epsilon) scale + bias = x s + t with s = scale / sqrt(variance + epsilon), t = bias - mean s:
computed in float64 and rounded once, equal up to rounding.
"""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Rewrite, rewritten
from cpuconv.graph.passes.weights import affine


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    value = graph.value(node.inputs[0]) if node.op == "BatchNormalization" else None
    if value is None or len(value.shape) < 2:
        return None
    with np.errstate(all="ignore"):
        step = affine(graph, node, node.inputs[0], 1)
    if step is None:
        return None
    maker = Maker(graph, node)
    scale, shift = (
        maker.constant(vector.astype(value.dtype).reshape(-1, *[1] * (len(value.shape) - 2)), part)
        for vector, part in zip(step, ("scale", "shift"), strict=True)
    )
    maker.node("Add", maker.node("Mul", node.inputs[0], scale, part="scaled"), shift)
    return maker.done()


def run(graph: Graph) -> Graph:
    """Rewrite them all."""
    return rewritten(graph, _rule)
