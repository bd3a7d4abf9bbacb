"""Conversion of com.microsoft operators, which ONNX Runtime's optimisers and quantisers write, to ONNX operators.

Source: ONNX Runtime, docs/ContribOperators.md. Each operator has a row of `CONTRIB` and becomes a few nodes. Operators
without a CPU implementation in ONNX Runtime are not supported, nor is text generation with internal states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Node
from cpuconv.reading import contrib_attention, contrib_int8, contrib_weights, onnx_attention
from cpuconv.reading.adapters import Reader
from cpuconv.reading.contrib_nodes import Builder

DOMAIN = "com.microsoft"
_SAMPLING = {"bilinear": "linear", "bicubic": "cubic"}


def converted(reader: Reader, node: Node, domain: str) -> list[Node]:
    """Convert a node of a domain to operators of the table.

    Raises
    ------
    ArgumentError
        The form of the operator is not supported.
    """
    made = Builder(reader, node)
    (STANDARD_DOMAIN if domain != DOMAIN else CONTRIB)[node.op](made, **node.attributes)
    return made.nodes


def _fused_conv(
    made: Builder, activation: str = "", activation_params: Sequence[float] = (), **attributes: Any
) -> None:
    """Convolution, optional addition, activation."""
    x, w, bias, added = map(made.input, range(4))
    y = made.add("Conv", x, w, bias, **attributes)
    made.activate(made.add("Add", y, added) if added else y, activation, activation_params)


def _fused_gemm(
    made: Builder, activation: str = "", activation_alpha: float | None = None, activation_beta: float | None = None,
    **attributes: Any,
) -> None:  # fmt: skip
    """Gemm and activation."""
    y = made.add("Gemm", *map(made.input, range(3)), **attributes)
    made.activate(y, activation, [value for value in (activation_alpha, activation_beta) if value is not None])


def _fused_matmul(
    made: Builder, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0
) -> None:  # fmt: skip
    """Matrix multiplication; the last two axes of an operand may be transposed."""
    if transBatchA or transBatchB:
        raise ArgumentError(must("transBatchA", "0", 1))
    operands = []
    for name, transposed in ((made.input(0), transA), (made.input(1), transB)):
        rank = made.reader.rank(name)
        if transposed and rank is None:
            raise ArgumentError(must("transA", "0 where ranks are not known", 1))
        order = [*range((rank or 2) - 2), (rank or 2) - 1, (rank or 2) - 2]
        operands.append(made.add("Transpose", name, perm=order) if transposed else name)
    made.last("Mul", made.add("MatMul", *operands), made.number(alpha))


def _gelu(approximate: str) -> Callable[..., None]:
    """Gelu, of the sum of both inputs if there is a second."""

    def apply(made: Builder) -> None:
        x, bias = made.input(0), made.input(1)
        made.last("Gelu", made.add("Add", x, bias) if bias else x, approximate=approximate)

    return apply


def _quick_gelu(made: Builder, alpha: float = 1.702) -> None:
    x = made.input(0)
    made.last("Mul", x, made.add("Sigmoid", made.add("Mul", x, made.number(alpha))))


def _max_pool_last(made: Builder, **attributes: Any) -> None:
    """MaxPool in NHWC."""
    pooled = made.add("MaxPool", made.channels_first(made.input(0)), **attributes)
    made.last("Transpose", pooled, perm=made.channels_last)


def _expanded(made: Builder) -> None:
    """Unsqueeze by one axis."""
    made.last("Unsqueeze", made.input(0), made.integers(int(made.constant(1, "axis").item())))


def _range(made: Builder) -> None:
    """Range; the step is 1 without a third input."""
    start, limit, step = map(made.input, range(3))
    made.last("Range", start, limit, step or made.add("CastLike", made.number(1.0), start))


def _distances(made: Builder, metric: str = "sqeuclidean") -> None:
    """Distances between each row of one matrix and each row of another."""
    if metric not in ("euclidean", "sqeuclidean"):
        raise ArgumentError(must("metric", "euclidean or sqeuclidean", metric))
    a, b = (made.add("Unsqueeze", made.input(at), made.integers(1 - at)) for at in range(2))
    apart = made.add("Sub", a, b)
    squares = made.add("ReduceSum", made.add("Mul", apart, apart), made.integers(2), keepdims=0)
    made.last("Sqrt" if metric == "euclidean" else "Identity", squares)


def _sampled(made: Builder, mode: str = "bilinear", **attributes: Any) -> None:
    """GridSample with old mode names."""
    made.last("GridSample", *made.node.inputs, mode=_SAMPLING.get(mode, mode), **attributes)


def _wide_integers(made: Builder) -> None:
    """Matrix multiplication of 16-bit integers with 32-bit sums."""
    made.last("MatMul", *(made.add("Cast", made.input(at), to=np.dtype(np.int32)) for at in range(2)))


def _same(op: str) -> Callable[..., None]:
    """Make a converter that keeps an ONNX operator's name."""
    return lambda made, **attributes: made.last(op, *made.node.inputs, **attributes)


CONTRIB: dict[str, Callable[..., None]] = {
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu("none"),
    "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"),
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": contrib_attention.skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": contrib_attention.skip_simplified_layer_normalization,
    "EmbedLayerNormalization": contrib_attention.embed_layer_normalization,
    "QEmbedLayerNormalization": contrib_attention.quantised_embed_layer_normalization,
    "Attention": contrib_attention.attention,
    "QAttention": contrib_attention.quantised_attention,
    "MultiHeadAttention": contrib_attention.multi_head_attention,
    "RotaryEmbedding": contrib_attention.rotary_embedding,
    "MatMulNBits": contrib_weights.matmul_nbits,
    "MatMulBnb4": contrib_weights.matmul_bnb4,
    "GatherBlockQuantized": contrib_weights.gathered_blocks,
    "MatMulInteger16": _wide_integers,
    "TransposeMatMul": _fused_matmul,
    "CDist": _distances,
    "ExpandDims": _expanded,
    "GatherND": _same("GatherND"),
    "GridSample": _sampled,
    "Pad": _same("Pad"),
    "Range": _range,
    "Trilu": _same("Trilu"),
    "DynamicQuantizeLSTM": contrib_int8.dynamic_lstm,
    "DynamicQuantizeMatMul": contrib_int8.dynamic_matmul,
    "MatMulIntegerToFloat": contrib_int8.integer_matmul,
    "QGemm": contrib_int8.gemm,
    "QLinearConv": contrib_int8.convolution,
    "QLinearSoftmax": contrib_int8.softmax,
    "QLinearWhere": contrib_int8.where,
    "QLinearReduceMean": contrib_int8.mean,
    "NhwcMaxPool": _max_pool_last,
    "QuantizeLinear": _same("QuantizeLinear"),
    "DequantizeLinear": _same("DequantizeLinear"),
    "QLinearAdd": contrib_int8.pair("Add"),
    "QLinearMul": contrib_int8.pair("Mul"),
    "QLinearSigmoid": contrib_int8.single("Sigmoid"),
    "QLinearLeakyRelu": contrib_int8.single("LeakyRelu"),
    "QLinearGlobalAveragePool": contrib_int8.single("GlobalAveragePool"),
    "QLinearAveragePool": contrib_int8.single("AveragePool"),
    "QLinearConcat": contrib_int8.concatenation,
}

STANDARD_DOMAIN: dict[str, Callable[..., None]] = {
    "QLinearConv": contrib_int8.convolution,
    "QLinearMatMul": contrib_int8.pair("MatMul", (-2, -1)),
    "Attention": onnx_attention.attention,
    "RotaryEmbedding": onnx_attention.rotary_embedding,
    "SimplifiedLayerNormalization": contrib_attention.simplified_layer_normalization,
}
"""Operators of ONNX's own domain, or ones that files have in that domain."""
