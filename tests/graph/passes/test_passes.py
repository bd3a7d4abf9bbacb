"""Rewrites of graphs: what each makes of which graph, what it leaves alone, and that results stay."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cpuconv.errors import ArgumentError
from cpuconv.graph import passes
from cpuconv.graph.ir import Graph
from cpuconv.graph.passes import PASSES as RUN
from cpuconv.graph.passes.rewriting import Pass, scheduled
from cpuconv.problem import activation as activations
from support.graph.expressions import Expression, feed, graph, op
from support.graph.layers import W, array, conv, hard, layer, normalized, same


def kinds(made: Graph) -> str:
    return " ".join(node.op for node in made.nodes)


x, y, V = feed(2, 6, 5, 4), feed(2, 6, 5, 4), array(4, 7, 1, 1)
rows, planes = feed(2, 3, 8), feed(2, 3, 3)


def whole(value: Expression, scale: float = 0.125) -> Expression:
    """Bytes of numbers."""
    return op.QuantizeLinear(value, np.float32(scale), np.uint8(100))


def floats(value: Expression, scale: float = 0.125) -> Expression:
    """What such bytes mean."""
    return op.DequantizeLinear(value, np.float32(scale), np.uint8(100))


def twice(value: Expression) -> Expression:
    """A value that has two readers."""
    return value + op.Exp(value)


HALF, NOTHING = np.dtype(np.float16), op.Relu(x)  # what a node that goes follows

# The rewrite, a graph, and the operators of what it becomes.
CASES: list[tuple[str, tuple[Expression, ...] | Expression, str]] = [
    ("halves", op.Relu(op.Cast(op.Floor(x), to=HALF)), "Floor Cast Relu Cast"),
    ("halves", (op.Cast(op.Floor(x), to=HALF), op.Relu(x)), "Floor Cast Relu"),
    ("noops", op.Sqrt(op.Identity(NOTHING)), "Relu Sqrt"),
    ("noops", op.Identity(NOTHING), "Relu"),
    ("noops", (op.Identity(NOTHING), op.Identity(NOTHING)), "Relu Identity"),
    ("noops", op.Identity(x), "Identity"),
    ("noops", op.Cast(NOTHING, to=np.dtype(np.float32)), "Relu"),
    ("noops", op.Cast(NOTHING, to=np.dtype(np.float64)), "Relu Cast"),
    ("noops", op.Reshape(NOTHING, [2, 6, -1, 4]), "Relu"),
    ("noops", op.Transpose(NOTHING, perm=[0, 1, 2, 3]), "Relu"),
    ("noops", op.Transpose(op.Relu(feed(3, 4, 4)), perm=[0, 2, 1]), "Relu Transpose"),
    ("noops", op.Slice(NOTHING, [0], [9], [2], [1]), "Relu"),
    ("noops", op.Slice(NOTHING, [-1], [-9], [2], [-1]), "Relu Slice"),
    ("noops", op.Pad(NOTHING, [0] * 8), "Relu"),
    ("noops", op.Pad(NOTHING, [0, 0, 1, 0, 0, 0, -1, 0]), "Relu Pad"),
    ("noops", op.Resize(NOTHING, None, np.ones(4)), "Relu"),
    ("noops", op.Resize(NOTHING, None, np.array([1, 1, 1.05, 1]), mode="linear"), "Relu Resize"),
    ("noops", op.Concat(NOTHING, axis=1), "Relu"),
    ("noops", op.Expand(NOTHING, [6, 1, 1]), "Relu"),
    ("noops", op.Expand(NOTHING, [3, 1, 1, 1, 1]), "Relu Expand"),
    ("noops", op.MaxPool(NOTHING, kernel_shape=[1, 1]), "Relu"),
    ("noops", op.MaxPool(NOTHING, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), "Relu MaxPool"),
    ("noops", op.ReduceMean(op.Relu(feed(2, 1, 3)), [1]), "Relu"),
    ("noops", 0.0 + NOTHING * 1.0 / np.ones((1, 1)), "Relu"),
    ("noops", NOTHING * np.ones((1, 1, 1, 1, 1)), "Relu Mul"),
    ("noops", 1.0 * NOTHING - 1.0, "Relu Sub"),
    ("forms", op.Flatten(x), "Reshape"),
    ("forms", op.Squeeze(op.Unsqueeze(x, [0]), [0]), "Reshape Reshape"),
    ("forms", op.Transpose(feed(2, 6, 1, 1), perm=[0, 2, 3, 1]), "Reshape"),
    ("forms", op.Transpose(x, perm=[0, 2, 3, 1]), "Transpose"),
    ("forms", op.ReduceSum(x, [1], keepdims=0), "ReduceSum Reshape"),
    ("forms", op.ReduceMean(x, [-1, 2], keepdims=0), "GlobalAveragePool Reshape"),
    ("forms", op.ReduceMax(x, [2, 3]), "GlobalMaxPool"),
    ("forms", op.ReduceMean(x, [1, 3]), "ReduceMean"),
    ("forms", op.AveragePool(x, kernel_shape=[5, 4]), "GlobalAveragePool"),
    ("forms", op.AveragePool(x, kernel_shape=[5, 4], pads=[0, 0, 1, 0]), "AveragePool"),
    ("forms", op.MaxPool(x, kernel_shape=[3, 4], dilations=[2, 1]), "MaxPool"),
    ("forms", op.GlobalAveragePool(feed(2, 6, 3, 5, 4)), "Reshape GlobalAveragePool Reshape"),
    ("forms", op.GlobalMaxPool(feed(2, 6, 3, 2, 5, 4)), "Reshape GlobalMaxPool Reshape"),
    ("forms", op.GlobalMaxPool(x), "GlobalMaxPool"),
    ("forms", op.Sum(x, y), "Add"),
    ("forms", op.Sum(x, y, x), "Sum"),
    (
        "decomposed",
        op.GroupNormalization(x, array(6), array(6, seed=1), num_groups=3),
        "Reshape InstanceNormalization Reshape Reshape Reshape Mul Add",
    ),
    ("decomposed", op.Einsum(x, y, equation="n c h w, n c g w -> n c h g"), "Transpose MatMul"),
    ("decomposed", op.Einsum(x, y, equation="nchw,ndhw->dnc"), "Reshape Transpose Reshape MatMul Transpose"),
    (
        "decomposed",
        op.Einsum(x, feed(6, 5), equation="abcd,bc->da"),
        "Transpose Reshape Reshape MatMul Reshape Transpose",
    ),
    ("decomposed", op.Einsum(feed(6, 5), x, equation="ij,aijb->ab"), "Reshape Transpose Reshape MatMul Reshape"),
    ("decomposed", op.Einsum(rows, array(8, 5), equation="abc,cd->abd"), "Reshape MatMul Reshape"),
    ("decomposed", op.Einsum(x, y, equation="nchw,nchw->nchw"), "Reshape Reshape Mul"),
    ("decomposed", op.Einsum(x, y, equation="nchw,ndhv->nw"), "Einsum"),
    ("decomposed", op.Einsum(x, y, equation="...w,...w->..."), "Reshape Reshape MatMul Reshape"),
    ("decomposed", op.Einsum(x, equation="nchw->wn"), "ReduceSum Transpose"),
    ("decomposed", op.Einsum(x, y, x, equation="nchw,nchw,nchw->nchw"), "Einsum"),
    ("decomposed", op.Einsum(x, y, equation="nchw,nchw"), "Reshape Reshape MatMul Reshape"),
    ("decomposed", op.Einsum(feed(4, 4), feed(4, 5), equation="aa,ab->b"), "Einsum"),
    ("formulas", x * op.Sigmoid(x), "Swish"),
    ("formulas", op.Sigmoid(x) * x, "Swish"),
    ("formulas", op.Sigmoid(x * 1.7) * x, "Swish"),
    ("formulas", x * op.Sigmoid(y), "Sigmoid Mul"),
    ("formulas", twice(op.Sigmoid(x)) * x, "Sigmoid Exp Add Mul"),
    ("formulas", x * op.HardSigmoid(x, alpha=0.16666670143604279, beta=0.5), "HardSwish"),
    ("formulas", x * op.HardSigmoid(x, alpha=0.2, beta=0.5), "HardSigmoid Mul"),
    ("formulas", x * hard(x) / 6.0, "HardSwish"),
    ("formulas", hard(x) * x * 0.16667, "HardSwish"),
    ("formulas", x * (hard(x) / 6.0), "HardSwish"),
    ("formulas", x / 6.0 * hard(x), "HardSwish"),
    ("formulas", x * op.Min(op.Max(3.0 + x, 0.0), 6.0) * (1 / 6), "HardSwish"),
    ("formulas", x * op.Clip(x * (1 / 6) + 0.5, 0.0, 1.0), "HardSwish"),
    ("formulas", x * hard(x) / 5.0, "Add Clip Mul Div"),
    ("formulas", x * op.Clip(x + 3.0, 0.0, 5.0) / 6.0, "Add Clip Mul Div"),
    ("formulas", x * hard(y) / 6.0, "Add Clip Mul Div"),
    ("formulas", hard(x) / 6.0, "HardSigmoid"),
    ("formulas", x * (1.0 + op.Erf(x / math.sqrt(2))) * 0.5, "Gelu"),
    ("formulas", 0.5 * x * (op.Erf(x * 0.7071) + 1.0), "Gelu"),
    ("formulas", x * (0.5 * (op.Erf(x / 1.4142135) + 1.0)), "Gelu"),
    ("formulas", x * (1.0 + op.Erf(x / 1.5)) * 0.5, "Div Erf Add Mul Mul"),
    ("formulas", 0.5 * x * (1.0 + op.Tanh(0.7978845608 * (x + 0.044715 * x**3.0))), "Gelu"),
    ("formulas", x * (0.5 * (1.0 + op.Tanh((x + (x * x * x) * 0.044715) * 0.79788456))), "Gelu"),
    ("formulas", x * op.Tanh(op.Softplus(x)), "Mish"),
    ("formulas", layer(rows), "LayerNormalization"),
    ("formulas", layer(rows, power=False) * array(8) + array(8, seed=1), "LayerNormalization"),
    ("formulas", array(1, 1, 8) * layer(rows, axes=[2]), "LayerNormalization"),
    ("formulas", layer(rows, axes=[1, 2]) * array(3, 8), "LayerNormalization"),
    ("formulas", layer(rows) * array(3, 8), "LayerNormalization Mul"),
    ("formulas", layer(rows, axes=[1]), "ReduceMean Sub Pow ReduceMean Add Sqrt Div"),
    ("formulas", op.PRelu(x, array(1, 1, 1)), "LeakyRelu"),
    ("formulas", op.PRelu(x, array(6, 1, 1)), "PRelu"),
    ("formulas", op.Max(x, 0.0), "Relu"),
    ("formulas", op.Min(op.Max(x, -1.0), 2.0), "Clip"),
    ("formulas", op.Min(op.Max(x, 3.0), 2.0), "Max Min"),
    ("linear", op.MatMul(rows, array(8, 5)), "Linear"),
    ("linear", op.MatMul(rows, array(1, 8, 5)), "Linear"),
    ("linear", op.MatMul(rows, array(2, 8, 5)), "MatMul"),
    ("linear", op.MatMul(array(4, 3), rows), "MatMul"),
    ("linear", op.MatMul(feed(8), array(8, 5)), "MatMul"),
    ("linear", op.Gemm(feed(3, 8), array(5, 8), array(5), transB=1, alpha=0.5, beta=2.0), "Linear"),
    ("linear", op.Gemm(feed(3, 8), array(8, 5), array(1)), "Linear"),
    ("linear", op.Gemm(feed(3, 8), array(8, 5)), "Linear"),
    ("linear", op.Gemm(feed(3, 8), array(8, 5), array(3, 1)), "Gemm"),
    ("linear", op.Gemm(feed(8, 3), array(8, 5), transA=1), "Gemm"),
    ("weights", normalized(conv(x), 7), "Conv"),
    ("weights", -1.0 * normalized(conv(x, bias=array(7)), 7) / array(7, 1, 1) + array(1, 7, 1, 1), "Conv"),
    ("weights", op.Sub(2.0, op.Neg(conv(x))), "Conv"),
    ("weights", normalized(conv(feed(2, 6, 5), array(9, 2, 3), group=3, pads=[1, 1]), 9), "Conv"),
    ("weights", normalized(op.ConvTranspose(x, array(6, 4, 3, 3), group=2), 8), "ConvTranspose"),
    ("weights", op.ConvTranspose(x * array(6, 1, 1), array(6, 4, 3, 3), group=2), "ConvTranspose"),
    ("weights", op.ConvTranspose(x + array(6, 1, 1), array(6, 4, 3, 3), group=2), "Add ConvTranspose"),
    ("weights", op.Linear(rows, array(8, 5)) + array(5), "Linear"),
    ("weights", op.Linear(rows, array(8, 5), array(5)) * array(5, seed=1), "Linear"),
    ("weights", op.Linear(rows, array(8, 5)) * array(3, 1), "Linear Mul"),
    ("weights", op.Linear(rows * array(8) - array(8, seed=1), array(8, 5)), "Linear"),
    ("weights", conv(x * array(6, 1, 1) / 255.0), "Conv"),
    ("weights", conv(normalized(x, 6), pads=None), "Conv"),
    ("weights", conv(normalized(x, 6)), "BatchNormalization Conv"),
    ("weights", conv(x * array(6, 1, 1) + array(6, 1, 1), array(4, 3, 1, 1), group=2), "Conv"),
    ("weights", twice(conv(x)) * 2.0, "Conv Exp Add Mul"),
    ("weights", (normalized(z := conv(x), 7), z), "Conv BatchNormalization"),
    ("weights", conv(x, activation=("relu",)) * 2.0, "Conv Mul"),
    ("weights", conv(x) * array(7, 5, 4), "Conv Mul"),
    ("weights", conv(x) * array(3, 1, 1, 1, 1), "Conv Mul"),
    ("weights", conv(x) * 3e38 * 3e38, "Conv Mul Mul"),
    ("weights", op.Conv(x, feed(7, 6, 1, 1)) * 2.0, "Conv Mul"),
    ("hard_sigmoids", op.HardSigmoid(conv(x)), "Conv Mul Add Clip"),
    ("hard_sigmoids", op.HardSigmoid(conv(x), alpha=1 / 6), "Conv HardSigmoid"),
    ("hard_sigmoids", op.HardSigmoid(x), "HardSigmoid"),
    ("hard_sigmoids", op.HardSigmoid(twice(conv(x))), "Conv Exp Add HardSigmoid"),
    ("affine", normalized(x, 6), "Mul Add"),
    ("affine", normalized(x, 6) * array(6, 1, 1) + 2.0, "Mul Add"),
    ("affine", normalized(feed(3, 4), 4), "Mul Add"),
    ("affine", op.Neg(x * 2.0) + 1.0, "Mul Add"),
    ("affine", x + 1.0 + 2.0, "Add"),
    ("affine", x * 2.0 + 1.0, "Mul Add"),
    ("affine", twice(x * 2.0) * 2.0, "Mul Exp Add Mul"),
    ("views", op.Reshape(op.Reshape(x, [2, -1]), [12, 20]), "Reshape"),
    ("views", op.Transpose(op.Transpose(x, perm=[1, 2, 3, 0]), perm=[3, 1, 0, 2]), "Transpose"),
    ("views", op.Exp(op.Transpose(op.Transpose(x, perm=[1, 2, 3, 0]), perm=[3, 0, 1, 2])), "Exp"),
    ("views", op.Concat(x, op.Concat(y, x, axis=1), axis=-3), "Concat"),
    ("views", op.Concat(x, op.Concat(y, x, axis=2), axis=2), "Concat"),
    ("views", op.Concat(x, op.Slice(y, [1], [1], [2]), y, axis=2), "Concat"),
    ("views", op.Concat(op.Concat(x, y, axis=1), op.Concat(y, x, axis=1), axis=2), "Concat Concat Concat"),
    ("views", op.Reshape(op.Linear(op.Reshape(rows, [6, 8]), array(8, 5)), [2, 3, 5]), "Linear"),
    ("views", op.Reshape(op.Softmax(op.Reshape(rows, [6, 8])), [2, 3, 8]), "Softmax"),
    ("views", op.Reshape(op.Softmax(op.Reshape(rows, [6, 8]), axis=0), [2, 3, 8]), "Reshape Softmax Reshape"),
    ("views", op.Reshape(op.Linear(op.Reshape(rows, [6, 8]), array(8, 6)), [2, 9, 2]), "Reshape Linear Reshape"),
    ("views", op.Reshape(op.Linear(op.Reshape(rows, [3, 16]), array(16, 8)), [1, 3, 8]), "Reshape Linear Reshape"),
    ("convolutions", conv(x, array(12, 1, 3, 3), group=6, bias=array(12)), "Gather Conv"),
    ("convolutions", op.Conv(feed(2, 6, 5), array(18, 1, 3), group=6, pads=[1, 1]), "Gather Conv"),
    ("convolutions", conv(x, array(6, 1, 3, 3), group=6), "Conv"),
    ("convolutions", conv(x, array(36, 1, 3, 3), group=6), "Conv"),
    ("convolutions", conv(x, array(6, 3, 3, 3), group=2), "Conv"),
    ("convolutions", op.Conv(x, feed(12, 1, 3, 3), group=6), "Conv"),
    ("volumes", op.Conv(feed(2, 3, 5, 4), feed(4, 3, 3, 3)), "Conv"),
    ("common", op.Relu(x) + op.Relu(x), "Relu Add"),
    ("common", op.Relu(x) + op.Neg(x), "Relu Neg Add"),
    ("common", op.Exp(op.Relu(x)) + op.Exp(op.Relu(x)), "Relu Exp Add"),
    ("common", op.LeakyRelu(x) + op.LeakyRelu(x, alpha=0.5), "LeakyRelu LeakyRelu Add"),
    ("common", (op.Relu(x), op.Exp(op.Relu(x))), "Relu Exp"),
    ("common", (op.Relu(x), op.Relu(x)), "Relu Relu"),
    ("pads", conv(op.Pad(x, [0, 0, 1, 2, 0, 0, 3, 4])), "Conv"),
    ("pads", conv(op.Pad(x, [1, 2, 3, 4], 0.0, [2, -1]), auto_pad="SAME_UPPER", pads=None, strides=[2, 2]), "Conv"),
    ("pads", conv(op.Pad(x, [0, 0, 1, 2, 0, 0, 3, 4], 1.0)), "Pad Conv"),
    ("pads", conv(op.Pad(x, [1, 0, 1, 2, 0, 0, 3, 4])), "Pad Conv"),
    ("pads", conv(op.Pad(x, [0, 0, 1, 2, 0, 0, -1, 4])), "Pad Conv"),
    ("pads", conv(op.Pad(x, [0, 0, 1, 1, 0, 0, 1, 1], mode="edge")), "Pad Conv"),
    ("pads", op.AveragePool(op.Pad(x, [0, 0, 1, 1, 0, 0, 1, 1]), kernel_shape=[3, 3]), "AveragePool"),
    (
        "pads",
        op.AveragePool(op.Pad(x, [0, 0, 1, 1, 0, 0, 1, 1]), kernel_shape=[3, 3], pads=[1, 0, 0, 0]),
        "Pad AveragePool",
    ),
    (
        "pads",
        op.AveragePool(op.Pad(x, [0, 0, 1, 1, 0, 0, 1, 1]), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        "Pad AveragePool",
    ),
    ("pads", op.MaxPool(op.Pad(x, [0, 0, 1, 1, 0, 0, 1, 1], -np.inf), kernel_shape=[3, 3]), "MaxPool"),
    ("pads", op.MaxPool(op.Pad(x, [0, 0, 1, 1, 0, 0, 1, 1]), kernel_shape=[3, 3]), "Pad MaxPool"),
    ("pads", op.MaxPool(op.Pad(op.Relu(x), [0, 0, 1, 1, 0, 0, 1, 1]), kernel_shape=[3, 3]), "Relu MaxPool"),
    ("pads", op.MaxPool(op.Pad(op.Relu(x), [0, 0, 3, 1, 0, 0, 1, 1]), kernel_shape=[3, 3]), "Relu Pad MaxPool"),
    ("epilogues", op.Relu(conv(x)), "Conv"),
    ("epilogues", op.Relu(conv(conv(x), V) + conv(y, array(4, 6, 1, 1))), "Conv Conv Conv"),
    ("epilogues", op.Clip(op.Linear(rows, array(8, 8)) + rows, 0.0, 6.0), "Linear"),
    ("epilogues", op.Transpose(op.Linear(rows, array(8, 3)), perm=[0, 2, 1]) + planes, "Transpose Linear Transpose"),
    ("epilogues", op.Relu(conv(x) + array(1, 7, 5, 4)), "Conv Add Relu"),
    ("epilogues", conv(x) + conv(y, array(1, 6, 3, 3)), "Conv Conv Add"),
    ("epilogues", (lambda z: z + z)(conv(x)), "Conv Add"),
    ("epilogues", twice(conv(x)), "Conv Exp Add"),
    ("epilogues", (z := conv(x), op.Relu(z)), "Conv Relu"),
    ("epilogues", op.Relu(conv(x)) + conv(y), "Conv Conv"),
    ("epilogues", op.Exp(op.Relu(conv(x))), "Conv Exp"),
    ("epilogues", op.Relu(op.DepthToSpace(op.Conv(x, array(8, 6, 1, 1)), blocksize=2)), "Conv DepthToSpace"),
    ("epilogues", op.Relu(op.Transpose(op.Reshape(conv(x), [2, 7, 20]), perm=[0, 2, 1])), "Conv Reshape Transpose"),
    ("epilogues", op.Relu(twice(op.Reshape(conv(x), [2, 7, 20]))), "Conv Reshape Exp Add Relu"),
    ("epilogues", op.HardSigmoid(conv(x)), "Conv HardSigmoid"),
    ("epilogues", op.Clip(conv(x), 3.0, 2.0), "Conv Clip"),
    ("epilogues", op.Max(conv(x), 0.5), "Conv"),
    ("epilogues", op.Max(conv(x), array(1, 1, 1, 1, 1)), "Conv Max"),
    ("epilogues", op.Swish(conv(x), alpha=1.7), "Conv Swish"),
    ("quantised", whole(floats(whole(x))), "QuantizeLinear Identity"),
    ("quantised", whole(op.MaxPool(floats(whole(x)), kernel_shape=[2, 2])), "QuantizeLinear Identity MaxPool"),
    (
        "quantised",
        whole(op.AveragePool(floats(whole(x)), kernel_shape=[2, 2]), 0.5),
        "QuantizeLinear QuantizedAveragePool",
    ),
    (
        "quantised",
        whole(op.AveragePool(floats(whole(x)), kernel_shape=[5, 4])),
        "QuantizeLinear DequantizeLinear AveragePool QuantizeLinear",
    ),
    ("quantised", whole(op.Softmax(floats(whole(x)), axis=-1), 0.5), "QuantizeLinear QuantizedSoftmax"),
    ("quantised", op.Softmax(floats(whole(x)), axis=1), "QuantizeLinear QuantizedSoftmax"),
    ("quantised", whole(op.Softmax(x, axis=-1), 0.5), "QuantizedSoftmax"),
    ("quantised", whole(op.ReduceMean(floats(whole(x)), [3])), "QuantizeLinear QuantizedReduceMean"),
    ("quantised", twice(op.Softmax(floats(whole(x)), axis=-1)), "QuantizeLinear QuantizedSoftmax Exp Add"),
    ("quantised", whole(op.Pad(floats(whole(x)), [0, 0, 1, 1, 0, 0, 1, 1])), "QuantizeLinear Identity Pad"),
    ("quantised", whole(op.Reshape(floats(whole(x)), [12, 20])), "QuantizeLinear Identity Reshape"),
    (
        "quantised",
        whole(op.Concat(floats(whole(x)), floats(whole(y), 0.25), axis=1)),
        "QuantizeLinear QuantizeLinear DequantizeLinear Identity QuantizeLinear Concat",
    ),
    (
        "quantised",
        whole(op.MatMul(floats(whole(x)), op.Transpose(floats(whole(y)), perm=[0, 1, 3, 2])), 8.0),
        "QuantizeLinear QuantizeLinear Transpose QuantizedMatMul",
    ),
    (
        "quantised",
        op.MatMul(floats(whole(x)), floats(whole(op.Transpose(y, perm=[0, 1, 3, 2])), 0.5)),
        "QuantizeLinear Transpose QuantizeLinear QuantizedMatMul",
    ),
    ("quantised", op.Relu(op.Reshape(floats(whole(x)), [12, 20])), "QuantizeLinear Reshape DequantizeLinear Relu"),
    ("quantised", whole(floats(whole(x)), 0.5), "QuantizeLinear DequantizeLinear QuantizeLinear"),
    ("quantised", whole(op.Exp(floats(whole(x)))), "QuantizeLinear DequantizeLinear Exp QuantizeLinear"),
]


@pytest.mark.parametrize(("name", "outputs", "after"), CASES)
def test_rewrite(name, outputs, after):
    before = graph(*(outputs if isinstance(outputs, tuple) else (outputs,)))
    made = RUN[name](before)
    assert kinds(made) == after
    assert RUN[name](made) is made
    same(before, made, 1e-4 if name == "formulas" else 2e-6)
    if kinds(before) == after:
        assert made is before


def test_what_epilogues_take():
    taken = {
        ("relu",): op.Relu,
        ("relu6",): lambda z: op.Clip(z, 0.0, 6.0),
        ("clip", -1.0, math.inf): lambda z: op.Clip(z, -1.0),
        ("leaky_relu", 0.5): lambda z: op.LeakyRelu(z, alpha=0.5),
        ("sigmoid",): op.Sigmoid,
        ("tanh",): op.Tanh,
        ("silu",): op.Swish,
        ("hardsigmoid",): lambda z: op.HardSigmoid(z, alpha=1 / 6),
        ("hardswish",): op.HardSwish,
        ("gelu",): op.Gelu,
        ("gelu_tanh",): lambda z: op.Gelu(z, approximate="tanh"),
    }
    assert {name for name, *_ in taken} == set(filter(activations.is_fused, activations.names()))
    for activation, apply in taken.items():
        for value in (conv(x), op.Linear(rows, array(8, 5))):
            before = graph(apply(value))
            (node,) = RUN["epilogues"](before).nodes
            assert node["activation"] == activation
            same(before, RUN["epilogues"](before))


@pytest.mark.parametrize(
    ("ends", "activation"),
    [
        ((-0.0, 6.0), ("relu6",)),
        ((0.0, math.inf), ("relu",)),
        ((-math.inf, 2.0), ("clip", -math.inf, 2.0)),
        ((-0.0, 2.0), ("clip", 0.0, 2.0)),
    ],
)
def test_ends_that_are_infinite_or_minus_zero_are_seen_through(ends, activation):
    (node,) = RUN["epilogues"](graph(op.Clip(conv(x), *ends))).nodes
    assert node["activation"] == activation and str(node["activation"]) == str(activation)


def test_the_later_side_of_an_add_takes_it():
    first, second = conv(x, array(4, 6, 3, 3)), conv(y, array(4, 6, 1, 1))
    made = RUN["epilogues"](graph(op.Relu(first + second)))
    assert [len(node.inputs) for node in made.nodes] == [2, 4]
    made = RUN["epilogues"](graph(op.Relu(op.Relu(first) + second)))  # only one of them could
    assert [(len(node.inputs), node["activation"]) for node in made.nodes] == [(2, ("relu",)), (4, ("relu",))]
    made = RUN["epilogues"](graph(op.Relu(first + op.Relu(second))))
    assert [len(node.inputs) for node in made.nodes] == [2, 4]


def test_weights_are_rounded_once():
    made = RUN["weights"](graph(conv(x) * array(7, 1, 1) / 3.0 + 0.1))
    (node,) = made.nodes
    scale = array(7, 1, 1).astype(np.float64) / np.float64(np.float32(3))
    np.testing.assert_array_equal(made.constants[node.inputs[1]], (W * scale[..., None]).astype(np.float32))
    np.testing.assert_array_equal(made.constants[node.inputs[2]], np.full(7, 0.1, np.float32))


def test_weights_without_a_scale_are_not_copied():
    before = graph(conv(x) + array(7, 1, 1))
    made = RUN["weights"](before)
    assert made.constants[made.nodes[0].inputs[1]] is before.constants[before.nodes[0].inputs[1]]


def test_equal_constants_become_one():
    before = graph(x * array(6, 1, 1) + array(6, 1, 1) * y + np.float32([0.0] * 4) + np.float32([-0.0] * 4))
    made = RUN["equal_constants"](before)
    assert (len(before.constants), len(made.constants)) == (4, 3)
    same(before, made, 0)


def test_integers_are_left_alone():
    number, seven = np.array(6), np.array(7)
    before = graph(x / number * op.Clip(x + 3, 0, seven) / number * 2 / 2, dtype=np.int64)
    assert kinds(passes.apply(before)) == kinds(before)


def test_each_rewrite_runs_after_what_it_needs_and_before_what_it_undoes():
    order = scheduled(RUN.values())
    done: set[str] = set()
    for each in order:
        assert done.issuperset(each.needs)
        done = done - {*each.undoes} | {each.name, *each.includes}
    assert done == {*RUN} == {*passes.NAMES}
    assert scheduled(reversed(RUN.values())) == order


def test_the_order_follows_from_needs():
    a, b, c = (Pass("a", "", (), ("b",)), Pass("b", "", (), ("c",), ("c",)), Pass("c", "", (), early=True))
    assert [each.name for each in scheduled((a, b, c))] == ["c", "b", "a", "c"]
    assert [each.name for each in scheduled((a, c))] == ["a", "c"]
    assert [each.name for each in scheduled((a, replace(b, includes=("c",))))] == ["b", "a"]
    with pytest.raises(AssertionError, match="undo each other"):
        scheduled((replace(a, undoes=("b",)), replace(b, undoes=("a",))))


def test_a_rewrite_that_there_is_not():
    with pytest.raises(ArgumentError, match=r"'skip' must be names of rewrites \(halves, noops, .*\), not 'nothing'"):
        passes.apply(graph(op.Relu(x)), ["nothing"])
