"""The float64 oracle: convolution as the direct sum over taps, for judging every kernel."""

from __future__ import annotations

import numpy as np

import layouts
from cpuconv.problem import activation as activations
from cpuconv.problem.problem import ConvProblem


def conv2d(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, problem: ConvProblem, residual: np.ndarray | None = None
) -> np.ndarray:
    """activation(convolution + bias + residual) in float64.

    Parameters
    ----------
    x : array
        Physical, in ``problem.in_layout``; channel tails are not read.
    w : array, (K, C/groups, R, S)
    bias : array, (K,), or None
    residual : array or None
        Physical, in ``problem.out_layout``.

    Returns
    -------
    numpy.ndarray
        Physical float64 array in ``problem.out_layout``, channel tails zero. Taps over padding are left out, so that a
        NaN or Inf among the weights spreads only where it meets real input.
    """
    p = problem
    image = layouts.to_nchw(np.asarray(x, np.float64), p.in_layout, p.c).reshape(p.n, p.groups, p.cg, p.h, p.w)
    taps = np.asarray(w, np.float64).reshape(p.groups, p.kg, p.cg, p.r, p.s)
    total = np.zeros((p.n, p.groups, p.kg, p.oh, p.ow))
    with np.errstate(invalid="ignore", over="ignore"):
        for r in range(p.r):
            out_rows, in_rows = overlap(r * p.dilation[0] - p.pads[0], p.stride[0], p.h, p.oh)
            for s in range(p.s):
                out_cols, in_cols = overlap(s * p.dilation[1] - p.pads[2], p.stride[1], p.w, p.ow)
                patch = image[:, :, :, in_rows, in_cols]
                total[:, :, :, out_rows, out_cols] += _tap(np.ascontiguousarray(taps[..., r, s]), patch)
        y = total.reshape(p.n, p.k, p.oh, p.ow)
        if bias is not None:
            y += np.asarray(bias, np.float64).reshape(p.k, 1, 1)
        if residual is not None:
            y += layouts.to_nchw(np.asarray(residual, np.float64), p.out_layout, p.k)
    return layouts.from_nchw(activations.apply(y, p.activation), p.out_layout)


def overlap(offset: int, stride: int, size: int, outputs: int) -> tuple[slice, slice]:
    """Outputs whose tap lies inside the axis, and the inputs they read: input = output * stride + offset."""
    first = max(0, -(offset // stride))
    last = min(outputs - 1, (size - 1 - offset) // stride)
    count = max(0, last - first + 1)
    start = first * stride + offset
    return slice(first, first + count), slice(start, start + (count - 1) * stride + 1 if count else start, stride)


def _tap(weight: np.ndarray, patch: np.ndarray) -> np.ndarray:
    """One tap's share: (groups, K', C') times (N, groups, C', rows, columns), summed over C'."""
    n, groups, channels, rows, columns = patch.shape
    if channels == 1:  # depthwise: a product, without a call of BLAS for each channel
        return weight[:, :, :, None] * patch
    product = weight @ np.ascontiguousarray(patch).reshape(n, groups, channels, rows * columns)
    return product.reshape(n, groups, weight.shape[1], rows, columns)


def relative_error(y: np.ndarray, expected: np.ndarray) -> float:
    """max|y - expected| / max|expected|; infinite where one has a NaN or Inf that the other has not."""
    if y.shape != expected.shape:
        raise ValueError(f"Argument 'y' must be of shape {expected.shape}, not {y.shape}.")
    if not expected.size:
        return 0.0
    finite = np.isfinite(expected)
    if not finite.all():  # picking values out is slow
        if not np.array_equal(y[~finite], expected[~finite], equal_nan=True):
            return float("inf")
        if not finite.any():
            return 0.0
        y, expected = y[finite], expected[finite]
    worst = np.abs(y - expected.astype(np.float64, copy=False)).max()
    return float(worst / (np.abs(expected).max() or 1.0)) if np.isfinite(worst) else float("inf")
