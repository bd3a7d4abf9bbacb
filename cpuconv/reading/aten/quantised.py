"""Adapters of the operators of PT2E quantisation (torchao): they become QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cpuconv.reading.aten.emitter import Emitter, Operand, Unsupported

NAMESPACE = "quantized_decomposed::"


def _scale(b: Emitter, value: Any) -> str:
    """A scale, or a tensor of scales, as float32."""
    return b.cast(value, torch.float32)


def _zero(b: Emitter, value: Any, dtype: torch.dtype) -> str:
    """A zero point, or a tensor of zero points; 0 if there is none."""
    return b.cast(0 if value is None else value, dtype)


def _quantized(b: Emitter, x: Any, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype, axis: int) -> str:
    """Quantise; a range that is narrower than that of the type clamps the result."""
    limits = torch.iinfo(dtype)
    y: str = b.add("QuantizeLinear", x, _scale(b, scale), _zero(b, zero, dtype), axis=axis)
    if low > limits.min:
        y = b.add("Max", y, b.cast(low, dtype))
    return b.add("Min", y, b.cast(high, dtype)) if high < limits.max else y


def _quantize(b: Emitter, x: Any, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, *_: Any) -> str:
    return _quantized(b, x, scale, zero, int(low), int(high), dtype, 1)


def _quantize_channels(
    b: Emitter, x: Any, scale: Any, zero: Any, axis: int, low: int, high: int, dtype: torch.dtype
) -> str:
    return _quantized(b, x, scale, zero, low, high, dtype, axis)


def _dequantize(b: Emitter, x: Any, scale: Any, zero: Any, *_: Any) -> str:
    return b.add("DequantizeLinear", x, _scale(b, scale), _zero(b, zero, x.dtype))


def _dequantize_channels(b: Emitter, x: Any, scale: Any, zero: Any, axis: int, *_: Any) -> str:
    return b.add("DequantizeLinear", x, _scale(b, scale), _zero(b, zero, x.dtype), axis=axis)


def _range(b: Emitter, x: Any, low: int, high: int, eps: float, dtype: torch.dtype) -> list[str]:
    """Scale and zero point of a tensor, whose range is made to contain 0."""
    bottom, top = (b.add(op, b.add(reduce, x, keepdims=0), b.cast(0.0, torch.float32))
                   for op, reduce in (("Min", "ReduceMin"), ("Max", "ReduceMax")))  # fmt: skip
    steps = b.cast(float(high - low), torch.float32)
    scale = b.add("Max", b.add("Div", b.add("Sub", top, bottom), steps), b.cast(float(eps), torch.float32))
    zero = b.add("Sub", b.cast(float(low), torch.float32), b.add("Round", b.add("Div", bottom, scale)))
    clamped = b.add("Clip", zero, b.cast(float(low), torch.float32), b.cast(float(high), torch.float32))
    return [b.add("Cast", scale, to=np.dtype(np.float64)), b.add("Cast", clamped, to=np.dtype(np.int64))]


def _packed_linear(b: Emitter, x: Any, w: Any, scales: Any) -> str:
    """Linear layer with int8 weights that have a scale for each output."""
    if w.known is None:
        raise Unsupported("with weights that are not constant")
    weights = Operand.of(_dequantize_channels(b, w, scales, None, 0), w.meta)
    return b.add("MatMul", x, b.add("Transpose", weights, perm=[1, 0]))


ADAPTERS: dict[str, Callable[..., Any] | None] = {
    **{f"{NAMESPACE}quantize_per_tensor{overload}": _quantize for overload in ("", ".tensor", ".tensor2")},
    **{f"{NAMESPACE}dequantize_per_tensor{overload}": _dequantize for overload in ("", ".tensor", ".tensor2")},
    f"{NAMESPACE}quantize_per_channel": _quantize_channels,
    f"{NAMESPACE}dequantize_per_channel": _dequantize_channels,
    f"{NAMESPACE}choose_qparams.tensor": _range,
    "_weight_int8pack_mm": _packed_linear,
    "_int_mm": lambda b, x, w: b.add("MatMulInteger", x, w),
}
