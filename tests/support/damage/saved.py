"""The network that tests of saved models save."""

from __future__ import annotations

import numpy as np
import onnx

import cpuconv
from cpuconv.network.model import Model
from support.graphs import parse

_RNG = np.random.default_rng(0)
TEXT = """g (float[N,3,H,12] x) => (float[N,M] y, float[N,36,H,12] d) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
    b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1], group = 6>(b, w2)
    d = Add(c, b)
    e = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d)
    f = Conv(e, w3)
    g = Mul(f, s)
    m = GlobalAveragePool(g)
    v = Flatten(m)
    y = MatMul(v, w4)
}"""
SHAPES = {
    "w1": (36, 3, 3, 3),
    "b1": (36,),
    "w2": (36, 6, 3, 3),
    "w3": (40, 36, 1, 1),
    "s": (40, 1, 1),
    "w4": (40, 10),
}
WEIGHTS = {name: _RNG.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
X = {"x": _RNG.standard_normal((1, 3, 8, 12), np.float32)}


def source() -> onnx.ModelProto:
    return parse(TEXT, **WEIGHTS)


def compiled(threads: int = 1, **shapes: tuple[int, ...]) -> Model:
    return cpuconv.compile(source(), threads=threads, strategy="heuristic", input_shapes=shapes)
