"""Reference convolution: the direct sum over kernel taps, for checking all kernels.

Sums are float64. Integer sums are exact; their epilogue is in float32, as `Quantization` defines it.
"""

from __future__ import annotations

import numpy as np

import layouts
from cpuconv.elements import BF16, Element, from_bfloat16, join_parts
from cpuconv.problem import activation as activations
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.quantized_epilogue import apply_epilogue

_SUMS = Quantization(x_scale=1, w_scale=1)  # for integer sums without scales


def conv2d(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    problem: ConvProblem,
    residual: np.ndarray | None = None,
    quantization: Quantization | None = None,
) -> np.ndarray:
    """Compute activation(convolution + bias + residual).

    Parameters
    ----------
    x : array
        Physical, in ``problem.in_layout``; padding channels are not read. bfloat16 is that of ml_dtypes, or uint16.
    w : array, (K, C/groups, R, S)
        Integer weights: as users pass them; or less their zero points, with a quantization without zero points.
    bias : array, (K,), or None
    residual : array or None
        Physical, in ``problem.out_layout``.
    quantization : Quantization or None
        Scales and zero points of integers.

    Returns
    -------
    numpy.ndarray
        Physical array in ``problem.out_layout`` with zeros in padding channels. For floating-point sums it is float64,
        whatever the result's type; otherwise it has the result's type. Taps over padding are skipped, so that a NaN or
        Inf weight only affects outputs for which it is multiplied by real input.
    """
    p = problem
    image = layouts.to_nchw(values(x, p.types.x), p.in_layout, p.c)
    added = None if residual is None else layouts.to_nchw(stored(residual, p.types.y), p.out_layout, p.k)
    if p.types.sum.integer:
        scales = quantization or _SUMS
        points = np.asarray(scales.w_zero_point, np.float64).reshape(-1, 1, 1, 1)
        exact = _sums(image - scales.x_zero_point, np.asarray(w, np.float64) - points, p).astype(np.int64)
        return layouts.from_nchw(apply_epilogue(exact, bias, p, added, scales), p.out_layout)
    with np.errstate(invalid="ignore", over="ignore"):
        y = _sums(image, values(w, p.types.w), p)
        if bias is not None:
            y += np.asarray(bias, np.float64).reshape(p.k, 1, 1)
        if added is not None:
            y += values(added, p.types.y)
    return layouts.from_nchw(activations.apply(y, p.activation), p.out_layout)


def stored(array: np.ndarray, element: Element) -> np.ndarray:
    """The array; float32 for one in parts."""
    return join_parts(array) if element.parts > 1 and array.dtype == element.outside else np.asarray(array)


def values(array: np.ndarray, element: Element) -> np.ndarray:
    """Convert an array, in channel blocks where it is in parts, to float64."""
    array = stored(array, element)
    return np.asarray(from_bfloat16(array) if element == BF16 and array.dtype == BF16.dtype else array, np.float64)


def _sums(x: np.ndarray, w: np.ndarray, p: ConvProblem) -> np.ndarray:
    """Convolve a logical input with weights, to (N, K, OH, OW)."""
    image, taps = x.reshape(p.n, p.groups, p.cg, p.h, p.w), w.reshape(p.groups, p.kg, p.cg, p.r, p.s)
    total = np.zeros((p.n, p.groups, p.kg, p.oh, p.ow))
    for r in range(p.r):
        out_rows, in_rows = overlap(r * p.dilation[0] - p.pads[0], p.stride[0], p.h, p.oh)
        for s in range(p.s):
            out_cols, in_cols = overlap(s * p.dilation[1] - p.pads[2], p.stride[1], p.w, p.ow)
            patch = image[:, :, :, in_rows, in_cols]
            total[:, :, :, out_rows, out_cols] += _tap(np.ascontiguousarray(taps[..., r, s]), patch)
    return total.reshape(p.n, p.k, p.oh, p.ow)


def overlap(offset: int, stride: int, size: int, outputs: int) -> tuple[slice, slice]:
    """Outputs whose tap is inside the axis, and the inputs they read: input = output * stride + offset."""
    first = max(0, -(offset // stride))
    last = min(outputs - 1, (size - 1 - offset) // stride)
    count = max(0, last - first + 1)
    start = first * stride + offset
    return slice(first, first + count), slice(start, start + (count - 1) * stride + 1 if count else start, stride)


def _tap(weight: np.ndarray, patch: np.ndarray) -> np.ndarray:
    """Contribution of one tap: (groups, K', C') times (N, groups, C', rows, columns), summed over C'."""
    n, groups, channels, rows, columns = patch.shape
    if channels == 1:  # depthwise: elementwise, without a BLAS call per channel
        return weight[:, :, :, None] * patch
    product = weight @ np.ascontiguousarray(patch).reshape(n, groups, channels, rows * columns)
    return product.reshape(n, groups, weight.shape[1], rows, columns)


def relative_error(y: np.ndarray, expected: np.ndarray) -> float:
    """Compute max|y - expected| / max|expected|; infinite where NaN or Inf values differ."""
    if y.shape != expected.shape:
        raise ValueError(f"Argument 'y' must be of shape {expected.shape}, not {y.shape}.")
    if not expected.size:
        return 0.0
    finite = np.isfinite(expected)
    if not finite.all():  # boolean indexing is slow
        if not np.array_equal(y[~finite], expected[~finite], equal_nan=True):
            return float("inf")
        if not finite.any():
            return 0.0
        y, expected = y[finite], expected[finite]
    worst = np.abs(y - expected.astype(np.float64, copy=False)).max()
    return float(worst / (np.abs(expected).max() or 1.0)) if np.isfinite(worst) else float("inf")
