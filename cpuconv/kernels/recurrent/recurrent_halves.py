"""Weights of recurrent layers in bfloat16, two units of a state at a time.

Where a CPU multiplies bfloat16, states are rounded to it once a step, and words of both are multiplied. Elsewhere
weights become floats in registers, and states are multiplied as they are: memory gives half as many bytes either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cpuconv.elements import BF16, F32, rounded
from cpuconv.isa import Isa
from cpuconv.isa.typed import store_float
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.product import BY_NAME, TABLE, WORD, Product, rate, usable
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.memory.aligned import aligned
from cpuconv.problem.integers import divide
from cpuconv.problem.types import Types
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

PAIR = WORD // BF16.bytes  # elements of a word
_WIDENED = BY_NAME["widened"]
_TYPES = Types.parse("bf16:bf16:f32")
_ROUNDING = 2.0  # cycles to round a vector of a state, of a call of its own


def products_of_halves(isa: Isa) -> list[Product]:
    """Those of bfloat16 on this CPU that take one word of a state."""
    able = (each for each in TABLE if each.takes(_TYPES) and usable(isa, each))
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


@dataclass(frozen=True)
class HalvesTile:
    """Nothing but the vector's width says how states are rounded."""

    lanes: int


@MicroKernel
def state_halves(
    tile: HalvesTile, builder: ir.IRBuilder, h: Any, h_step: Any, depth: Any, rows: Any, y: Any, y_step: Any
) -> None:
    """Rows of `depth` floats at h as bfloat16 at y, zeros behind them up to whole vectors.

    Names with `_step` are bytes from a row to the next. It is called as `state_bytes` is.
    """
    vec = Vector(builder, tile.lanes)
    whole, left = builder.udiv(depth, I64(vec.lanes)), builder.urem(depth, I64(vec.lanes))

    def row(index: Any) -> None:
        start = vec.offset(vec.pointer(h), builder.mul(index, h_step))
        target = vec.offset(vec.pointer(y), builder.mul(index, y_step))

        def places(number: Any) -> tuple[Any, Any]:
            steps = (I64(vec.lanes * element.bytes) for element in (F32, BF16))
            source, goal = (builder.mul(number, step) for step in steps)
            return vec.offset(start, source), vec.offset(target, goal)

        def vector(number: Any, _: list[Any]) -> list[Any]:
            source, goal = places(number)
            store_float(vec, BF16, vec.load(source), goal)
            return []

        repeat(vec, I64(0), whole, [], vector)
        with builder.if_then(builder.icmp_signed("!=", left, I64(0))):
            source, goal = places(whole)
            store_float(vec, BF16, vec.load_first(source, first_lanes(vec, left)), goal)

    loop(builder, 0, rows, row)
