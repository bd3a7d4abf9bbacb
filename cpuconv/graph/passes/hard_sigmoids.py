"""HardSigmoid of other slopes than a sixth, behind a convolution or Linear, becomes Mul, Add and Clip.

HardSigmoid(x) = Clip(alpha x + beta, 0, 1) by definition. The Mul and Add can then go into the weights and the Clip
into the epilogue, where a sixth and a half have a form of their own. Equal up to rounding.
"""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.pattern import near
from cpuconv.graph.passes.rewriting import Maker, Rewrite, rewritten, sole_reader
from cpuconv.graph.passes.weights import foldable


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    if node.op != "HardSigmoid" or (near(node["alpha"], 1 / 6) and near(node["beta"], 0.5)):
        return None
    (x,) = node.inputs
    if sole_reader(graph, x) is None or not foldable(graph, graph.producer(x)):
        return None
    maker, dtype = Maker(graph, node), graph.value(x).dtype
    slope, shift, low, high = (
        maker.constant(np.array(number, dtype), part)
        for number, part in ((node["alpha"], "slope"), (node["beta"], "shift"), (0, "low"), (1, "high"))
    )
    scaled = maker.node("Mul", x, slope, part="scaled")
    maker.node("Clip", maker.node("Add", scaled, shift, part="shifted"), low, high)
    return maker.done()


def run(graph: Graph) -> Graph:
    """Rewrite them all."""
    return rewritten(graph, _rule)
