"""Data and the float64 reference for all engines; it shares no code with any engine, cpuconv included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpuconv.problem.problem import ConvProblem

# Largest errors relative to the output's largest value. cpuconv must keep its accuracy class. A peer only has to be
# roughly right (one of them runs Winograd tiles large enough to lose three digits); its worst error is reported.
CPUCONV_TOLERANCE = 1e-4
PEER_TOLERANCE = 5e-3


def arrays(problem: ConvProblem, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make input (N, C, H, W), weights (K, C/g, R, S) and bias (K,): float32, unit normal, equal in every process."""
    rng = np.random.default_rng(seed)
    shapes = (problem.n, problem.c, problem.h, problem.w), problem.weight_shape, (problem.k,)
    x, w, bias = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return x, w, bias


def convolve(problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Compute the convolution in float64, (N, K, OH, OW), as a sum of matrix multiplications over kernel taps."""
    p = problem
    (sh, sw), (dh, dw), (top, bottom, left, right) = p.stride, p.dilation, p.pads
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    w = w.astype(np.float64).reshape(p.groups, p.kg, p.cg, p.r, p.s)
    y = np.zeros((p.n, p.groups, p.kg, p.oh * p.ow))
    for r in range(p.r):
        for s in range(p.s):
            window = x[:, :, r * dh : r * dh + (p.oh - 1) * sh + 1 : sh, s * dw : s * dw + (p.ow - 1) * sw + 1 : sw]
            y += w[:, :, :, r, s] @ window.reshape(p.n, p.groups, p.cg, -1)
    return y.reshape(p.n, p.k, p.oh, p.ow) + bias.astype(np.float64)[:, None, None]


def error(output: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest deviation relative to the reference's largest value; infinite if the shapes differ."""
    if output.shape != reference.shape:
        return float("inf")
    if not reference.size:
        return 0.0
    worst = float(np.abs(output - reference).max() / max(np.abs(reference).max(), np.finfo(np.float32).tiny))
    return worst if np.isfinite(worst) else float("inf")


def worst_error(outputs: np.ndarray | Sequence[np.ndarray], references: Sequence[np.ndarray]) -> float:
    """Return the largest `error` of the outputs; infinite if their number differs from that of the references."""
    outputs = [np.asarray(outputs)] if len(references) == 1 and not isinstance(outputs, list) else outputs
    if len(outputs) != len(references):
        return float("inf")
    return max(error(output, reference) for output, reference in zip(outputs, references, strict=True))


def rows_error(outputs: np.ndarray | Sequence[np.ndarray], references: Sequence[np.ndarray]) -> float:
    """Return the median error of the rows of outputs (1, rows, ...) whose order rounding may change.

    The row of all outputs together that is nearest to a reference row is compared with it, as in `error`. The median
    ignores rows that are not in both: the last of those selected by a score.
    """
    given, wanted = (_rows(arrays) for arrays in (outputs, references))
    if given.shape != wanted.shape or not np.isfinite(given).all():
        return float("inf")
    nearest = [float(np.abs(given - row).max(1).min()) for row in wanted]
    return float(np.median(nearest) / max(np.abs(wanted).max(), np.finfo(np.float32).tiny))


def _rows(arrays: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """Join outputs (1, rows, ...) to a matrix (rows, columns)."""
    parts = arrays if isinstance(arrays, Sequence) else [arrays]
    return np.concatenate([np.asarray(part)[0].reshape(np.shape(part)[1], -1) for part in parts], 1)
