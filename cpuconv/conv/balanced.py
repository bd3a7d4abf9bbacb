"""Weights rounded so that the errors of a filter cancel, which rounding each to the nearest does not see to.

What is convolved seldom averages zero (after a relu it never does), so the sum of a filter's rounding errors shifts all
of its outputs alike, and such shifts add up from layer to layer where single errors average out. A few numbers that lie
near the middle of their two neighbours, rounded the other way, undo it.

Source: Guo et al., "SQuant: on-the-fly data-free quantization via diagonal Hessian approximation" (2022), for integers;
steps of floats are of unequal length.
"""

from __future__ import annotations

import numpy as np

from cpuconv.elements import rounded, widened

_PART = 1 << 16  # weights that are rounded at a time


def balanced(weights: np.ndarray) -> np.ndarray:
    """float32 weights (K, C, R, S) as bfloat16 (uint16), each at one of the two numbers beside it.

    Errors of each filter come to half a step at most, as far as rounding single weights the other way can do it.
    """
    rows = np.ascontiguousarray(weights, np.float32).reshape(len(weights), -1)
    made = np.empty(rows.shape, np.uint16)
    many = max(1, _PART // max(1, rows.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is rounded to the nearest
        for begin in range(0, len(rows), many):
            made[begin : begin + many] = _balanced(rows[begin : begin + many])
    return made.reshape(weights.shape)


def _balanced(rows: np.ndarray) -> np.ndarray:
    """Rows of numbers whose errors are to cancel."""
    nearest = rounded(rows)
    numbers = widened(nearest)
    errors = numbers - rows
    total = errors.sum(1, keepdims=True)
    wrong = np.abs(total)
    away = np.signbit(numbers) == (total > 0)  # whether what is farther from zero lessens the total
    others = nearest + np.where(away, 1, -1).astype(np.int16).view(np.uint16)
    steps = np.abs(widened(others) - numbers)
    able = (numbers != 0) & (np.signbit(errors) == np.signbit(total)) & (steps <= 2 * wrong) & np.isfinite(steps)
    costs = np.where(able, steps - 2 * np.abs(errors), np.inf)  # of squared error, for each unit that the total falls
    few = min(rows.shape[1], 8 + 2 * int(np.sqrt(rows.shape[1])))  # an even spread asks for a third of the root
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
