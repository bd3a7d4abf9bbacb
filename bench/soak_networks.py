"""Small networks with open sizes for `bench.soak`: kernels, references, loops, and sizes known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpuconv import Image

Feed = dict[str, Any]
Draw = Callable[[np.random.Generator], Feed]


@dataclass(frozen=True)
class Network:
    """A network to run.

    Attributes
    ----------
    name, text : str
        `text` is the graph in ONNX's textual form, without its weights.
    weights : mapping of str to tuple of int
        Shapes of the weights.
    draw : callable
        Function that draws a feed of random sizes.
    bad : callable or None
        Function that draws a feed that a run must refuse.
    images : mapping of str to Image
        Inputs that take pictures.
    cases : int
        Number of feeds.
    """

    name: str
    text: str
    weights: Mapping[str, tuple[int, ...]]
    draw: Draw
    bad: Draw | None = None
    images: Mapping[str, Image] = field(default_factory=dict)
    cases: int = 16

    def model(self) -> bytes:
        """Make the ONNX model, with fixed random weights."""
        import onnx.parser
        from onnx import numpy_helper

        made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {self.text}')
        rng = np.random.default_rng(0)
        for name, shape in self.weights.items():
            array = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
            made.graph.initializer.append(numpy_helper.from_array(array, name))
        return made.SerializeToString()


_ROWS = 5000  # rows of the lookup table


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _upto(rng: np.random.Generator, most: int) -> int:
    return int(rng.integers(1, most + 1))


def _image(rng: np.random.Generator) -> Feed:
    return {"x": _floats(rng, _upto(rng, 3), 3, 8 + 2 * _upto(rng, 12), 8 + 2 * _upto(rng, 12))}


def _sequence(rng: np.random.Generator) -> Feed:
    return {"x": _floats(rng, _upto(rng, 3), _upto(rng, 40), 32)}


def _words(rng: np.random.Generator) -> Feed:
    return {"words": rng.integers(-_ROWS, _ROWS, _upto(rng, 64))}


def _unknown_words(rng: np.random.Generator) -> Feed:
    return {"words": np.append(_words(rng)["words"], _ROWS)}


def _turns(rng: np.random.Generator) -> Feed:
    return {"x": _floats(rng, _upto(rng, 64)), "n": np.array(_upto(rng, 5))}


def _pictures(channels: int) -> Draw:
    """Draw a list of pictures of different sizes, or of one size in half of the cases."""

    def draw(rng: np.random.Generator) -> Feed:
        sizes = [(rng.integers(1, 400, 2) if rng.random() < 0.5 else (120, 160)) for _ in range(_upto(rng, 3))]
        return {"x": [rng.integers(0, 256, (*size, channels), dtype=np.uint8) for size in sizes]}

    return draw


def _planes(rng: np.random.Generator) -> Feed:
    height, width = (2 * _upto(rng, 150) for _ in range(2))
    return {"x": rng.integers(0, 256, (height * 3 // 2, width), dtype=np.uint8)}


def _float_picture(rng: np.random.Generator) -> Feed:
    return {"x": _floats(rng, 20, 30, 3)}


def _sparse(rng: np.random.Generator) -> Feed:
    x = _floats(rng, 1, 1, 8, 8) * (rng.random((1, 1, 8, 8)) < 0.5)
    x[0, 0, 0, 0] = 1
    return {"x": x.astype(np.float32)}


def _steps(rng: np.random.Generator) -> Feed:
    return {"x": _floats(rng, _upto(rng, 12), _upto(rng, 4), 8)}


NETWORKS = (
    Network(
        "images",
        """g (float[N,3,H,W] x) => (float[N,10] y) {
            a = Conv<pads = [1,1,1,1]>(x, first)
            b = Relu(a)
            c = Conv<pads = [1,1,1,1], group = 16>(b, each)
            d = Add(b, c)
            e = MaxPool<kernel_shape = [2,2], strides = [2,2]>(d)
            f = Conv<pads = [1,1,1,1]>(e, second)
            h = GlobalAveragePool(f)
            i = Flatten(h)
            y = Gemm(i, last)
        }""",
        {"first": (16, 3, 3, 3), "each": (16, 1, 3, 3), "second": (32, 16, 3, 3), "last": (32, 10)},
        _image,
    ),
    Network(
        "attention",
        """g (float[N,T,32] x) => (float[N,T,32] y) {
            q = MatMul(x, queries)
            k = MatMul(x, keys)
            turned = Transpose<perm = [0,2,1]>(k)
            s = MatMul(q, turned)
            p = Softmax(s)
            v = MatMul(p, x)
            z = Add(x, v)
            y = LayerNormalization(z, gain)
        }""",
        {"queries": (32, 32), "keys": (32, 32), "gain": (32,)},
        _sequence,
    ),
    Network(
        "lookup",
        """g (int64[N] words) => (float[N,16] y) {
            rows = Gather(table, words)
            a = MatMul(rows, weight)
            y = Sigmoid(a)
        }""",
        {"table": (_ROWS, 64), "weight": (64, 16)},
        _words,
        _unknown_words,
    ),
    Network(
        "loop",
        """g (float[N] x, int64 n) => (float[N] y) <bool go = {1}> {
            start = Relu(x)
            end = Loop<body = b (int64 i, bool c, float[N] a) => (bool d, float[N] e) { d = Identity(c) e = Add(a, a) }>
                (n, go, start)
            y = Tanh(end)
        }""",
        {},
        _turns,
    ),
    Network(
        "found",
        """g (float[1,1,8,8] x) => (float[] y) <int64[4] s = {1,1,4,-1}> {
            places = NonZero(x)
            found = Cast<to = 1>(places)
            line = Reshape(found, s)
            y = Conv(line, weight)
        }""",
        {"weight": (2, 1, 1, 1)},
        _sparse,
    ),
    Network(
        "recurrent",
        "g (float[T,N,8] x) => (float[T,1,N,16] y) { y = LSTM<hidden_size = 16>(x, w, r) }",
        {"w": (1, 64, 8), "r": (1, 64, 16)},
        _steps,
    ),
)

_SEEN = """g (float[N,3,{size}] x) => (float[N,4] y) {{
    a = Conv<pads = [1,1,1,1], strides = [2,2]>(x, first)
    b = Relu(a)
    c = GlobalAveragePool(b)
    d = Flatten(c)
    y = MatMul(d, last)
}}"""
_SEEN_WEIGHTS = {"first": (16, 3, 3, 3), "last": (16, 4)}

PICTURES = tuple(
    Network(name, _SEEN.format(size=size), _SEEN_WEIGHTS, draw, _float_picture, {"x": image}, 60)
    for name, size, image, draw in (
        ("letterbox", "64,96", Image.yolo(), _pictures(3)),
        ("crop", "56,56", Image.imagenet(shorter=64), _pictures(3)),
        ("lanczos", "48,H", Image(shape=(48, 40), resize="pillow_lanczos", color="BGRA"), _pictures(4)),
        ("video", "64,64", Image.yolo(color="NV12"), _planes),
    )
)
"""Networks that take pictures of random sizes."""
