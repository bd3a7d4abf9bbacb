"""Weights of recurrent layers in bfloat16, two units of a state at a time.

Where a CPU multiplies bfloat16, states are rounded to it once a step, and words of both are multiplied. Elsewhere
weights become floats in registers, and states are multiplied as they are: memory gives half as many bytes either way.
"""

from __future__ import annotations

import numpy as np

from cpuconv.elements import BF16, rounded
from cpuconv.isa import Isa
from cpuconv.kernels.copies.rounding import HALVES, PAIR
from cpuconv.kernels.emit.product import BY_NAME, TABLE, Product, rate, usable
from cpuconv.memory.aligned import aligned
from cpuconv.problem.integers import divide

_WIDENED = BY_NAME["widened"]
_ROUNDING = 2.0  # cycles to round a vector of a state, of a call of its own


def products_of_halves(isa: Isa) -> list[Product]:
    """Those of bfloat16 on this CPU that take one word of a state."""
    able = (each for each in TABLE if each.takes(HALVES) and usable(isa, each))
    return [each for each in able if not each.paired]


def widens(product: Product) -> bool:
    """Whether weights become floats, and states stay what they are."""
    return product == _WIDENED


def cycles_of_step(isa: Isa, cols: int, gates: int, hidden: int, product: Product | None) -> float:
    """What a step's products of `cols` sequences take beside reading weights, by the model; None: of floats."""
    vectors = gates * divide(hidden, isa.lanes)
    if product is None:
        return vectors * hidden * cols / isa.fma_rate
    words = vectors * divide(hidden, PAIR)
    if widens(product):  # to widen a vector takes about as long as to multiply it
        return words * PAIR * (cols + 1) / isa.fma_rate
    return words * cols / rate(isa, product) + _ROUNDING * cols * (1 + divide(hidden, isa.lanes))


def packed_halves(weights: np.ndarray, gates: int, lanes: int, first: int = 0, count: int | None = None) -> np.ndarray:
    """Gates `first` … `first + count` - 1 of (directions, gates x hidden, depth), rounded to the nearest.

    Gives [direction][panel][word][gate][lanes][PAIR] as uint16, zeros where there is no unit.
    """
    directions, rows, depth = weights.shape
    hidden, words = rows // gates, divide(depth, PAIR)
    chosen = weights.reshape(directions, gates, hidden, depth)[:, first : first + (count or gates)]
    panels = divide(hidden, lanes)
    full = np.zeros((directions, chosen.shape[1], panels * lanes, words * PAIR), BF16.dtype)
    full[:, :, :hidden, :depth] = rounded(chosen).reshape(chosen.shape)
    ordered = full.reshape(directions, -1, panels, lanes, words, PAIR).transpose(0, 2, 4, 1, 3, 5)
    made = aligned(ordered.shape, BF16.dtype)
    made[...] = ordered
    return made
