"""Rounding of weights to bfloat16 such that the rounding errors of each filter cancel.

Activations rarely average zero (after a ReLU they never do). The sum of a filter's rounding errors therefore shifts all
of its outputs equally. Such shifts accumulate from layer to layer, while single errors average out. Rounding a few
weights that are near the middle of two bfloat16 numbers the other way removes the shift.

Source: Guo et al., "SQuant: on-the-fly data-free quantization via diagonal Hessian approximation" (2022), for integers;
here, steps between adjacent floating-point numbers differ in size.
"""

from __future__ import annotations

import numpy as np

from cpuconv.elements import from_bfloat16, to_bfloat16

_PART = 1 << 16  # weights per rounding pass


def round_balanced(weights: np.ndarray) -> np.ndarray:
    """Round float32 weights (K, C, R, S) to bfloat16 (uint16), each to one of its two neighbours.

    The summed error of each filter becomes at most half a step, as far as rounding single weights the other way can
    achieve it.
    """
    rows = np.ascontiguousarray(weights, np.float32).reshape(len(weights), -1)
    made = np.empty(rows.shape, np.uint16)
    many = max(1, _PART // max(1, rows.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):  # weights that are not finite are rounded to the nearest
        for begin in range(0, len(rows), many):
            made[begin : begin + many] = _round_rows(rows[begin : begin + many])
    return made.reshape(weights.shape)


def _round_rows(rows: np.ndarray) -> np.ndarray:
    """Round rows of float32 numbers so that the errors of each row cancel."""
    nearest = to_bfloat16(rows)
    numbers = from_bfloat16(nearest)
    errors = numbers - rows
    total = errors.sum(1, keepdims=True)
    wrong = np.abs(total)
    away = np.signbit(numbers) == (total > 0)  # whether the neighbour farther from zero reduces the total error
    others = nearest + np.where(away, 1, -1).astype(np.int16).view(np.uint16)
    steps = np.abs(from_bfloat16(others) - numbers)
    able = (numbers != 0) & (np.signbit(errors) == np.signbit(total)) & (steps <= 2 * wrong) & np.isfinite(steps)
    costs = np.where(able, steps - 2 * np.abs(errors), np.inf)  # added squared error per unit of reduced total error
    few = min(rows.shape[1], 8 + 2 * int(np.sqrt(rows.shape[1])))  # uniform errors need a third of the root
    if few < rows.shape[1]:
        best = np.argpartition(costs, few - 1, axis=1)[:, :few]
        best = np.take_along_axis(best, np.argsort(np.take_along_axis(costs, best, 1), 1), 1)
    else:
        best = np.argsort(costs, 1)
    taken = np.take_along_axis(np.where(able, steps, np.float32(0)), best, 1)
    taken[np.cumsum(taken, 1) - taken / 2 > wrong] = 0
    turned = np.where(taken > 0, np.take_along_axis(others, best, 1), np.take_along_axis(nearest, best, 1))
    np.put_along_axis(nearest, best, turned, 1)
    return nearest
