"""Rewrites of whole networks: of random layers, and of the onnx package."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.graph import passes
from cpuconv.graph.ir import Graph
from cpuconv.graph.passes import NAMES
from support.graph.expressions import feed, graph, op
from support.graph.layers import array, conv, hard, normalized, same


def _layers(draw: st.DrawFn) -> Graph:
    """A network of random layers, each of one or two of the values so far."""
    values = [feed(2, 4, 6, 6), feed(2, 4, 6, 6)]
    steps = {
        "conv": lambda a, b, k: conv(a, array(4, 4, 3, 3, seed=k) - 1),
        "depthwise": lambda a, b, k: conv(a, array(4, 1, 3, 3, seed=k) - 1, array(4), group=4),
        "pointwise": lambda a, b, k: op.Conv(a, array(4, 4, 1, 1, seed=k) - 1),
        "padded": lambda a, b, k: conv(op.Pad(a, [0, 0, 1, 1, 0, 0, 1, 1]), array(4, 4, 3, 3, seed=k) - 1, pads=None),
        "normal": lambda a, b, k: normalized(a, 4, seed=k),
        "scale": lambda a, b, k: a * array(4, 1, 1, seed=k),
        "shift": lambda a, b, k: a + array(4, 1, 1, seed=k),
        "add": lambda a, b, k: a + b,
        "sum": lambda a, b, k: op.Sum(a, b),
        "relu": lambda a, b, k: op.Relu(a),
        "silu": lambda a, b, k: a * op.Sigmoid(a),
        "hard": lambda a, b, k: a * hard(a) / 6.0,
        "hard sigmoid": lambda a, b, k: op.HardSigmoid(a),
        "squeeze": lambda a, b, k: a * op.Sigmoid(op.Conv(op.ReduceMean(b, [2, 3]), array(4, 4, 1, 1, seed=k))),
        "shuffle": lambda a, b, k: op.Reshape(
            op.Transpose(op.Reshape(a, [2, 2, 2, 6, 6]), perm=[0, 2, 1, 3, 4]), [2, 4, 6, 6]
        ),
        "linear": lambda a, b, k: op.MatMul(a, array(6, 6, seed=k) - 1),
        "concat": lambda a, b, k: op.Conv(op.Concat(a, op.Concat(b, a, axis=1), axis=1), array(4, 12, 1, 1) - 1),
        "copy": lambda a, b, k: op.Identity(a),
    }
    for seed in range(draw(st.integers(1, 12))):
        step = steps[draw(st.sampled_from(sorted(steps)))]
        a, b = (values[-1 - draw(st.integers(0, min(2, len(values) - 1)))] for _ in range(2))
        values.append(step(a, b, seed))
    others = draw(st.lists(st.sampled_from(values[2:]), max_size=1))
    return graph(*dict.fromkeys([values[-1], *others]))


@settings(max_examples=60, deadline=None)
@given(before=st.composite(_layers)(), left_out=st.lists(st.sampled_from(NAMES), max_size=1))
def test_networks_of_random_layers(before, left_out):
    made = passes.apply(before, left_out)
    same(before, made, 1e-5)


# What networks are made of afterwards.
NETWORKS: dict[str, dict[str, int]] = {
    "bvlc_alexnet": {"Conv": 5, "LRN": 2, "MaxPool": 3, "Reshape": 1, "Linear": 3, "Softmax": 1},
    "densenet121": {"Conv": 121, "MaxPool": 1, "AveragePool": 3, "Concat": 58, "GlobalAveragePool": 1},
    "inception_v2": {
        **{"Conv": 69, "MaxPool": 5, "AveragePool": 7, "Concat": 10},
        **{"GlobalAveragePool": 1, "Reshape": 1, "Linear": 1, "Softmax": 1},
    },
    "resnet50": {"Conv": 53, "MaxPool": 1, "GlobalAveragePool": 1, "Reshape": 1, "Linear": 1, "Softmax": 1},
    "squeezenet": {"Conv": 26, "MaxPool": 3, "Concat": 8, "GlobalAveragePool": 1, "Reshape": 2, "Softmax": 1},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_the_onnx_package(name):
    onnx = pytest.importorskip("onnx")
    from support.graphs import made as specialised

    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    before = specialised(folder / f"light_{name}.onnx")
    made = passes.apply(before, ["common"])  # every weight is the same number there
    assert passes.apply(made, ["common"]) is made
    counts = Counter(node.op for node in made.nodes)
    assert {op: count for op, count in counts.items() if op not in ("Elementwise", "Mul", "Add", "Relu")} == NETWORKS[
        name
    ]
    if name == "resnet50":
        epilogues = Counter(
            (node["activation"], len(node.inputs)) for node in made.nodes if node.op in ("Conv", "Linear")
        )
        assert epilogues == {(("relu",), 3): 33, (("relu",), 4): 16, (None, 3): 5}
