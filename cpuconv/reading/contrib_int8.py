"""com.microsoft operators on int8 tensors: as DequantizeLinear, operator and QuantizeLinear, or with dynamic scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Node
from cpuconv.reading.adapters import flattened
from cpuconv.reading.contrib_nodes import Builder


def dynamic_lstm(made: Builder, **attributes: Any) -> None:
    """LSTM with int8 weights: int8 multiplications of x and of the state; float32 if weights are not constant."""
    x, _, _, bias, *others = map(made.input, range(8))
    tensors = [made.reader.constants.get(made.input(at)) for at in (1, 2, 8, 9, 10, 11)]
    if tensors[2] is None or tensors[4] is None:
        raise ArgumentError(must("scales", "constant", [made.input(at) for at in (8, 10)]))
    if any(tensor is None for tensor in tensors):
        _float32_lstm(made, **attributes)
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
    fed = made.scaled_product(made.dynamically_quantised(x), weights)
    if bias:
        shape, axes = made.reader.constant([directions, 2, rows], "shape"), made.reader.constant([1], "axes")
        both = made.add("ReduceSum", made.add("Reshape", bias, shape), axes, keepdims=0)
        fed = made.add("Add", fed, made.add("Reshape", both, made.reader.constant([-1], "shape")))
    moved = (r.astype(np.int16) - middle).astype(np.int8)
    numbers = map(made.array, (moved, each[2], each[3].astype(np.float32) - np.float32(middle)))
    made.last("QuantizedLSTM", fed, *numbers, *others, **attributes)


def _float32_lstm(made: Builder, **attributes: Any) -> None:
    """Convert DynamicQuantizeLSTM to a float32 LSTM."""
    x, w, r, *others = map(made.input, range(8))
    parts = []
    for weights, at in ((w, 8), (r, 10)):
        first, zero = (made.input(place) for place in (at, at + 1))
        constant = made.reader.constants[first]
        if constant.ndim > 1 and constant.shape[1] > 1:  # a scale per column and direction
            wide = made.add("Cast", weights, to=np.dtype(np.float32))
            axis = made.reader.constant([1], f"{first}.axis")
            zeros = made.add("Unsqueeze", made.add("Cast", zero, to=np.dtype(np.float32)), axis)
            dequantised = made.add("Mul", made.add("Sub", wide, zeros), made.add("Unsqueeze", first, axis))
        else:
            shape = made.reader.constant([-1], f"{first}.shape")
            dequantised = made.dequantised(
                weights, made.add("Reshape", first, shape), made.add("Reshape", zero, shape), 0
            )
        parts.append(made.add("Transpose", dequantised, perm=[0, 2, 1]))
    made.last("LSTM", x, *parts, *others, **attributes)


def dynamic_matmul(made: Builder) -> None:
    """Matrix multiplication of a dynamically quantised float32 tensor and int8 weights."""
    a, *b, bias = map(made.input, range(5))
    product = made.scaled_product(made.dynamically_quantised(a), b)
    made.last("Add" if bias else "Identity", product, bias)


def integer_matmul(made: Builder) -> None:
    """Matrix multiplication of int8 tensors with a float32 result."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = map(made.input, range(7))
    product = made.scaled_product((a, a_scale, a_zero), (b, b_scale, b_zero))
    made.last("Add" if bias else "Identity", product, bias)


def gemm(made: Builder, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> None:
    """Gemm of int8 tensors; the bias is in units of both scales."""
    inputs, bias, added = (made.dequantised_input(0), made.dequantised_input(3, 0 if transB else 1)), made.input(6), ""
    if bias:
        units = made.add("Mul", made.input(1), made.input(4))
        added = made.add("Mul", made.add("Cast", bias, to=np.dtype(np.float32)), units)
        added = made.add("Mul", added, made.number(alpha))
    y = made.add("Gemm", *inputs, added, alpha=alpha, transA=transA, transB=transB)
    if made.input(7):
        made.quantise_outputs(y, 7)
    else:
        made.last("Identity", y)


def convolution(made: Builder, channels_last: int = 0, **attributes: Any) -> None:
    """Convolution of int8 tensors; the bias is in units of both scales."""
    inputs, bias = (made.dequantised_input(0, channels_last=channels_last), made.dequantised_input(3, 0)), made.input(8)
    added = made.dequantised(bias, made.add("Mul", made.input(1), made.input(4)), axis=0) if bias else ""
    made.quantise_outputs(made.add("Conv", *inputs, added, **attributes), 6, channels_last)


def pair(op: str, axes: tuple[int, int] = (1, 1)) -> Callable[..., None]:
    """Make a converter of an operator with two int8 inputs."""
    return lambda made: made.quantise_outputs(
        made.add(op, made.dequantised_input(0, axes[0]), made.dequantised_input(3, axes[1])), 6
    )


def single(op: str) -> Callable[..., None]:
    """Make a converter of an operator with one int8 input."""

    def apply(made: Builder, channels_last: int = 0, **attributes: Any) -> None:
        x = made.dequantised_input(0, channels_last=channels_last)
        made.quantise_outputs(made.add(op, x, **attributes), 3, channels_last)

    return apply


def softmax(made: Builder, opset: int, axis: int = -1) -> None:
    """Softmax of an int8 tensor; before opset 13, over all axes from `axis` on."""
    y = made.reader.fresh(f"{made.node.outputs[0]}.Softmax")
    axis = -1 if axis + 1 == made.reader.rank(made.input(0)) else axis
    node = Node("Softmax", (made.dequantised_input(0),), (y,), {"axis": axis}, made.node.origin)
    made.nodes += flattened(made.reader, node) if opset < 13 else [node]
    made.quantise_outputs(y, 3)


def where(made: Builder) -> None:
    """Where of two int8 tensors."""
    made.quantise_outputs(made.add("Where", made.input(0), made.dequantised_input(1), made.dequantised_input(4)), 7)


def mean(made: Builder, axes: Sequence[int] | None = None, keepdims: int = 1) -> None:
    """Mean of an int8 tensor over axes."""
    x = made.dequantised_input(0)
    chosen = "" if axes is None else made.reader.constant(axes, f"{made.node.outputs[0]}.axes")
    made.quantise_outputs(made.add("ReduceMean", x, chosen, keepdims=keepdims), 3)


def concatenation(made: Builder, axis: int) -> None:
    """Concat of int8 tensors, each with its own scale."""
    count = len(made.node.inputs)
    if count % 3 != 2:
        raise ArgumentError(must("inputs", "a scale, a zero point, and three for each tensor", count))
    inputs = [made.dequantised_input(at) for at in range(2, count, 3)]
    made.quantise_outputs(made.add("Concat", *inputs, axis=axis), 0)
