"""Networks that onnxruntime.quantization made, in all its forms, tensor by tensor beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


import cpuconv  # noqa: E402
from bench.networks import light  # noqa: E402
from support import saturation  # noqa: E402
from support.graph.apart import FORMS, cut, plain_session, quantised  # noqa: E402
from support.graphs import parse, runtime_session  # noqa: E402

VISION = """
vision (float[1,3,24,24] x) => (float[1,10] y, float[1,10] chances)
{
  a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, w0, b0)
  b = Relu (a)
  c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 16> (b, w1, b1)
  d = Clip (c, zero, six)
  mean = GlobalAveragePool (d)
  e = Conv (mean, w2, b2)
  gate = Sigmoid (e)
  f = Mul (d, gate)
  g = Conv (f, w3, b3)
  sum = Add (g, b)
  swish = HardSwish (sum)
  small = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (swish)
  other = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (sum)
  both = Concat <axis = 1> (small, other)
  h = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (both, w4, b4)
  leaky = LeakyRelu <alpha = 0.1> (h)
  large = Resize <mode = "nearest"> (leaky, , scales)
  wide = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (leaky, w5)
  joined = Add (large, wide)
  padded = Pad (joined, pads)
  last = Conv <kernel_shape = [3, 3], strides = [2, 2]> (padded, w6, b6)
  first, second = Split <axis = 1, num_outputs = 2> (last)
  halves = Mul (first, second)
  pooled = GlobalAveragePool (halves)
  flat = Flatten (pooled)
  y = Gemm <transB = 1> (flat, w7, b7)
  chances = Softmax <axis = 1> (y)
}
"""
SHAPES = {"w0": (16, 3, 3, 3), "w1": (16, 1, 3, 3), "w2": (16, 16, 1, 1), "w3": (16, 16, 1, 1), "w4": (24, 32, 3, 3)}
SHAPES |= {"w5": (24, 24, 2, 2), "w6": (20, 24, 3, 3), "w7": (10, 10)}
OUTPUTS = {"b0": 16, "b1": 16, "b2": 16, "b3": 16, "b4": 24, "b6": 20, "b7": 10}

WORDS = """
words (float[1,12,32] x) => (float[1,12,32] y)
{
  q0 = MatMul (x, w0)
  k0 = MatMul (x, w1)
  v0 = MatMul (x, w2)
  q1 = Reshape (q0, heads)
  k1 = Reshape (k0, heads)
  v1 = Reshape (v0, heads)
  q = Transpose <perm = [0, 2, 1, 3]> (q1)
  k = Transpose <perm = [0, 2, 3, 1]> (k1)
  v = Transpose <perm = [0, 2, 1, 3]> (v1)
  scores = MatMul (q, k)
  scaled = Mul (scores, quarter)
  shares = Softmax <axis = -1> (scaled)
  read = MatMul (shares, v)
  turned = Transpose <perm = [0, 2, 1, 3]> (read)
  flat = Reshape (turned, rows)
  out = MatMul (flat, w3)
  sum = Add (x, out)
  normal = LayerNormalization <axis = -1> (sum, scale, bias)
  mean = ReduceMean <keepdims = 1> (normal, axes)
  apart = Sub (normal, mean)
  y = MatMul (apart, w4)
}
"""


def _vision(rng: np.random.Generator) -> tuple[onnx.ModelProto, str]:
    arrays = {name: rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape) for name, shape in SHAPES.items()}
    arrays |= {name: rng.normal(0, 0.2, size) for name, size in OUTPUTS.items()}
    arrays |= {"zero": np.zeros(()), "six": np.full((), 6.0), "scales": np.array([1, 1, 2, 2])}
    arrays["w7"] /= 16  # chances that are neither 0 nor 1
    floats = {name: array.astype(np.float32) for name, array in arrays.items()}
    return parse(VISION, 18, **floats, pads=np.int64([0, 0, 0, 0, 0, 0, 1, 1])), "x"


def _words(rng: np.random.Generator) -> tuple[onnx.ModelProto, str]:
    arrays = {f"w{at}": rng.normal(0, 32**-0.5, (32, 32)) for at in range(5)}
    arrays |= {"scale": rng.uniform(0.5, 2, 32), "bias": rng.normal(size=32), "quarter": np.full((), 0.25)}
    floats = {name: array.astype(np.float32) for name, array in arrays.items()}
    sizes = {"heads": np.int64([1, 12, 2, 16]), "rows": np.int64([1, 12, 32]), "axes": np.int64([-1])}
    return parse(WORDS, 18, **floats, **sizes), "x"


def _light(rng: np.random.Generator) -> tuple[onnx.ModelProto, str]:
    """A file of the package onnx: opset 9, whose Softmax goes over all axes behind the first."""
    return light.model("squeezenet", {"data_0": (1, 3, 40, 40)}), "data_0"


NETWORKS = {"vision": (_vision, FORMS), "words": (_words, FORMS)}
NETWORKS["squeezenet"] = (_light, [form for form in FORMS if not form[2]])  # scales by channel need opset 13
PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "Linear", "MatMul"}
LEFT = {("vision", "QOperator"): {"Conv"}, ("words", "QDQ"): {"MatMul"}, ("words", "QOperator"): {"MatMul"}}
"""Products of floats: ConvTranspose has no QLinear form; the others are of two tensors that are computed."""


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize(("name", "form"), [(name, form) for name, (_, forms) in NETWORKS.items() for form in forms])
def test_tensor_by_tensor(name, form, tmp_path):
    """Each tensor of bytes within one unit of ONNX Runtime's for the same bytes; outputs as near to those of floats."""
    rng = np.random.default_rng(3)
    floats, source = NETWORKS[name][0](rng)
    shape = [axis.dim_value for axis in floats.graph.input[0].type.tensor_type.shape.dim]
    feeds = [{source: rng.standard_normal(shape, np.float32)} for _ in range(20)]
    model, feed = quantised(floats, feeds, form, max(saturation.widths()), tmp_path), feeds[0]
    compiled = cpuconv.compile(model, strategy="heuristic", threads=1)
    assert {row["op"] for row in compiled.explain().to_dict()["operators"]} & PRODUCTS <= LEFT.get(
        (name, form[0]), set()
    )

    apart, bytes_, tensors = cut(model, feed, runtime)
    got = cpuconv.compile(apart, strategy="heuristic", threads=1).run(bytes_)
    session = plain_session(apart, runtime)
    inputs = {each.name for each in session.get_inputs()}
    wanted = session.run(tensors, {name: array for name, array in bytes_.items() if name in inputs})
    assert len(tensors) > 10
    for tensor, right in zip(tensors, wanted, strict=True):
        off = np.abs(got[tensor].astype(int) - right.astype(int))
        assert off.max() <= 1 and np.mean(off) < 0.05, (tensor, off.max(), np.mean(off))

    exact, theirs = runtime_session(runtime, floats), runtime_session(runtime, model)
    runs = [(compiled.run(each).values(), theirs.run(None, each), exact.run(None, each)) for each in feeds]
    for own, other, right in zip(
        *(map(np.stack, zip(*each, strict=True)) for each in zip(*runs, strict=True)), strict=True
    ):
        assert _error(own, right) <= 1.1 * _error(other, right)


def _error(array: np.ndarray, right: np.ndarray) -> float:
    """Relative root of the mean square."""
    return float(np.sqrt(np.mean((array - right) ** 2) / np.mean(right**2)))
