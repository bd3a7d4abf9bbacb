"""Convolutions of volumes as layers of bytes."""

from __future__ import annotations

import pytest

import cpuconv
from support.graph.floats import check_int8_layers, feeds, with_weights
from support.graphs import parse

NETWORK = (
    """g (float[N,3,4,8,8] x) => (float[N,5] y) {
    a = Conv<pads=[1,1,1,1,1,1], strides=[1,2,2]>(x, w1, b1)
    r = Relu(a)
    b = Conv<pads=[0,1,1,0,1,1], group=8>(r, w2)
    c = Conv<pads=[1,0,0,1,0,0]>(b, w3, b3)
    e = Add(c, r)
    s = Relu(e)
    u = ConvTranspose<strides=[1,2,2], group=2>(s, w4, b4)
    v = Conv<pads=[1,1,1,1,1,1], group=4>(u, w5, b5)
    m = GlobalAveragePool(v)
    f = Flatten(m)
    y = Gemm<transB=1>(f, w6)
}""",
    {
        "w1": (8, 3, 3, 3, 3), "b1": (8,), "w2": (8, 1, 1, 3, 3), "w3": (8, 8, 3, 1, 1), "b3": (8,),
        "w4": (8, 2, 2, 2, 2), "b4": (4,), "b5": (4,), "w5": (4, 1, 3, 3, 3), "w6": (5, 4),
    },
)  # fmt: skip


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_volumes_are_layers_of_bytes(activations, tmp_path):
    source = with_weights(parse(NETWORK[0]), NETWORK[1])
    samples = feeds(source, 6)
    made = cpuconv.quantize(
        source, samples, output=tmp_path / "q.onnx", threads=1, refuse_slower=False, activations=activations
    )
    assert [layer.name for layer in made.layers] == ["a", "b", "c", "u", "v", "y"]
    check_int8_layers(source, tmp_path / "q.onnx", samples[0])
