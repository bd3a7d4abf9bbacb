"""Recurrent layers with bfloat16 weights, multiplied in pairs of hidden units.

If the CPU multiplies bfloat16, states are rounded to bfloat16 once per time step. Otherwise weights are widened to
float32 in registers, and states stay float32. Either way memory traffic for weights is halved.
"""

from __future__ import annotations

import numpy as np

from cpuconv.elements import BF16, to_bfloat16
from cpuconv.isa import Isa
from cpuconv.kernels.copies.rounding import BF16_TYPES, PAIR
from cpuconv.kernels.emit.product import BY_NAME, TABLE, Product, rate, usable
from cpuconv.memory.aligned import aligned
from cpuconv.problem.integers import divide

_WIDENED = BY_NAME["widened"]
_ROUNDING = 2.0  # cycles to round a vector of a state by a separate call


def bf16_instructions(isa: Isa) -> list[Product]:
    """bfloat16 dot-product instructions of this CPU that take one 32-bit group of a state."""
    able = (each for each in TABLE if each.takes(BF16_TYPES) and usable(isa, each))
    return [each for each in able if not each.paired]


def widens(product: Product) -> bool:
    """Whether weights are widened to float32, and states stay float32."""
    return product == _WIDENED


def cycles_of_step(isa: Isa, cols: int, gates: int, hidden: int, product: Product | None) -> float:
    """Modelled compute time of a time step of `cols` sequences, in cycles, without weight loads; None: float32."""
    vectors = gates * divide(hidden, isa.lanes)
    if product is None:
        return vectors * hidden * cols / isa.fma_rate
    words = vectors * divide(hidden, PAIR)
    if widens(product):  # widening a vector takes about as long as a multiplication
        return words * PAIR * (cols + 1) / isa.fma_rate
    return words * cols / rate(isa, product) + _ROUNDING * cols * (1 + divide(hidden, isa.lanes))


def packed_bf16(weights: np.ndarray, gates: int, lanes: int, first: int = 0, count: int | None = None) -> np.ndarray:
    """Pack gates `first` … `first + count` - 1 of (directions, gates x hidden, depth), rounded to nearest.

    Returns [direction][panel][word][gate][lanes][PAIR] as uint16, padded with zeros.
    """
    directions, rows, depth = weights.shape
    hidden, words = rows // gates, divide(depth, PAIR)
    chosen = weights.reshape(directions, gates, hidden, depth)[:, first : first + (count or gates)]
    panels = divide(hidden, lanes)
    full = np.zeros((directions, chosen.shape[1], panels * lanes, words * PAIR), BF16.dtype)
    full[:, :, :hidden, :depth] = to_bfloat16(chosen).reshape(chosen.shape)
    ordered = full.reshape(directions, -1, panels, lanes, words, PAIR).transpose(0, 2, 4, 1, 3, 5)
    made = aligned(ordered.shape, BF16.dtype)
    made[...] = ordered
    return made
