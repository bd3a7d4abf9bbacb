"""Reference of the integer epilogue that `Quantization` defines, in NumPy: float32, one operation at a time."""

from __future__ import annotations

import numpy as np

from cpuconv.elements import F32, S32
from cpuconv.problem import activation as activations
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import INT8_TYPES, Quantization, bounds

_CLAMPS = (None, "relu", "clip")  # activations that only narrow the clamp
_EXACT = (*_CLAMPS, "relu6", "leaky_relu")  # activations that kernels compute bit-exactly
_one = np.float32


def is_exact(problem: ConvProblem) -> bool:
    """Whether all kernels of the problem match the reference bit for bit: integer problems without an activation that
    kernels approximate."""
    return problem.types.sum.integer and _name(problem) in _EXACT


def apply_epilogue(
    sums: np.ndarray, bias: np.ndarray | None, problem: ConvProblem, residual: np.ndarray | None, scales: Quantization
) -> np.ndarray:
    """Apply the epilogue to accumulators.

    Parameters
    ----------
    sums : array of int64, (N, K, OH, OW)
        Dot products of operands less their zero points.
    bias : array, (K,), or None
        int32 or float32.
    residual : array, (N, K, OH, OW), or None
        Residual of the result's type.

    Returns
    -------
    numpy.ndarray, (N, K, OH, OW)
        Result of the problem's type.
    """
    y, shift = problem.types.y, None
    if bias is not None:
        bias = bias.reshape(-1, 1, 1)
        if bias.dtype != F32.dtype:
            sums = sums + bias
        elif y == F32:
            shift = bias
        else:
            sums = sums + _rounded(bias, _each(scales.product()))
    total = (sums & 0xFFFFFFFF).astype(np.uint32).view(np.int32)  # modulo 2^32, as instructions add
    if y == S32:
        return total
    with np.errstate(over="ignore"):
        if y in INT8_TYPES and residual is None and _name(problem) in _CLAMPS:
            whole = _requantised(total.astype(np.float32), problem, scales)
        else:
            number = _dequantised(total.astype(np.float32), problem, scales, shift, residual)
            if y == F32:
                return number
            whole = np.rint(number / _one(scales.y_scale or 1)) + _one(scales.y_zero_point)
        least, most = (_each(end) for end in scales.clamp(y))
        return np.minimum(np.maximum(whole, least), most).astype(y.dtype)


def _name(problem: ConvProblem) -> str | None:
    return problem.activation[0] if problem.activation else None


def _each(values: np.ndarray) -> np.ndarray:
    """Reshape values per output channel, or a single value, for broadcasting."""
    return values.reshape(-1, 1, 1)


def _rounded(bias: np.ndarray, scale: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.clip(np.rint(bias / scale).astype(np.float64), *bounds(S32)).astype(np.int64)


def _requantised(total: np.ndarray, problem: ConvProblem, scales: Quantization) -> np.ndarray:
    """Requantise by one multiplication, with a clamp as the only activation; not yet clamped to the type."""
    unit, point = _one(scales.y_scale or 1), _one(scales.y_zero_point)
    whole = np.rint(total * _each(scales.ratio())) + point
    if problem.activation is None:
        return whole
    low, high = problem.activation[1:] or (0.0, np.inf)
    return np.minimum(np.maximum(whole, np.rint(_one(low) / unit) + point), np.rint(_one(high) / unit) + point)


def _dequantised(
    total: np.ndarray,
    problem: ConvProblem,
    scales: Quantization,
    shift: np.ndarray | None,
    residual: np.ndarray | None,
) -> np.ndarray:
    """Dequantise the accumulators, add bias and residual, and apply the activation."""
    number = total * _each(scales.product())
    if shift is not None:
        number = number + shift
    if residual is not None and problem.types.y == F32:
        number = number + residual
    elif residual is not None:
        less = residual.astype(np.float32) - _one(scales.residual_zero_point)
        number = number + less * _one(scales.residual_scale or 1)
    if problem.activation is None:
        return number
    name, *scalars = problem.activation
    with np.errstate(invalid="ignore"):
        return activations.apply(number.astype(np.float64), (name, *map(float, map(_one, scalars)))).astype(np.float32)
