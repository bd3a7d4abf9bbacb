"""Operators of networks, alone or in a chain, which `bench.operators` times.

A row of `CHAINS` has a name, the shapes of the inputs, the nodes, one per line, and the constants. The line of a node
has its operator, inputs, comma-separated outputs, and attributes; `_` is an omitted input.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.networks import Network, Shapes

OPSET = 17


class Case(NamedTuple):
    """A small network with the output y."""

    name: str
    inputs: Shapes
    nodes: str
    constants: Mapping[str, np.ndarray] = {}


def _weights(*shape: int) -> np.ndarray:
    """Make random weights of an operator that sums over all axes except the first."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal(shape) / math.sqrt(max(1, math.prod(shape[1:])))).astype(np.float32)


def _scales(count: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.5, 1.5, count).astype(np.float32)


def _long(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _places(size: int, *shape: int) -> np.ndarray:
    """Make random indices of an axis."""
    return np.random.default_rng(2).integers(0, size, shape)


def _float(*numbers: float) -> np.ndarray:
    return np.array(numbers if len(numbers) > 1 else numbers[0], np.float32)


_INDICES = ("ArgMax", "NonMaxSuppression", "NonZero")  # operators with integer results
_IMAGE = {"x": (1, 64, 56, 56)}
_DEEP = {"x": (1, 256, 14, 14)}
_TOKENS = {"x": (1, 197, 768)}
_POOL = "kernel_shape=[{0},{0}] strides=[{1},{1}] pads=[{2},{2},{2},{2}]"
_HALF = {"half": _float(0.5), "one": _float(1.0), "root": _float(math.sqrt(0.5))}
_NORM = {"scale": _scales(64), "bias": _weights(64)}
_ATTENTION = """
Reshape x sizes five
Transpose five six perm=[2,0,3,1,4]
Split six ones q5,k5,v5 axis=0
Squeeze q5 zero q
Squeeze k5 zero k
Squeeze v5 zero v
Mul q scale qs
Transpose k kt perm=[0,1,3,2]
MatMul qs kt s
Softmax s p axis=-1
MatMul p v o
Transpose o back perm=[0,2,1,3]
Reshape back together y
"""
_CROSS = (
    "Reshape x sizes four\nTranspose four q perm=[0,2,1,3]\nReshape m pair five\nTranspose five six perm=[2,0,3,1,4]\n"
    "Split six k5,v5 axis=0\n" + _ATTENTION.partition("Squeeze q5 zero q\n")[2]
)
_WINDOWS = _ATTENTION.replace("MatMul qs kt s", "MatMul qs kt raw\nAdd raw table s")


def _heads(batch: int, tokens: int, heads: int, size: int, keys: int = 0) -> Case:
    """Self-attention of packed projections; with `keys`, cross-attention with packed keys and values."""
    constants = {"zero": _long(0), "scale": _float(size**-0.5), "together": _long(batch, tokens, heads * size)}
    if keys:
        constants |= {"sizes": _long(batch, tokens, heads, size), "pair": _long(batch, keys, 2, heads, size)}
        inputs = {"x": (batch, tokens, heads * size), "m": (batch, keys, 2 * heads * size)}
        return Case(f"Attention {batch}x{tokens} to {keys}, {heads} heads of {size}", inputs, _CROSS, constants)
    constants |= {"sizes": _long(batch, tokens, 3, heads, size), "ones": _long(1, 1, 1)}
    constants |= {"table": _weights(heads, tokens, tokens)} if batch > 1 else {}
    name, nodes = f"Attention {batch}x{tokens}, {heads} heads of {size}", _WINDOWS if batch > 1 else _ATTENTION
    return Case(name, {"x": (batch, tokens, 3 * heads * size)}, nodes, constants)


_TOKENS_AND_HEADS = (  # batch, tokens, heads, size of a head, keys of cross-attention
    (1, 50, 12, 64), (1, 197, 12, 64), (1, 300, 8, 32), (1, 400, 2, 32), (1, 577, 12, 64), (1, 1024, 8, 128),
    (1, 1500, 6, 64), (1, 4096, 1, 20), (1, 4096, 2, 64), (64, 49, 3, 32), (4, 49, 24, 32), (64, 64, 3, 32),
    (1, 300, 8, 32, 1600), (1, 1024, 8, 32, 64), (1, 1, 6, 64, 1500), (1, 8, 12, 64, 512),
)  # fmt: skip


def _suppression(classes: int, count: int, most: int) -> Case:
    """One box in 40 has enough score; boxes lie in an image of 640 x 640."""
    rng = np.random.default_rng(2)
    low, sides = rng.uniform(0, 600, (1, count, 2)), rng.uniform(10, 120, (1, count, 2))
    boxes = np.concatenate([low, low + sides], -1).astype(np.float32)
    limits = {"most": _long(most), "overlap": _float(0.6), "least": _float(2.0)}
    nodes = "NonMaxSuppression boxes x most overlap least y"
    return Case(
        f"NonMaxSuppression {classes} of {count}", {"x": (1, classes, count)}, nodes, {"boxes": boxes, **limits}
    )


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_RECURRENT = (  # operator, steps, sequences, inputs, hidden units, directions
    ("LSTM", 24, 1, 512, 256, 2),
    ("LSTM", 80, 1, 288, 48, 2),
    ("LSTM", 320, 1, 64, 96, 2),
    ("LSTM", 80, 8, 256, 256, 2),
    ("LSTM", 32, 1, 512, 512, 2),
    ("LSTM", 50, 1, 128, 128, 1),
    ("LSTM", 50, 3, 100, 75, 2),
    ("GRU", 80, 1, 256, 192, 2),
    ("GRU", 80, 4, 256, 192, 2),
    ("RNN", 80, 1, 256, 256, 2),
)
_LINEAR = ((1, 25088, 4096), (1, 4096, 4096), (1, 4096, 1000), (1, 2048, 1000), (1, 1280, 1000), (8, 2048, 1000))
_PRODUCTS = (
    ((8, 197, 64), (8, 64, 197)),
    ((8, 197, 197), (8, 197, 64)),
    ((1, 12, 40, 40), (1, 12, 40, 15)),
    ((1, 8, 40, 15), (1, 8, 15, 40)),
    ((12, 49, 32), (12, 32, 49)),
    ((1, 1, 1024), (1, 1024, 1024)),
    ((1, 1024, 1024), (1, 1024, 1)),
)
_ROWS = ((1, 8, 197, 197), (1, 8, 40, 40), (1, 40, 6625), (3136, 96), (197, 768))

_FOUND = (  # elements to find, and the shape whose last axis they are of
    (300, (1, 8400)),
    (300, (1, 5376)),
    (300, (1, 24000)),
    (1000, (1, 120000)),
    (100, (80, 16384)),
    (5, (8, 1000)),
    (8, (1024, 64)),
    (1, (8400, 80)),
    (1000, (1, 1000)),
)


def _matrices(*shape: int) -> np.ndarray:
    """Make random matrices, scaled by the length of their rows."""
    return (np.random.default_rng(0).standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _recurrent(op: str, steps: int, batch: int, size: int, hidden: int, directions: int) -> Case:
    rows, both = _GATES[op] * hidden, "bidirectional" if directions > 1 else "forward"
    weights = {"w": _matrices(directions, rows, size), "r": _matrices(directions, rows, hidden)}
    after = " linear_before_reset=1" if op == "GRU" else ""
    nodes = f"{op} x w r b y hidden_size={hidden} direction='{both}'{after}"
    name = f"{op} {steps}x{batch}x{size} to {directions}x{hidden}"
    return Case(name, {"x": (steps, batch, size)}, nodes, {**weights, "b": _matrices(directions, 2 * rows)})


def _linear(rows: int, depth: int, columns: int) -> Case:
    weights = {"w": _matrices(columns, depth), "b": _matrices(columns)}
    return Case(f"Gemm {rows}x{depth} to {columns}", {"x": (rows, depth)}, "Gemm x w b y transB=1", weights)


def _rows(*shape: int) -> Iterator[Case]:
    yield Case(f"Softmax {_by(shape)}", {"x": shape}, "Softmax x y axis=-1")
    weights = {"scale": _matrices(shape[-1]), "bias": _matrices(shape[-1])}
    yield Case(f"LayerNorm {_by(shape)}", {"x": shape}, "LayerNormalization x scale bias y", weights)


CHAINS = (
    *(_recurrent(*sizes) for sizes in _RECURRENT),
    *(_linear(*sizes) for sizes in _LINEAR),
    *(Case(f"MatMul {_by(a)} {_by(b)}", {"a": a, "b": b}, "MatMul a b y") for a, b in _PRODUCTS),
    *(case for shape in _ROWS for case in _rows(*shape)),
    Case("Gelu 3136x384", {"x": (3136, 384)}, "Mul x root a\nErf a b\nAdd b one c\nMul x c d\nMul d half y", _HALF),
    *(_heads(*sizes) for sizes in _TOKENS_AND_HEADS),
    Case("MatMul 64x3x49x32 by transposed", {"a": (64, 3, 49, 32), "b": (64, 3, 32, 49)}, "MatMul a b y"),
    Case("MatMul 12x577x64 by 12x64x577", {"a": (12, 577, 64), "b": (12, 64, 577)}, "MatMul a b y"),
    Case("MatMul 12x577x577 by 12x577x64", {"a": (12, 577, 577), "b": (12, 577, 64)}, "MatMul a b y"),
    Case("MatMul 2x12x197x64 by 2x12x64x197", {"a": (2, 12, 197, 64), "b": (2, 12, 64, 197)}, "MatMul a b y"),
    Case("MatMul 1x197x768 by 768x3072", _TOKENS, "MatMul x w y", {"w": _weights(3072, 768).T.copy()}),
    Case("MatMul 1x1024x64 by 64x1024", {"a": (1, 1024, 64), "b": (1, 64, 1024)}, "MatMul a b y"),
    Case("Transpose 1x197x768", _TOKENS, "Transpose x y perm=[0,2,1]"),
    Case("Transpose 1000x1000", {"x": (1000, 1000)}, "Transpose x y perm=[1,0]"),
    Case("Transpose heads 1x197x12x64", {"x": (1, 197, 12, 64)}, "Transpose x y perm=[0,2,1,3]"),
    Case("Transpose 1x3x224x224 to NHWC", {"x": (1, 3, 224, 224)}, "Transpose x y perm=[0,2,3,1]"),
    Case("SpaceToDepth 1x64x56x56", _IMAGE, "SpaceToDepth x y blocksize=2"),
    Case("DepthToSpace 1x256x28x28", {"x": (1, 256, 28, 28)}, "DepthToSpace x y blocksize=2"),
    Case(
        "Resize nearest 1x64x56x56 by 2",
        _IMAGE,
        "Resize x _ f y mode='nearest' coordinate_transformation_mode='asymmetric' nearest_mode='floor'",
        {"f": _float(1, 1, 2, 2)},
    ),
    Case(
        "Resize linear 1x64x56x56 by 2",
        _IMAGE,
        "Resize x _ f y mode='linear' coordinate_transformation_mode='half_pixel'",
        {"f": _float(1, 1, 2, 2)},
    ),
    Case(
        "Resize linear 1x21x28x28 by 8",
        {"x": (1, 21, 28, 28)},
        "Resize x _ f y mode='linear' coordinate_transformation_mode='align_corners'",
        {"f": _float(1, 1, 8, 8)},
    ),
    Case(
        "Resize cubic 1x3x112x112 by 2",
        {"x": (1, 3, 112, 112)},
        "Resize x _ f y mode='cubic' coordinate_transformation_mode='half_pixel' cubic_coeff_a=-0.75",
        {"f": _float(1, 1, 2, 2)},
    ),
    Case("MaxPool 3x3 s2 1x64x112x112", {"x": (1, 64, 112, 112)}, "MaxPool x y " + _POOL.format(3, 2, 1)),
    Case("MaxPool 2x2 s2 1x64x56x56", _IMAGE, "MaxPool x y " + _POOL.format(2, 2, 0)),
    Case("MaxPool 5x5 s1 1x256x20x20", {"x": (1, 256, 20, 20)}, "MaxPool x y " + _POOL.format(5, 1, 2)),
    Case(
        "AveragePool 3x3 s1 with pads 1x64x56x56",
        _IMAGE,
        "AveragePool x y count_include_pad=1 " + _POOL.format(3, 1, 1),
    ),
    Case("AveragePool 2x2 s2 1x64x56x56", _IMAGE, "AveragePool x y " + _POOL.format(2, 2, 0)),
    Case("GlobalAveragePool 1x2048x7x7", {"x": (1, 2048, 7, 7)}, "GlobalAveragePool x y"),
    Case("GlobalAveragePool 1x64x56x56", _IMAGE, "GlobalAveragePool x y"),
    Case("ReduceMean 1x64x56x56 over 2, 3", _IMAGE, "ReduceMean x y axes=[2,3]"),
    Case("ReduceMean 1x64x56x56 over 1", _IMAGE, "ReduceMean x y axes=[1]"),
    Case("ReduceMean 1x197x768 over 1", _TOKENS, "ReduceMean x y axes=[1] keepdims=0"),
    Case("ReduceMean 1x197x768 over 2", _TOKENS, "ReduceMean x y axes=[-1]"),
    Case("ReduceMax 1x64x56x56 over 1", _IMAGE, "ReduceMax x y axes=[1]"),
    Case("ReduceL2 1x64x56x56 over 1", _IMAGE, "ReduceL2 x y axes=[1]"),
    Case("ArgMax 1x21x224x224 over 1", {"x": (1, 21, 224, 224)}, "ArgMax x y axis=1 keepdims=0"),
    Case("ArgMax 40x6625 over 1", {"x": (40, 6625)}, "ArgMax x y axis=1 keepdims=0"),
    Case("ArgMax 1x150x128x128 over 1", {"x": (1, 150, 128, 128)}, "ArgMax x y axis=1 keepdims=0"),
    Case("ArgMax 8400x80 over 1", {"x": (8400, 80)}, "ArgMax x y axis=1 keepdims=0"),
    *(Case(f"TopK {k} of {_by(shape)}", {"x": shape}, "TopK x k y,i axis=-1", {"k": _long(k)}) for k, shape in _FOUND),
    Case("TopK 300 of 1x8400 by the best of 80", {"x": (1, 8400, 80)},
        "ReduceMax x m axes=[2] keepdims=0\nTopK m k y,i axis=-1", {"k": _long(300)}),
    Case("TopK 5 of 1x80x8400 over 1", {"x": (1, 80, 8400)}, "TopK x k y,i axis=1", {"k": _long(5)}),
    *(Case(f"CumSum {_by(shape)} over {axis}", {"x": shape}, "CumSum x k y", {"k": np.array(axis, np.int64)})
        for shape, axis in (((1, 100, 256), 1), ((1, 100, 256), 2), ((1, 80, 8400), 2))),
    *(_suppression(*sizes) for sizes in ((1, 8400, 300), (80, 8400, 300), (80, 5376, 100), (20, 1000, 1000))),
    *(Case(f"NonZero {_by(shape)}", {"x": shape}, "Greater x least m\nNonZero m y", {"least": _float(1.3)})
        for shape in ((1, 8400), (1, 80, 8400), (1, 1, 640, 640))),
    Case("InstanceNormalization 1x64x56x56", _IMAGE, "InstanceNormalization x scale bias y", _NORM),
    Case(
        "GroupNorm 32 groups 1x256x14x14",
        _DEEP,
        "Reshape x groups g\nInstanceNormalization g ones zeros n\nReshape n image r\nMul r scale m\nAdd m bias y",
        {
            "groups": _long(1, 32, -1),
            "image": _long(1, 256, 14, 14),
            "ones": np.ones(32, np.float32),
            "zeros": np.zeros(32, np.float32),
            "scale": _scales(256).reshape(256, 1, 1),
            "bias": _weights(256).reshape(256, 1, 1),
        },
    ),
    Case("BatchNormalization 1x64x56x56", _IMAGE, "BatchNormalization x s b m v y", {
        "s": _scales(64), "b": _weights(64), "m": _weights(64), "v": _scales(64)}),
    Case("LRN 5 1x64x56x56", _IMAGE, "LRN x y size=5 alpha=0.0001 beta=0.75"),
    Case("Softmax 1x21x56x56 over 1", {"x": (1, 21, 56, 56)}, "Softmax x y axis=1"),
    Case("Softmax 1x1000", {"x": (1, 1000)}, "Softmax x y axis=-1"),
    Case("LogSoftmax 8x1000", {"x": (8, 1000)}, "LogSoftmax x y axis=-1"),
    Case("Concat 2 of 1x64x56x56 over 1", {"a": (1, 64, 56, 56), "b": (1, 64, 56, 56)}, "Concat a b y axis=1"),
    Case("Concat 3 of 1x8400x1, 4, 80 over 2", {"a": (1, 8400, 1), "b": (1, 8400, 4), "c": (1, 8400, 80)},
        "Concat a b c y axis=2"),
    Case("Slice 1x64x56x56 over 3", _IMAGE, "Slice x s e a y", {"s": _long(3), "e": _long(40), "a": _long(3)}),
    Case("Slice 1x3x640x640 by 2", {"x": (1, 3, 640, 640)}, "Slice x s e a t y",
        {"s": _long(0, 1), "e": _long(640, 640), "a": _long(2, 3), "t": _long(2, 2)}),
    Case("Split 1x197x2304 in 3", {"x": (1, 197, 2304)}, "Split x p a,b,y axis=-1", {"p": _long(768, 768, 768)}),
    Case("Gather 2401 of 169x3", {"x": (169, 3)}, "Gather x i y axis=0", {"i": np.arange(2401) % 169}),
    Case("Gather 1x197x768 over 2", _TOKENS, "Gather x i y axis=2", {"i": np.arange(0, 768, 3)}),
    Case("Gather 197 of 30522x768", {"x": (30522, 768)}, "Gather x i y axis=0", {"i": _places(30522, 1, 197)}),
    Case("GatherElements 300x4 of 1x8400x4 over 1", {"x": (1, 8400, 4)}, "Expand i s e\nGatherElements x e y axis=1",
        {"i": _places(8400, 1, 300, 1), "s": _long(1, 300, 4)}),
    Case("GatherElements 300x256 of 1x5376x256 over 1", {"x": (1, 5376, 256)}, "GatherElements x i y axis=1",
        {"i": np.repeat(_places(5376, 1, 300, 1), 256, 2)}),
    Case("GatherElements 12x256x256 of 12x256x512 over 2", {"x": (12, 256, 512)}, "GatherElements x i y axis=2",
        {"i": _places(512, 12, 256, 256)}),
    Case("GatherND 8x300 rows of 8x1000x256", {"x": (8, 1000, 256)}, "GatherND x i y batch_dims=1",
        {"i": _places(1000, 8, 300, 1)}),
    Case("GatherND 10000 of 512x512", {"x": (512, 512)}, "GatherND x i y", {"i": _places(512, 10000, 2)}),
    Case("ScatterND 12000 rows to 214272x64", {"x": (214272, 64), "u": (12000, 64)}, "ScatterND x i u y",
        {"i": np.random.default_rng(0).permutation(214272)[:12000, None]}),
    Case("ScatterND 2 of 85 to 1x25200x85", {"x": (1, 25200, 85), "u": (1, 25200, 2)}, "ScatterND x i u y",
        {"i": np.stack(np.meshgrid([0], np.arange(25200), [0, 1], indexing="ij"), -1)}),
    Case("ScatterND 64x64 rows, add, to 4096x64", {"x": (4096, 64), "u": (64, 64, 64)},
        "ScatterND x i u y reduction='add'", {"i": _places(4096, 64, 64, 1)}),
    Case("ScatterElements 64x5 to 64x1000 over 1", {"x": (64, 1000), "u": (64, 5)}, "ScatterElements x i u y axis=1",
        {"i": _places(1000, 64, 5)}),
    Case("ScatterElements 256x256 to 12x256x512 over 2", {"x": (12, 256, 512), "u": (12, 256, 256)},
        "ScatterElements x i u y axis=2", {"i": _places(512, 12, 256, 256)}),
    Case("ScatterElements 20000x64, add, to 1000x64 over 0", {"x": (1000, 64), "u": (20000, 64)},
        "ScatterElements x i u y axis=0 reduction='add'", {"i": np.repeat(_places(1000, 20000, 1), 64, 1)}),
    Case("ScatterElements 20000, add, to 1000 over 0", {"x": (1000,), "u": (20000,)},
        "ScatterElements x i u y axis=0 reduction='add'", {"i": _places(1000, 20000)}),
    Case("Pad 1x64x56x56 by 1", _IMAGE, "Pad x p y", {"p": _long(0, 0, 1, 1, 0, 0, 1, 1)}),
    Case("Pad reflect 1x64x56x56 by 1", _IMAGE, "Pad x p y mode='reflect'", {"p": _long(0, 0, 1, 1, 0, 0, 1, 1)}),
    Case("Roll 1x56x56x96 by 3", {"x": (1, 56, 56, 96)},
        "Slice x three end axis a\nSlice x zero three axis b\nConcat a b y axis=1",
        {"three": _long(3), "end": _long(56), "axis": _long(1), "zero": _long(0)}),
    Case("Windows 1x56x56x96 of 7x7", {"x": (1, 56, 56, 96)},
        "Reshape x parts p\nTranspose p t perm=[0,1,3,2,4,5]\nReshape t windows y",
        {"parts": _long(1, 8, 7, 8, 7, 96), "windows": _long(64, 49, 96)}),
    Case("Shuffle 2 groups 1x116x28x28", {"x": (1, 116, 28, 28)},
        "Reshape x parts p\nTranspose p t perm=[0,2,1,3,4]\nReshape t image y",
        {"parts": _long(1, 2, 58, 28, 28), "image": _long(1, 116, 28, 28)}),
    Case("GridSample 1x32x56x56", {"x": (1, 32, 56, 56), "g": (1, 56, 56, 2)}, "GridSample x g y"),
    Case("GridSample 8x32x80x80 at 300x4", {"x": (8, 32, 80, 80), "g": (8, 300, 4, 2)}, "GridSample x g y"),
    Case("GridSample 1x3x480x640", {"x": (1, 3, 480, 640), "g": (1, 480, 640, 2)}, "GridSample x g y"),
    Case("Deformable attention 8x300, 2 levels",
        {"a": (8, 32, 64, 64), "ga": (8, 300, 4, 2), "b": (8, 32, 32, 32), "gb": (8, 300, 4, 2), "w": (8, 1, 300, 8)},
        "GridSample a ga sa\nGridSample b gb sb\nConcat sa sb s axis=3\nMul s w m\nReduceSum m last r keepdims=0\n"
        "Reshape r heads h\nTranspose h y perm=[0,2,1]", {"last": _long(-1), "heads": _long(1, 256, 300)}),
    Case("RoiAlign 1x256x50x68, 100 regions of 7x7", {"x": (1, 256, 50, 68)},
        "RoiAlign x rois images y output_height=7 output_width=7 sampling_ratio=2",
        {"rois": _float(*[4, 6, 40, 36] * 100).reshape(100, 4), "images": _long(*[0] * 100)}),
    Case("Conv 1x256x29x29 by computed 5x5, depthwise", {"x": (1, 256, 29, 29), "w": (256, 1, 5, 5)},
        "Conv x w y group=256"),
    *(Case(f"{op} 1x64x56x56", _IMAGE, f"{op} x y") for op in (
        "Relu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Selu", "Softplus", "Erf", "Exp",
        "Sqrt", "Abs", "Floor", "Neg", "Reciprocal", "Log", "Sin")),
    Case("Clip 1x64x56x56", _IMAGE, "Clip x low high y", {"low": _float(0.0), "high": _float(6.0)}),
    Case("PRelu 1x64x56x56", _IMAGE, "PRelu x slope y", {"slope": _scales(64).reshape(64, 1, 1)}),
    Case("Pow 2 1x64x56x56", _IMAGE, "Pow x two y", {"two": _float(2.0)}),
    Case("Pow 2.2 1x64x56x56", {"x": (1, 64, 56, 56)}, "Abs x a\nPow a two y", {"two": _float(2.2)}),
    Case("SiLU 1x64x56x56", _IMAGE, "Sigmoid x s\nMul x s y"),
    Case("Mish 1x64x56x56", _IMAGE, "Softplus x s\nTanh s t\nMul x t y"),
    Case("Gelu by tanh 197x3072", {"x": (197, 3072)},
        "Pow x three c\nMul c k d\nAdd x d e\nMul e r f\nTanh f t\nAdd t one u\nMul x u v\nMul v half y",
        {"three": _float(3.0), "k": _float(0.044715), "r": _float(math.sqrt(2 / math.pi)), **_HALF}),
    Case("LayerNorm by parts 197x768", {"x": (197, 768)},
        "ReduceMean x m axes=[-1]\nSub x m d\nPow d two s\nReduceMean s v axes=[-1]\nAdd v eps e\nSqrt e r\nDiv d r n\n"
        "Mul n w o\nAdd o b y",
        {"two": _float(2.0), "eps": _float(1e-5), "w": _scales(768), "b": _weights(768)}),
    Case("Where 1x64x56x56", {"a": (1, 64, 56, 56), "b": (1, 64, 56, 56)}, "Greater a b c\nWhere c a b y"),
    Case("Add 1x64x56x56", {"a": (1, 64, 56, 56), "b": (1, 64, 56, 56)}, "Add a b y"),
    Case("Add 1x64x56x56 by channel", {"a": (1, 64, 56, 56), "b": (1, 64, 1, 1)}, "Add a b y"),
    Case("Mul 1x64x56x56 by pixel", {"a": (1, 64, 56, 56), "b": (1, 1, 56, 56)}, "Mul a b y"),
    Case("Expand 1x64x1x1 to 56x56", {"x": (1, 64, 1, 1)}, "Expand x s y", {"s": _long(1, 64, 56, 56)}),
    Case("Tile 1x64x28x28 by 2x2", {"x": (1, 64, 28, 28)}, "Tile x r y", {"r": _long(1, 1, 2, 2)}),
    Case("Conv 1d 3 1x128x500", {"x": (1, 128, 500)}, "Conv x w y pads=[1,1]", {"w": _weights(128, 128, 3)}),
    Case("Conv 1d 3 depthwise 1x256x500", {"x": (1, 256, 500)}, "Conv x w y pads=[1,1] group=256",
        {"w": _weights(256, 1, 3)}),
    Case("Conv 3d 3x3x3 1x16x16x28x28", {"x": (1, 16, 16, 28, 28)}, "Conv x w y pads=[1,1,1,1,1,1]",
        {"w": _weights(16, 16, 3, 3, 3)}),
    Case("Conv 16x16 s16 1x3x224x224", {"x": (1, 3, 224, 224)}, "Conv x w y strides=[16,16]",
        {"w": _weights(768, 3, 16, 16)}),
    Case("Conv 4x4 s4 1x3x224x224", {"x": (1, 3, 224, 224)}, "Conv x w y strides=[4,4]", {"w": _weights(96, 3, 4, 4)}),
    Case("ConvTranspose 2x2 s2 1x128x28x28", {"x": (1, 128, 28, 28)}, "ConvTranspose x w y strides=[2,2]",
        {"w": _weights(128, 64, 2, 2)}),
    Case("ConvTranspose 4x4 s2 1x64x28x28", {"x": (1, 64, 28, 28)}, "ConvTranspose x w y strides=[2,2] pads=[1,1,1,1]",
        {"w": _weights(64, 64, 4, 4)}),
    Case("ConvTranspose 16x16 s8 1x21x28x28", {"x": (1, 21, 28, 28)},
        "ConvTranspose x w y strides=[8,8] pads=[4,4,4,4]", {"w": _weights(21, 21, 16, 16)}),
    *(Case(f"Einsum {equation}", {"x": x, "r": r}, f"Einsum x r y equation='{equation}'") for equation, x, r in (
        ("bhwc,hkc->bhwk", (12, 14, 14, 64), (14, 14, 64)),
        ("bihd,bjhd->bhij", (1, 197, 12, 64), (1, 197, 12, 64)),
        ("bnc,bchw->bnhw", (1, 100, 256), (1, 256, 64, 64)),
        ("bhwc,bhwc->bhw", (8, 56, 56, 64), (8, 56, 56, 64)),
        ("nctkv,kvw->nctw", (1, 64, 100, 3, 25), (3, 25, 25)))),
)  # fmt: skip


def networks() -> Iterator[Network]:
    """Yield the networks of `CHAINS`."""
    for chain in CHAINS:
        yield Network(chain.name, chain.inputs, partial(_made, chain), {})


def _node(line: str) -> onnx.NodeProto:
    op, *words = line.split()
    names = [word for word in words if "=" not in word]
    attributes = {name: ast.literal_eval(value) for name, _, value in (w.partition("=") for w in words if "=" in w)}
    *given, outputs = names
    return helper.make_node(op, ["" if name == "_" else name for name in given], outputs.split(","), **attributes)


def _made(chain: Case, inputs: Shapes) -> onnx.ModelProto:
    """Make the model of a row, with the output y."""
    nodes = [_node(line) for line in chain.nodes.strip().splitlines()]
    fed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    known = [numpy_helper.from_array(np.asarray(array), name) for name, array in chain.constants.items()]
    kind = TensorProto.INT64 if nodes[-1].op_type in _INDICES else TensorProto.FLOAT
    given = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph(nodes, "operator", fed, [given], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
