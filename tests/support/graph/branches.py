"""A network with branches, some of which end in a concatenation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.isa import current
from cpuconv.network.selection.layout import NetworkPlan, lay_out
from cpuconv.network.sizes.prepared import Rewriting, prepared
from cpuconv.reading.onnx_reader import read
from support.graphs import normal, parse

_TEXT = """g (float[N,20,14,14] x) => (float[N,M,14,14] y, float[N,20,14,14] z) {
    a = Conv(x, wa)
    b0 = Conv(x, wb)
    b = Conv<pads = [1, 1, 1, 1]>(b0, wb2)
    c0 = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)
    c = Conv(c0, wc)
    y = Concat<axis = 1>(a, b, c)
    m = GlobalAveragePool(x)
    n = Conv(m, wm)
    z = Mul(x, n)
}"""
_WEIGHTS = {
    "wa": (48, 20, 1, 1),
    "wb": (33, 20, 1, 1),
    "wb2": (48, 33, 3, 3),
    "wc": (16, 20, 1, 1),
    "wm": (20, 20, 1, 1),
}


def slowed(network_plan: NetworkPlan) -> NetworkPlan:
    """The same, every operator of which would take a second."""
    slow = [each.offer and replace(each.offer, seconds=1.0) for each in network_plan.nodes]
    nodes = [replace(each, offer=offer) for each, offer in zip(network_plan.nodes, slow, strict=True)]
    return replace(network_plan, nodes=nodes)


def branches(n: int, threads: int = 2) -> NetworkPlan:
    """It, laid out for `n` images."""
    made = parse(_TEXT, **normal(np.random.default_rng(0), _WEIGHTS))
    graph = prepared(read(made), {"x": (n, 20, 14, 14)}, Rewriting()).graph
    return lay_out(graph, Target(current(), threads, "heuristic"))
