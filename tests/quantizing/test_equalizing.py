"""Equalised networks are what they were; their channels are equal."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from cpuconv.network.interpret import interpret
from cpuconv.network.sizes.specialise import specialise
from cpuconv.quantizing.graphs.equalizing import equalized
from cpuconv.reading.onnx_reader import read
from support.graphs import parse

CHAIN = """g (float[1,4,6,6] x) => (float[1,5] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    r = Relu(a)
    c = Conv<group=8, pads=[1,1,1,1]>(r, w2, b2)
    s = Relu(c)
    d = Conv(s, w3)
    t = Relu(d)
    e = GlobalAveragePool(t)
    f = Flatten(e)
    g1 = Gemm<transB=1>(f, w4, b4)
    u = Relu(g1)
    y = Gemm(u, w5, b5)
}"""
SHAPES = {
    "w1": (8, 4, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "b2": (8,), "w3": (6, 8, 1, 1), "w4": (7, 6), "b4": (7,),
    "w5": (7, 5), "b5": (5,),
}  # fmt: skip


@pytest.fixture
def graph():
    model, rng = parse(CHAIN), np.random.default_rng(0)
    for name, shape in SHAPES.items():
        spread = np.exp(2 * rng.standard_normal((shape[0], *[1] * (len(shape) - 1))))
        array = (rng.standard_normal(shape) * spread).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return read(model)


def test_the_network_is_the_same(graph):
    feed = {"x": np.random.default_rng(1).standard_normal((1, 4, 6, 6)).astype(np.float32)}
    before, after = (interpret(specialise(each), feed, wide=True)["y"] for each in (graph, equalized(graph)))
    assert np.abs(after - before).max() <= 1e-5 * np.abs(before).max()


def test_channels_have_one_range(graph):
    after = equalized(graph).constants
    for first, second, axis in (("w1", "w2", 0), ("w2", "w3", 1), ("w4", "w5", 0)):
        given = np.abs(after[first]).reshape(len(after[first]), -1).max(1)
        read_by = np.abs(np.moveaxis(after[second], axis, 0)).reshape(len(given), -1).max(1)
        np.testing.assert_allclose(given, read_by, rtol=0.01)
    assert not np.array_equal(after["w1"], graph.constants["w1"])
    assert np.array_equal(after["b5"], graph.constants["b5"])


@pytest.mark.parametrize(
    "change",
    [("Relu", "Sigmoid"), ("Relu", "HardSwish"), ("y)", "y, float[1,8,6,6] r, float[1,8,6,6] s, float[1,7] u)")],
    ids=["sigmoid", "hard swish", "read elsewhere"],
)
def test_other_chains_are_left_alone(graph, change):
    model = parse(CHAIN.replace(*change), **graph.constants)
    other = read(model)
    assert all(np.array_equal(array, other.constants[name]) for name, array in equalized(other).constants.items())
