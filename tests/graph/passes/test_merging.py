"""The pass that merges elementwise nodes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from cpuconv.graph.passes import elementwise  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from support.graph import (
    draws,  # noqa: E402
    lowered,  # noqa: E402
)
from support.graphs import made, parse  # noqa: E402

SHAPES = {"x": (2, 5, 3, 4), "s": (2, 5, 1, 1), "m": (3, 4)}
MODELS = {  # nodes, and what is left of them
    "a chain": ("a = Relu(x) b = Exp(a) y = Neg(b)", ["Elementwise"]),
    "a tree": ("a = Exp(x) b = Add(m, x) y = Mul(a, b)", ["Elementwise"]),
    "HardSwish as it is exported": ("a = HardSigmoid(x) y = Mul(a, x)", ["Elementwise"]),
    "a value read twice, by nodes that become one": ("a = Exp(x) b = Relu(a) y = Mul(a, b)", ["Elementwise"]),
    "a value read twice by one node": ("a = Exp(x) y = Mul(a, a)", ["Elementwise"]),
    "a value read elsewhere": (
        "a = Exp(x) b = Neg(a) c = GlobalMaxPool(a) y = Add(b, c)",
        ["Exp", "GlobalMaxPool", "Elementwise"],
    ),
    "a cheap value of fewer elements": ("a = Neg(s) y = Mul(a, x)", ["Elementwise"]),
    "a dear value of fewer elements": ("a = Sigmoid(s) y = Mul(a, x)", ["Sigmoid", "Mul"]),
    "others between": ("a = Exp(x) b = GlobalMaxPool(a) y = Neg(b)", ["Exp", "GlobalMaxPool", "Neg"]),
    "too many operands": (
        "a = Sum(x, s, m) b = Sum(a, p0, p1, p2) c = Neg(b) y = Sum(c, p3, p4, p5)",
        ["Elementwise", "Sum"],
    ),
    "a choice by a comparison": (
        "a = Exp(x) b = Less(a, m) c = Where(b, m, x) y = Neg(c)",
        ["Exp", "Less", "Elementwise"],
    ),
    "dequantised integers that comparisons read": (
        "q = QuantizeLinear(x, p0) d = DequantizeLinear(q, p0) a = Less(d, m) b = Less(m, d) c = Or(a, b) "
        "y = Where(c, d, x)",
        ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "Less", "Less", "Or", "Where"],
    ),
}


def model(nodes: str, outputs: str = "y"):
    names = {**SHAPES, **{f"p{at}": (1,) for at in range(6)}}
    read = [name for name in names if any(f"{sign}{name}{end}" in nodes for sign in "( " for end in ",)")]
    inputs = ", ".join(f"float[{','.join(map(str, names[name]))}] {name}" for name in read)
    results = ", ".join(f"float[a{at},b{at},c{at},d{at}] {name}" for at, name in enumerate(outputs.split()))
    rng = np.random.default_rng(0)
    feed = {name: draws.numbers(rng, names[name]) for name in read}
    return made(parse(f"g ({inputs}) => ({results}) {{ {nodes} }}", 20), feed), feed


def assert_same(graph, rewritten, feed):
    before, after = (interpret(each, feed, wide=True) for each in (graph, rewritten))
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-12, atol=1e-12)
        assert after[name].shape == array.shape


@pytest.mark.parametrize("name", MODELS)
def test_merging(name):
    nodes, left = MODELS[name]
    graph, feed = model(nodes)
    rewritten = elementwise.run(graph)
    assert sorted(node.op for node in rewritten.nodes) == sorted(left)
    assert_same(graph, rewritten, feed)
    assert elementwise.run(rewritten) is rewritten


def test_outputs_of_the_graph_stay():
    graph, feed = model("a = Exp(x) b = Neg(a) y = Relu(b)", "y a")
    rewritten = elementwise.run(graph)
    assert sorted(node.op for node in rewritten.nodes) == ["Elementwise", "Exp"]
    assert_same(graph, rewritten, feed)


@pytest.mark.parametrize(
    "nodes, offers",
    [
        ("a = HardSigmoid(s) b = Mul(x, a) c = Add(b, m) d = Tanh(c) y = Sub(d, x)", 3),
        ("a = Less(x, m) b = Where(a, s, x) c = Tanh(b) y = Sub(c, x)", 1),  # bool neither in blocks nor channels last
    ],
)
def test_merged_nodes_run(nodes, offers):
    graph, feed = model(nodes)
    (node,) = (node for node in elementwise.run(graph).nodes if node.op == "Elementwise")
    signs = np.random.default_rng(1)
    values = [(name, graph.value(name)) for name in node.inputs]
    arrays = [feed.get(name, (signs.random(value.shape) > 0.5).astype(value.dtype)) for name, value in values]
    assert lowered.check(node, arrays, threads=2) == offers
