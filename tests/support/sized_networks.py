"""Small networks with open sizes, one of each kind: the table that tests of sizes draw from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx

from support.graph.detector import detector
from support.graphs import parse

Range = tuple[int, int]
Axes = tuple[int | Range, ...]


class SizedNetwork(NamedTuple):
    """A network, and the sizes that it is tried at.

    Attributes
    ----------
    name : str
    model : onnx.ModelProto
    inputs : mapping of str to tuple
        By input the size of each axis: a number, or the smallest and the largest that may be drawn.
    precision : str
        Keyword of `cpuconv.compile`.
    limit : float
        Largest difference of an element from ONNX Runtime's, over the largest element.
    step : int
        Drawn sizes are multiples of it, but for those of the first axis.
    text : bool
        Whether images are of lines of letters: of noise, a network that reads gives next to nothing.
    """

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Axes]
    precision: str = "float32"
    limit: float = 1e-4
    step: int = 1
    text: bool = False


def _model(text: str, weights: Mapping[str, tuple[int, ...]], arrays: Mapping[str, np.ndarray] = {}) -> onnx.ModelProto:
    """The network of a text, with random weights of these shapes that keep tensors at unit scale, and these arrays."""
    rng = np.random.default_rng(0)
    drawn = {
        name: (rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)
        for name, shape in weights.items()
    }
    return parse(text, **drawn, **arrays)


IMAGES = _model(
    """g (float[N,3,H,W] x) => (float[N,7] y, float[N,K,P,Q] z) {
        a = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w1, b1)
        b = Relu(a)
        c = Conv<pads = [1,1,1,1], group = 24>(b, w2)
        d = HardSwish(c)
        e = Conv(d, w3)
        f = Add(e, b)
        h = MaxPool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(f)
        z = Conv<pads = [1,1,1,1]>(h, w4)
        i = GlobalAveragePool(z)
        j = Flatten(i)
        y = Gemm<transB = 1>(j, w5)
    }""",
    {"w1": (24, 3, 3, 3), "b1": (24,), "w2": (24, 1, 3, 3), "w3": (24, 24, 1, 1), "w4": (40, 24, 3, 3), "w5": (7, 40)},
)
NETWORKS = (
    SizedNetwork("images", IMAGES, {"x": ((1, 3), 3, (1, 70), (1, 70))}),
    SizedNetwork("images in bfloat16", IMAGES, {"x": ((1, 3), 3, (1, 70), (1, 70))}, "bfloat16", 4e-2),
    SizedNetwork(
        "kernels",
        _model(
            """g (float[N,16,H,W] x) => (float[N,16,H,W] y) {
                a = Conv<pads = [2,2,2,2]>(x, w1)
                b = Sigmoid(a)
                c = Conv<pads = [2,2,2,2], dilations = [2,2], group = 4>(b, w2)
                d = Conv<pads = [0,3,0,3]>(c, w3)
                e = Conv<pads = [3,0,3,0], group = 16>(d, w4)
                f = AveragePool<kernel_shape = [3,3], pads = [1,1,1,1]>(e)
                y = Mul(f, x)
            }""",
            {"w1": (16, 16, 5, 5), "w2": (16, 4, 3, 3), "w3": (16, 16, 1, 7), "w4": (16, 1, 7, 1)},
        ),
        {"x": ((1, 2), 16, (5, 60), (5, 60))},
    ),
    SizedNetwork(
        "pyramid",
        _model(
            """g (float[N,8,H,W] x) => (float[N,8,H,W] y) <int64[1] half = {2}, int64[1] none = {0}> {
                a = Conv<pads = [1,1,1,1]>(x, w1)
                b = Relu(a)
                c = Conv<pads = [1,1,1,1], strides = [2,2]>(b, w2)
                d = Relu(c)
                s = Shape(b)
                n = Shape<start = 0, end = 1>(x)
                k = Constant<value_ints = [16]>()
                p = Shape<start = 2>(b)
                to = Concat<axis = 0>(n, k, p)
                u = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",
                    nearest_mode = "floor">(d, , , to)
                j = Concat<axis = 1>(b, u)
                t = ConvTranspose<pads = [1,1,1,1]>(j, w3)
                y = Clip(t)
            }""",
            {"w1": (8, 8, 3, 3), "w2": (16, 8, 3, 3), "w3": (24, 8, 3, 3)},
        ),
        {"x": ((1, 2), 8, (2, 50), (2, 50))},
    ),
    SizedNetwork(
        "signals",
        _model(
            """g (float[N,4,T] x) => (float[N,20,U] y) {
                a = Conv<pads = [4,4]>(x, w1, b1)
                b = Relu(a)
                c = MaxPool<kernel_shape = [2], strides = [2]>(b)
                d = Conv<pads = [2,2], dilations = [2], group = 2>(c, w2)
                e = Tanh(d)
                y = Conv<strides = [2]>(e, w3)
            }""",
            {"w1": (12, 4, 9), "b1": (12,), "w2": (12, 6, 3), "w3": (20, 12, 1)},
        ),
        {"x": ((1, 4), 4, (2, 700))},
    ),
    SizedNetwork(
        "volumes",
        _model(
            """g (float[N,2,D,H,W] x) => (float[N,16,A,B,C] y) {
                a = Conv<pads = [1,1,1,1,1,1]>(x, w1)
                n = InstanceNormalization<epsilon = 0.01>(a, ones, zeros)
                b = LeakyRelu(n)
                c = Conv<pads = [1,1,1,1,1,1], strides = [2,2,2]>(b, w2)
                m = MaxPool<kernel_shape = [3,3,3], pads = [1,1,1,1,1,1]>(c)
                u = ConvTranspose<strides = [2,2,2]>(m, w3)
                e = Concat<axis = 1>(u, b)
                f = Conv<pads = [0,1,1,0,1,1]>(e, w4)
                y = Add(f, b)
            }""",
            {"w1": (16, 2, 3, 3, 3), "w2": (6, 16, 3, 3, 3), "w3": (6, 6, 2, 2, 2), "w4": (16, 22, 1, 3, 3)},
            {"ones": np.ones(16, np.float32), "zeros": np.zeros(16, np.float32)},
        ),
        {"x": ((1, 2), 2, (2, 12), (2, 14), (2, 18))},
        step=2,
    ),
    SizedNetwork(
        "recurrent",
        _model(
            """g (float[T,N,8] x) => (float[T,N,10] y, float[1,N,12] last) <int64[1] one = {1}> {
                a, h, c = LSTM<hidden_size = 16>(x, w1, r1)
                b = Squeeze(a, one)
                d, last = GRU<hidden_size = 12>(b, w2, r2)
                e = Squeeze(d, one)
                y = MatMul(e, w3)
            }""",
            {"w1": (1, 64, 8), "r1": (1, 64, 16), "w2": (1, 36, 16), "r2": (1, 36, 12), "w3": (12, 10)},
        ),
        {"x": ((1, 60), (1, 5), 8)},
    ),
    SizedNetwork(
        "attention",
        _model(
            """g (float[N,T,32] x) => (float[N,T,32] y)
                <int64[4] heads = {0, 0, 4, 8}, int64[3] joined = {0, 0, 32}, float[1] scale = {0.3535534}> {
                q = MatMul(x, w1)
                k = MatMul(x, w2)
                v = MatMul(x, w3)
                q1 = Reshape(q, heads)
                k1 = Reshape(k, heads)
                v1 = Reshape(v, heads)
                q2 = Transpose<perm = [0,2,1,3]>(q1)
                k2 = Transpose<perm = [0,2,3,1]>(k1)
                v2 = Transpose<perm = [0,2,1,3]>(v1)
                s = MatMul(q2, k2)
                s1 = Mul(s, scale)
                p = Softmax(s1)
                o = MatMul(p, v2)
                o1 = Transpose<perm = [0,2,1,3]>(o)
                o2 = Reshape(o1, joined)
                r = Add(o2, x)
                n = LayerNormalization(r, gain)
                f = MatMul(n, w4)
                e = Erf(f)
                y = MatMul(e, w5)
            }""",
            {"w1": (32, 32), "w2": (32, 32), "w3": (32, 32), "w4": (32, 48), "w5": (48, 32)},
            {"gain": np.linspace(0.5, 1.5, 32, dtype=np.float32)},
        ),
        {"x": ((1, 4), (1, 150), 32)},
    ),
    SizedNetwork(
        "attention of planes",
        _model(
            """g (float[N,8,H,W] x) => (float[N,8,H,W] y)
                <int64[4] heads = {0, 2, 12, -1}, int64[3] sizes = {4, 4, 4}, int64[1] channels = {8},
                 float[1] scale = {0.5}> {
                a = Conv(x, w1)
                b = Reshape(a, heads)
                q, k, v = Split<axis = 2>(b, sizes)
                q1 = Transpose<perm = [0,1,3,2]>(q)
                s = MatMul(q1, k)
                s1 = Mul(s, scale)
                p = Softmax<axis = -1>(s1)
                p1 = Transpose<perm = [0,1,3,2]>(p)
                o = MatMul(v, p1)
                batch = Shape<end = 1>(x)
                plane = Shape<start = 2>(x)
                shape = Concat<axis = 0>(batch, channels, plane)
                y = Reshape(o, shape)
            }""",
            {"w1": (24, 8, 1, 1)},
        ),
        {"x": ((1, 3), 8, (1, 12), (1, 12))},
    ),
    SizedNetwork(
        "reader",
        _model(
            """g (float[N,3,12,W] x) => (float[T,N,30] y) <int64[1] one = {1}, int64[1] rows = {2}> {
                a = Conv<pads = [1,1,1,1]>(x, w1)
                b = Relu(a)
                c = AveragePool<kernel_shape = [12,2], strides = [12,2], ceil_mode = 1>(b)
                d = Squeeze(c, rows)
                e = Transpose<perm = [2,0,1]>(d)
                f, h, k = LSTM<hidden_size = 16, direction = "bidirectional">(e, w2, r2)
                i = Transpose<perm = [0,2,1,3]>(f)
                j = Reshape(i, joined)
                l = MatMul(j, w3)
                y = Softmax(l)
            }""",
            {"w1": (20, 3, 3, 3), "w2": (2, 64, 20), "r2": (2, 64, 16), "w3": (32, 30)},
            {"joined": np.array([0, 0, 32])},
        ),
        {"x": ((1, 3), 3, 12, (2, 300))},
    ),
    SizedNetwork(
        "int8",
        _model(
            """g (float[N,3,H,W] x) => (float[N,20,P,Q] y) {
                a = QuantizeLinear(x, s1, z1)
                b = QLinearConv<pads = [1,1,1,1]>(a, s1, z1, w1, t1, zero, s2, z2)
                c = QLinearConv<pads = [1,1,1,1], group = 16>(b, s2, z2, w2, t2, zero, s3, z3)
                d = QLinearConv<strides = [2,2]>(c, s3, z3, w3, t3, zero, s4, z4)
                y = DequantizeLinear(d, s4, z4)
            }""",
            {},
            {
                **{f"w{at}": np.random.default_rng(at).integers(-63, 64, shape, np.int8)
                   for at, shape in ((1, (16, 3, 3, 3)), (2, (16, 1, 3, 3)), (3, (20, 16, 1, 1)))},
                **{f"s{at}": np.float32(scale) for at, scale in ((1, 0.03), (2, 0.04), (3, 0.05), (4, 0.06))},
                **{f"z{at}": np.uint8(zero) for at, zero in ((1, 128), (2, 120), (3, 130), (4, 125))},
                **{f"t{at}": np.float32(scale) for at, scale in ((1, 0.006), (2, 0.01), (3, 0.008))},
                "zero": np.int8(0),
            },
        ),
        {"x": ((1, 3), 3, (1, 50), (1, 50))},
        limit=1e-2,
    ),
    SizedNetwork(
        "dynamic int8",
        _model(
            """g (float[N,T,48] x) => (float[N,T,40] y) {
                a, s, z = DynamicQuantizeLinear(x)
                b = MatMulInteger(a, w, z)
                c = Cast<to = 1>(b)
                d = Mul(s, scale)
                y = Mul(c, d)
            }""",
            {},
            {"w": np.random.default_rng(0).integers(-63, 64, (48, 40), np.int8), "scale": np.float32(0.01)},
        ),
        {"x": ((1, 3), (1, 120), 48)},
    ),
    SizedNetwork("dynamic suffix", detector(), {"x": (1, 3, (2, 24), (2, 24))}),
)  # fmt: skip
BY_NAME = {network.name: network for network in NETWORKS}
