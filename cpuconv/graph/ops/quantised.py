"""Quantisation and dequantisation, integer convolution and matrix multiplication.

Source: ONNX operators of these names. Products are summed exactly. ONNX's integer products have no kernels; references
compute them at run time. QuantizedLinear is not ONNX's: rewrites make it of multiplications with constant weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cpuconv.conv.choice.layout_candidates import in_own_layouts, restored, solvable
from cpuconv.conv.choice.rows import rows_problem
from cpuconv.conv.choice.target import Target
from cpuconv.elements import OF_DTYPE, S32
from cpuconv.functions.casting import convert, is_integer, limits, wide
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import EXACT, REQUIRED, Arrays, Inputs, Op, axis_in, given, is_float
from cpuconv.graph.ops.convolution import ATTRIBUTES, SCALES, convolved, output_of, quantization
from cpuconv.graph.ops.elementwise import native, quantised_type
from cpuconv.graph.ops.matrix import infer_linear, matmul_shape, rows_steps
from cpuconv.graph.ops.planes import is_image
from cpuconv.graph.ops.solver_calls import offer
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import BLOCKED, DENSE, FLOAT32, STRIDED
from cpuconv.kernels.elementwise.dynamic_scale import dynamic_scale_step
from cpuconv.kernels.products.matmul_int8 import MOST, Scales, int8_matmul_steps
from cpuconv.kernels.products.matmul_int8 import seconds as product_seconds
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantized_epilogue import apply_epilogue
from cpuconv.problem.types import Types

_UINT8, _INT32 = np.dtype(np.uint8), np.dtype(np.int32)
_EXACT = 1 << 24  # up to here, float32 has all integers


def _along(vector: np.ndarray | None, axis: int, rank: int) -> np.ndarray | int:
    """Reshape a scale or zero point, one for all or one per index of an axis, to broadcast."""
    if vector is None:
        return 0
    return vector.reshape(()) if vector.size == 1 else vector.reshape(-1, *[1] * (rank - 1 - axis_in(axis, rank)))


def _parts(vector: np.ndarray | None, node: Node, shape: Sequence[int]) -> np.ndarray:
    """Expand a scale or zero point to broadcast: one for all, per index of the node's axis, or per block there."""
    if vector is None or vector.size == 1 or not node["block_size"]:
        return np.asarray(_along(vector, node["axis"], len(shape)))
    axis = axis_in(node["axis"], len(shape))
    return np.repeat(vector, node["block_size"], axis).take(range(shape[axis]), axis)


def _saturated(x: np.ndarray, zero: np.ndarray | int, dtype: np.dtype) -> np.ndarray:
    """Round to nearest even, add the zero point, and clamp to the type."""
    return np.clip(np.rint(x) + zero, *limits(dtype)).astype(dtype)


def _check_parts(node: Node, x: Any, *vectors: Any) -> None:
    """Check that scales and zero points are one number, one per index of the axis, or one per block."""
    for vector in vectors:
        if vector is None or math.prod(vector.shape) == 1:
            continue
        expected = list(x.shape)
        axis, size = axis_in(node["axis"], len(expected)), node["block_size"]
        if size < 0:
            raise ValueError(f"the block_size is {size}")
        expected = [*expected[:axis], divide(expected[axis], size), *expected[axis + 1 :]] if size else [expected[axis]]
        if list(vector.shape) != expected:
            raise ValueError(f"scales and zero points must be one, or of shape {tuple(expected)}, not {vector.shape}")


def _check_quantised(dtype: np.dtype) -> None:
    if not is_integer(dtype) and not dtype.name.startswith(("float8_e4", "float8_e5", "float6", "float4")):
        raise ValueError(f"{dtype} is not a quantised type")


def _infer_quantize(node: Node, inputs: Inputs) -> list[Value]:
    x, zero = inputs[0], given(inputs, 2)
    _check_parts(node, x, inputs[1], zero)
    dtype = quantised_type(node, zero)
    _check_quantised(dtype)
    return [Value(x.shape, dtype)]


def quantize(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute round(x / scale) + zero point, clamped to the type; the quotient has the scale's type.

    A node may state another `precision`. Floating-point types have zero point 0, and round as in Cast.
    """
    x, scale, zero = *arrays[:2], given(arrays, 2)
    kind, dtype = node["precision"] or scale.dtype, quantised_type(node, zero)
    kind = kind if is_float(kind) else FLOAT32  # for integers, and for power-of-two scales
    quotient = wide(x.astype(kind) / _parts(scale, node, x.shape).astype(kind))
    point = wide(_parts(zero, node, x.shape))
    if is_integer(dtype):
        return _saturated(quotient, point.astype(np.float64), dtype)
    return convert(quotient + point, dtype, bool(node["saturate"]))


def _infer_dequantize(node: Node, inputs: Inputs) -> list[Value]:
    _check_parts(node, *inputs)
    _check_quantised(inputs[0].dtype)
    dtype = node["output_dtype"] or inputs[1].dtype
    return [Value(inputs[0].shape, dtype if is_float(dtype) else FLOAT32)]


def dequantize(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute (x - zero point) * scale, in the scale's type or a stated one."""
    x, scale, zero = *arrays[:2], given(arrays, 2)
    kind = node["output_dtype"] or scale.dtype
    kind = kind if is_float(kind) else FLOAT32
    exact = np.int64 if is_integer(x.dtype) else np.float64
    difference = wide(x).astype(exact) - wide(_parts(zero, node, x.shape)).astype(exact)
    return difference.astype(kind) * _parts(scale, node, x.shape).astype(kind)


def _infer_dynamic(node: Node, inputs: Inputs) -> list[Value]:
    x = inputs[0]
    return [Value(x.shape, _UINT8), Value((), x.dtype), Value((), _UINT8)]


def dynamic_quantize(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Quantise to uint8 dynamically; return also scale and zero point, whose range includes all elements and 0."""
    (x,) = arrays
    low, high = x.min(initial=0), x.max(initial=0)
    scale = np.asarray((high - low) / x.dtype.type(255) or 1, x.dtype)
    zero = _saturated(-low / scale, 0, _UINT8)
    return _saturated(x / scale, zero, _UINT8), scale, zero


def _infer_span(node: Node, inputs: Inputs) -> list[Value]:
    return [Value((), inputs[0].dtype), Value((), _UINT8)]


def span(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Scale and zero point of `dynamic_quantize`."""
    return dynamic_quantize(node, arrays)[1:]


def _span_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer for dense tensors or channel blocks; their padding channels are 0, which is in the range in any case."""
    (x,) = inputs
    if x.dtype != FLOAT32 or 0 in x.shape:
        return []
    seconds = target.moving(math.prod(x.shape) * FLOAT32.itemsize)
    return [Offer((form,), (DENSE, DENSE), seconds) for form in (DENSE, *([BLOCKED] if is_image(x) else []))]


def _lower_span(call: Call) -> list[Step]:
    return [dynamic_scale_step(call.target, call.x, *call.outputs)]


# --- integer references ---------------------------------------------------------------------------------------------


def _shifted(x: np.ndarray, zero: np.ndarray | int, terms: int) -> np.ndarray:
    """Compute x - zero point in a floating-point type that sums `terms` 8-bit products exactly."""
    wide = np.float32 if terms * 255 * 255 < _EXACT else np.float64
    return x.astype(wide) - np.asarray(zero).astype(wide)


def _summed(
    node: Node, x: np.ndarray, x_zero: np.ndarray | None, w: np.ndarray, w_zero: np.ndarray | None
) -> np.ndarray:
    """Convolve integers."""
    terms = math.prod(w.shape[1:])
    image, taps = _shifted(x, _along(x_zero, 0, x.ndim), terms), _shifted(w, _along(w_zero, 0, w.ndim), terms)
    return convolved(node, image, taps).astype(np.int32)


def _multiplied(a: np.ndarray, a_zero: np.ndarray | None, b: np.ndarray, b_zero: np.ndarray | None) -> np.ndarray:
    """Multiply integer matrices; zero points of `a` are per row, those of `b` per column."""
    rows = 0 if a_zero is None else a_zero[..., None] if a_zero.ndim == 1 and a.ndim > 1 else a_zero
    product = _shifted(a, rows, a.shape[-1]) @ _shifted(b, 0 if b_zero is None else b_zero, a.shape[-1])
    return np.asarray(product).astype(np.int32)


def _infer_conv_integer(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(output_of(node, inputs[0].shape, inputs[1].shape), _INT32)]


def conv_integer(node: Node, arrays: Arrays) -> np.ndarray:
    """Convolve x and w less their zero points."""
    return _summed(node, arrays[0], given(arrays, 2), arrays[1], given(arrays, 3))


def _infer_matmul_integer(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(matmul_shape(inputs[0].shape, inputs[1].shape), _INT32)]


def matmul_integer(node: Node, arrays: Arrays) -> np.ndarray:
    """Multiply a and b less their zero points."""
    return _multiplied(arrays[0], given(arrays, 2), arrays[1], given(arrays, 3))


# --- matrix multiplication with constant weights --------------------------------------------------------------------


def _infer_linear(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(infer_linear(node, inputs)[0].shape, node["y"])]


def rows_of(node: Node, inputs: Inputs) -> ConvProblem:
    """Convert a QuantizedLinear to a convolution whose pixels are the rows."""
    x, w = inputs[:2]
    types = Types(OF_DTYPE[x.dtype], OF_DTYPE[w.dtype], S32, OF_DTYPE[node["y"]])
    added = given(inputs, 3) is not None
    return rows_problem(x.shape, w.shape[1], activation=node["activation"], residual=added, types=types)


def quantized_linear(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute QuantizedConv for rows x (..., K) and weights (K, N)."""
    x, w, bias, residual = (given(arrays, at) for at in range(4))
    sums = _shifted(x, node["x_zero_point"], len(w)) @ _shifted(w, 0, len(w))
    image = (-1, w.shape[1], 1, 1)
    added = residual if residual is None else residual.reshape(image)
    problem = rows_of(node, [value if value is None else Value.of(value) for value in arrays])
    y = apply_epilogue(sums.astype(np.int64).reshape(image), bias, problem, added, quantization(node))
    return y.reshape(*x.shape[:-1], -1)


def _has_kernel(node: Node, inputs: Inputs) -> bool:
    x, w, bias = *inputs[:2], given(inputs, 2)
    known = w.array is not None and (bias is None or bias.array is not None)
    return known and 0 not in x.shape + w.shape and solvable(rows_of(node, inputs))


def _linear_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    return [offer(in_own_layouts(rows_of(node, inputs), target), inputs)] if _has_kernel(node, inputs) else []


def _restored(node: Node, inputs: Inputs, target: Target, record: Mapping[str, Any], same: bool) -> Offer | None:
    found = restored(rows_of(node, inputs), target, record, same) if _has_kernel(node, inputs) else None
    return None if found is None else offer(found, inputs)


def _lower_linear(call: Call) -> list[Step]:
    return rows_steps(call, quantization(call.node))


# --- matrix multiplication of two activations -----------------------------------------------------------------------


def _infer_matmul(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(matmul_shape(inputs[0].shape, inputs[1].shape), node["y"])]


def _scales_of(node: Node) -> Scales:
    """Scales and zero points for the kernels."""
    scale, y = np.float32(node["a_scale"]) * np.float32(node["b_scale"]), np.float32(node["y_scale"] or 1)
    return Scales(node["a_zero_point"], node["b_zero_point"], float(scale / y), node["y_zero_point"])


def quantized_matmul(node: Node, arrays: Arrays) -> np.ndarray:
    """Multiply a and b less their zero points exactly, and quantise or dequantise the result.

    Not an ONNX operator: y = clamp(rint(f(sum) · ((a_scale · b_scale) / y_scale)) + y_zero_point), as QLinearMatMul,
    or f(sum) · (a_scale · b_scale).
    """
    scales, terms = _scales_of(node), arrays[0].shape[-1]
    a, b = _shifted(arrays[0], scales.a_zero, terms), _shifted(arrays[1], scales.b_zero, terms)
    number = np.asarray(a @ b).astype(np.float32) * np.float32(scales.factor)
    return number if node["y"] == FLOAT32 else _saturated(number, scales.zero, node["y"])


def _matmul_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    a, b = inputs
    if 0 in a.shape + b.shape or a.shape[-1] > MOST:
        return []
    seconds = product_seconds(target, a.shape, b.shape, OF_DTYPE[node["y"]])
    return [Offer((STRIDED, STRIDED), (DENSE,), seconds)]


def _lower_matmul(call: Call) -> list[Step]:
    a, b = call.inputs
    assert a is not None and b is not None
    return int8_matmul_steps(call.target, call.space, a, b, call.y, _scales_of(call.node))


_MATMUL = {"a_scale": REQUIRED, "a_zero_point": 0, "b_scale": REQUIRED, "b_zero_point": 0}
_MATMUL |= {"y": REQUIRED, "y_scale": None, "y_zero_point": 0}
_ROWS = "x: uint8|int8 (R... K), w: int8 (K N), bias?: int32|float32 (N), added?: =y (R... N)"
_ROWS += " -> y: uint8|int8|int32|float32 (R... N)"
_SPAN = "x: float32 -> scale: float32 (), zero: uint8 ()"
_BY_AXIS = {"axis": 1, "block_size": 0, "output_dtype": 0}

OPS = (
    *native(
        Op("QuantizeLinear", _infer_quantize, quantize, {**_BY_AXIS, "saturate": 1, "precision": 0}, **EXACT),
        Op("DequantizeLinear", _infer_dequantize, dequantize, _BY_AXIS, **EXACT),
    ),
    Op(
        "QuantizedLinear",
        _infer_linear,
        quantized_linear,
        {"activation": None, "y": REQUIRED, **SCALES},
        **EXACT,
        offers=_linear_offers,
        restored=_restored,
        lower=_lower_linear,
        signature=_ROWS,
        own=True,
    ),
    Op(
        "QuantizedMatMul",
        _infer_matmul,
        quantized_matmul,
        _MATMUL,
        **EXACT,
        offers=_matmul_offers,
        lower=_lower_matmul,
        signature="a: uint8|int8, b: uint8|int8 -> y: uint8|int8|float32",
        own=True,
    ),
    Op("DynamicQuantizeLinear", _infer_dynamic, dynamic_quantize, widened=False),
    Op("Span", _infer_span, span, widened=False, offers=_span_offers, lower=_lower_span, signature=_SPAN, own=True),
    Op("ConvInteger", _infer_conv_integer, conv_integer, ATTRIBUTES, **EXACT),
    Op("MatMulInteger", _infer_matmul_integer, matmul_integer, **EXACT),
)
