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


def test_merged_nodes_run():
    graph, feed = model("a = HardSigmoid(s) b = Mul(x, a) c = Add(b, m) d = Tanh(c) y = Sub(d, x)")
    (node,) = (node for node in elementwise.run(graph).nodes if node.op == "Elementwise")
    arrays = [feed.get(name, np.full(graph.value(name).shape, 0.25, np.float32)) for name in node.inputs]
    assert lowered.check(node, arrays, threads=2) == 3
