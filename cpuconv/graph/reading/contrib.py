"""Operators of the domain com.microsoft, which ONNX Runtime's optimisers and quantisers write, as ONNX's own.

Source: ONNX Runtime, docs/ContribOperators.md. One line of `CONTRIB` an operator; each becomes a few nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Node, trimmed
from cpuconv.graph.reading.adapters import Reader, flattened

DOMAIN = "com.microsoft"


class Builder:
    """The nodes that one node becomes."""

    def __init__(self, reader: Reader, node: Node) -> None:
        self.reader, self.node = reader, node
        self.nodes: list[Node] = []

    def input(self, position: int) -> str:
        """The name of an input, "" where it is left out."""
        return self.node.inputs[position] if position < len(self.node.inputs) else ""

    def add(self, op: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        """One node more; the name of its first output, a new one unless it is given."""
        outputs = outputs or (self.reader.fresh(f"{self.node.outputs[0]}.{op}"),)
        stated = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(Node(op, trimmed(inputs), tuple(outputs), stated, self.node.origin))
        return outputs[0]

    def last(self, op: str, *inputs: str, **attributes: Any) -> None:
        """The node that has the outputs of the whole."""
        self.add(op, *inputs, outputs=self.node.outputs, **attributes)

    def dequantised(self, x: str, scale: str, zero: str = "", axis: int = 1) -> str:
        """Bytes as floats."""
        return self.add("DequantizeLinear", x, scale, zero, axis=axis)

    def floats(self, position: int, axis: int = 1, channels_last: int = 0) -> str:
        """The bytes at an input as floats, channels first; their scale and zero point are the inputs behind it."""
        x, scale, zero = (self.input(position + at) for at in range(3))
        return self.dequantised(self.turned(x) if channels_last else x, scale, zero, axis)

    def turned(self, x: str) -> str:
        """A tensor of channels last, with channels first."""
        rank = self.reader.rank(x) or 4
        return self.add("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])

    @property
    def channels_last(self) -> list[int]:
        """The order of axes that puts channels last."""
        return [0, *range(2, self.reader.rank(self.input(0)) or 4), 1]

    def as_bytes(self, y: str, position: int, channels_last: int = 0) -> None:
        """The whole as bytes, by the scale and the zero point at an input and the one behind it."""
        y = self.add("Transpose", y, perm=self.channels_last) if channels_last else y
        self.last("QuantizeLinear", y, self.input(position), self.input(position + 1))

    def array(self, value: np.ndarray) -> str:
        """A constant of the array's own type."""
        name = self.reader.fresh(f"{self.node.outputs[0]}.constant")
        self.reader.constants[name] = np.ascontiguousarray(value)
        return name

    def spanned(self, x: str) -> list[str]:
        """Bytes that span floats, their scale and their zero point."""
        parts = [self.reader.fresh(f"{self.node.outputs[0]}.{part}") for part in ("bytes", "scale", "zero")]
        self.add("DynamicQuantizeLinear", x, outputs=parts)
        return parts

    def activated(self, y: str, activation: str, numbers: Sequence[float]) -> None:
        """The whole, an activation of `numbers`."""
        names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(activation, ())
        if activation == "Clip":
            self.last("Clip", y, *map(self.number, numbers))
        elif activation in ("", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"):
            self.last(activation or "Identity", y, **dict(zip(names, numbers, strict=False)))
        else:
            raise ArgumentError(must("activation", "one that is known", activation))

    def number(self, value: float) -> str:
        """A constant."""
        return self.reader.constant(value, f"{self.node.outputs[0]}.constant")


def contributed(reader: Reader, node: Node) -> list[Node]:
    """The node in operators of ONNX.

    Raises
    ------
    ArgumentError
        Its form is not known.
    """
    made = Builder(reader, node)
    (CONTRIB | ALIKE)[node.op](made, **node.attributes)
    return made.nodes


def _fused_conv(
    made: Builder, activation: str = "", activation_params: Sequence[float] = (), **attributes: Any
) -> None:
    """Convolution, a sum, an activation."""
    x, w, bias, added = map(made.input, range(4))
    y = made.add("Conv", x, w, bias, **attributes)
    made.activated(made.add("Add", y, added) if added else y, activation, activation_params)


def _fused_gemm(
    made: Builder, activation: str = "", activation_alpha: float | None = None, activation_beta: float | None = None,
    **attributes: Any,
) -> None:  # fmt: skip
    """Gemm and an activation."""
    y = made.add("Gemm", *map(made.input, range(3)), **attributes)
    made.activated(y, activation, [value for value in (activation_alpha, activation_beta) if value is not None])


def _fused_matmul(
    made: Builder, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0
) -> None:  # fmt: skip
    """A product of matrices, the last two axes of its operands in another order."""
    if transBatchA or transBatchB:
        raise ArgumentError(must("transBatchA", "0", 1))
    operands = []
    for name, turned in ((made.input(0), transA), (made.input(1), transB)):
        rank = made.reader.rank(name)
        if turned and rank is None:
            raise ArgumentError(must("transA", "0 where ranks are not known", 1))
        order = [*range((rank or 2) - 2), (rank or 2) - 1, (rank or 2) - 2]
        operands.append(made.add("Transpose", name, perm=order) if turned else name)
    made.last("Mul", made.add("MatMul", *operands), made.number(alpha))


def _gelu(approximate: str) -> Callable[..., None]:
    """Gelu, of a sum if there is a second input."""

    def apply(made: Builder) -> None:
        x, bias = made.input(0), made.input(1)
        made.last("Gelu", made.add("Add", x, bias) if bias else x, approximate=approximate)

    return apply


def _quick_gelu(made: Builder, alpha: float = 1.702) -> None:
    x = made.input(0)
    made.last("Mul", x, made.add("Sigmoid", made.add("Mul", x, made.number(alpha))))


def _skip_layer_normalization(made: Builder, epsilon: float = 1e-12) -> None:
    """Layer normalisation of a sum; the sum is the fourth output."""
    x, skip, scale, bias, more = map(made.input, range(5))
    x = made.add("Add", x, skip)
    x = made.add("Add", x, more) if more else x
    y, *rest = made.node.outputs
    if any(rest[:2]):
        raise ArgumentError(must("outputs", "the first and the fourth", rest))
    made.add("LayerNormalization", x, scale, bias, outputs=(y,), axis=-1, epsilon=epsilon)
    if any(rest[2:]):
        made.add("Identity", x, outputs=(rest[2],))


def _dynamic_lstm(made: Builder, **attributes: Any) -> None:
    """An LSTM whose weights are bytes: it multiplies bytes of x and of the state; floats where weights are computed."""
    x, _, _, bias, *others = map(made.input, range(8))
    tensors = [made.reader.constants.get(made.input(at)) for at in (1, 2, 8, 9, 10, 11)]
    if tensors[2] is None or tensors[4] is None:
        raise ArgumentError(must("scales", "constant", [made.input(at) for at in (8, 10)]))
    if any(tensor is None for tensor in tensors):
        _lstm_of_floats(made, **attributes)
        return
    w, r, w_scale, w_zero, r_scale, r_zero = (np.asarray(tensor) for tensor in tensors)
    directions, _, rows = r.shape
    each = [
        np.broadcast_to(part.reshape(directions, -1), (directions, rows)) for part in (w_scale, w_zero, r_scale, r_zero)
    ]
    middle = 128 if r.dtype == np.uint8 else 0
    flat = w.swapaxes(0, 1).reshape(w.shape[1], -1)
    points = each[1].reshape(-1)
    weights = [made.array(flat), made.array(each[0].reshape(-1)), made.array(points if np.ptp(points) else points[:1])]
    fed = _scaled_product(made, made.spanned(x), weights)
    if bias:
        shape, axes = made.reader.constant([directions, 2, rows], "shape"), made.reader.constant([1], "axes")
        both = made.add("ReduceSum", made.add("Reshape", bias, shape), axes, keepdims=0)
        fed = made.add("Add", fed, made.add("Reshape", both, made.reader.constant([-1], "shape")))
    moved = (r.astype(np.int16) - middle).astype(np.int8)
    numbers = map(made.array, (moved, each[2], each[3].astype(np.float32) - np.float32(middle)))
    made.last("QuantizedLSTM", fed, *numbers, *others, **attributes)


def _lstm_of_floats(made: Builder, **attributes: Any) -> None:
    """DynamicQuantizeLSTM by an LSTM of floats."""
    x, w, r, *others = map(made.input, range(8))
    parts = []
    for weights, at in ((w, 8), (r, 10)):
        first, zero = (made.input(place) for place in (at, at + 1))
        constant = made.reader.constants[first]
        if constant.ndim > 1 and constant.shape[1] > 1:  # one for each column of each direction
            wide = made.add("Cast", weights, to=np.dtype(np.float32))
            axis = made.reader.constant([1], f"{first}.axis")
            zeros = made.add("Unsqueeze", made.add("Cast", zero, to=np.dtype(np.float32)), axis)
            floats = made.add("Mul", made.add("Sub", wide, zeros), made.add("Unsqueeze", first, axis))
        else:
            shape = made.reader.constant([-1], f"{first}.shape")
            floats = made.dequantised(weights, made.add("Reshape", first, shape), made.add("Reshape", zero, shape), 0)
        parts.append(made.add("Transpose", floats, perm=[0, 2, 1]))
    made.last("LSTM", x, *parts, *others, **attributes)


def _scaled_product(made: Builder, a: Sequence[str], b: Sequence[str]) -> str:
    """A product of bytes, each with its scale and zero point, as floats."""
    sums = made.add("Cast", made.add("MatMulInteger", a[0], b[0], a[2], b[2]), to=np.dtype(np.float32))
    return made.add("Mul", sums, made.add("Mul", a[1], b[1]))


def _dynamic_matmul(made: Builder) -> None:
    """A product of floats, which become bytes that span them, with bytes."""
    a, *b, bias = map(made.input, range(5))
    product = _scaled_product(made, made.spanned(a), b)
    made.last("Add" if bias else "Identity", product, bias)


def _integer_matmul(made: Builder) -> None:
    """A product of bytes, as floats."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = map(made.input, range(7))
    product = _scaled_product(made, (a, a_scale, a_zero), (b, b_scale, b_zero))
    made.last("Add" if bias else "Identity", product, bias)


def _attention(made: Builder, **attributes: Any) -> None:
    """Attention of a tensor to itself; its product with all weights, which are floats, and a sum come before."""
    x, w, bias, mask, past, added = map(made.input, range(6))
    product = made.add("Add", made.add("MatMul", x, w), bias)
    _heads(made, product, w, mask, past, added, **attributes)


def _q_attention(made: Builder, **attributes: Any) -> None:
    """The same, of bytes."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = map(made.input, range(9))
    product = made.add("Add", _scaled_product(made, (x, x_scale, x_zero), (w, w_scale, w_zero)), bias)
    _heads(made, product, w, mask, past, **attributes)


def _heads(
    made: Builder, product: str, w: str, mask: str, past: str, added: str = "", *, num_heads: int,
    scale: float = 0.0, mask_filter_value: float = -10000.0, **others: Any,
) -> None:  # fmt: skip
    """Softmax of queries by keys, times values, for each head; `product` (B, S, 3H) has the three side by side."""
    weights, rank = made.reader.constants.get(w), made.reader.rank(mask) if mask else 2
    for name, value in others.items():
        if value:
            raise ArgumentError(must(name, "left out", value))
    if weights is None or past or any(made.node.outputs[1:]) or rank not in (2, 3):
        raise ArgumentError(
            must("inputs", "constant weights, a mask of (B, T) or (B, S, T), no past", made.node.inputs)
        )
    parts = [made.reader.fresh(f"{made.node.outputs[0]}.{part}") for part in ("queries", "keys", "values")]
    made.add("Split", product, outputs=parts, axis=2, num_outputs=3)
    shape = made.reader.constant([0, 0, num_heads, -1], f"{product}.shape")
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    queries, keys, values = (
        made.add("Transpose", made.add("Reshape", part, shape), perm=order)
        for part, order in zip(parts, orders, strict=True)
    )
    number = made.number(scale or (weights.shape[1] // 3 // num_heads) ** -0.5)
    scores = made.add("Mul", made.add("MatMul", queries, keys), number)
    if mask:
        seen = made.add("Cast", mask, to=np.dtype(np.float32))
        hidden = made.add("Mul", made.add("Sub", made.number(1.0), seen), made.number(mask_filter_value))
        axes = made.reader.constant([1, 2] if rank == 2 else [1], f"{product}.axes")
        scores = made.add("Add", scores, made.add("Unsqueeze", hidden, axes))
    scores = made.add("Add", scores, added) if added else scores
    together = made.add("MatMul", made.add("Softmax", scores, axis=-1), values)
    rows = made.add("Transpose", together, perm=[0, 2, 1, 3])
    made.last("Reshape", rows, made.reader.constant([0, 0, -1], f"{product}.rows"))


def _q_gemm(made: Builder, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> None:
    """Gemm of bytes; its bias is in units of both scales."""
    floats, bias, added = (made.floats(0), made.floats(3, 0 if transB else 1)), made.input(6), ""
    if bias:
        units = made.add("Mul", made.input(1), made.input(4))
        added = made.add("Mul", made.add("Cast", bias, to=np.dtype(np.float32)), units)
        added = made.add("Mul", added, made.number(alpha))
    y = made.add("Gemm", *floats, added, alpha=alpha, transA=transA, transB=transB)
    if made.input(7):
        made.as_bytes(y, 7)
    else:
        made.last("Identity", y)


def _q_conv(made: Builder, channels_last: int = 0, **attributes: Any) -> None:
    """A convolution of bytes; its bias is in units of both scales."""
    floats, bias = (made.floats(0, channels_last=channels_last), made.floats(3, 0)), made.input(8)
    added = made.dequantised(bias, made.add("Mul", made.input(1), made.input(4)), axis=0) if bias else ""
    made.as_bytes(made.add("Conv", *floats, added, **attributes), 6, channels_last)


def _pair(op: str, axes: tuple[int, int] = (1, 1)) -> Callable[..., None]:
    """An operator of two tensors of bytes."""
    return lambda made: made.as_bytes(made.add(op, made.floats(0, axes[0]), made.floats(3, axes[1])), 6)


def _single(op: str) -> Callable[..., None]:
    """An operator of one tensor of bytes."""

    def apply(made: Builder, channels_last: int = 0, **attributes: Any) -> None:
        floats = made.floats(0, channels_last=channels_last)
        made.as_bytes(made.add(op, floats, **attributes), 3, channels_last)

    return apply


def _q_softmax(made: Builder, opset: int, axis: int = -1) -> None:
    """Softmax of bytes, as that opset has it: before 13 over all axes from `axis` on."""
    y = made.reader.fresh(f"{made.node.outputs[0]}.Softmax")
    axis = -1 if axis + 1 == made.reader.rank(made.input(0)) else axis
    node = Node("Softmax", (made.floats(0),), (y,), {"axis": axis}, made.node.origin)
    made.nodes += flattened(made.reader, node) if opset < 13 else [node]
    made.as_bytes(y, 3)


def _q_where(made: Builder) -> None:
    """Bytes of one tensor or of another."""
    made.as_bytes(made.add("Where", made.input(0), made.floats(1), made.floats(4)), 7)


def _q_mean(made: Builder, axes: Sequence[int] | None = None, keepdims: int = 1) -> None:
    """The mean of bytes over axes."""
    floats = made.floats(0)
    chosen = "" if axes is None else made.reader.constant(axes, f"{made.node.outputs[0]}.axes")
    made.as_bytes(made.add("ReduceMean", floats, chosen, keepdims=keepdims), 3)


def _concatenation(made: Builder, axis: int) -> None:
    """Tensors of bytes side by side, each with a scale of its own."""
    count = len(made.node.inputs)
    if count % 3 != 2:
        raise ArgumentError(must("inputs", "a scale, a zero point, and three for each tensor", count))
    floats = [made.floats(at) for at in range(2, count, 3)]
    made.as_bytes(made.add("Concat", *floats, axis=axis), 0)


def _max_pool_last(made: Builder, **attributes: Any) -> None:
    """MaxPool of channels last."""
    pooled = made.add("MaxPool", made.turned(made.input(0)), **attributes)
    made.last("Transpose", pooled, perm=made.channels_last)


def _same(op: str) -> Callable[..., None]:
    """An operator of ONNX under its own name."""
    return lambda made, **attributes: made.last(op, *made.node.inputs, **attributes)


CONTRIB: dict[str, Callable[..., None]] = {
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu("none"),
    "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"),
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_layer_normalization,
    "Attention": _attention,
    "QAttention": _q_attention,
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulIntegerToFloat": _integer_matmul,
    "QGemm": _q_gemm,
    "QLinearConv": _q_conv,
    "QLinearSoftmax": _q_softmax,
    "QLinearWhere": _q_where,
    "QLinearReduceMean": _q_mean,
    "NhwcMaxPool": _max_pool_last,
    "QuantizeLinear": _same("QuantizeLinear"),
    "DequantizeLinear": _same("DequantizeLinear"),
    "QLinearAdd": _pair("Add"),
    "QLinearMul": _pair("Mul"),
    "QLinearSigmoid": _single("Sigmoid"),
    "QLinearLeakyRelu": _single("LeakyRelu"),
    "QLinearGlobalAveragePool": _single("GlobalAveragePool"),
    "QLinearAveragePool": _single("AveragePool"),
    "QLinearConcat": _concatenation,
}

ALIKE: dict[str, Callable[..., None]] = {
    "QLinearConv": _q_conv,
    "QLinearMatMul": _pair("MatMul", (-2, -1)),
}
"""Those of ONNX's own domain."""
