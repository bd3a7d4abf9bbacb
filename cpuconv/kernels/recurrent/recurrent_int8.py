"""Recurrent layers with int8 weights: states are quantised per sequence and multiplied in groups of four hidden units.

A state h is quantised to rint(127 h / m), where m is the largest |h| of its sequence. This is dynamic quantisation with
a zero point that is known in advance, so its contribution to the dot products is known too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import U8, Element
from cpuconv.isa import Isa
from cpuconv.isa.typed import store_int
from cpuconv.isa.vector import F32, I32, I64
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.fold import FOLDS, repeat
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.product import BY_NAME, FEW, TABLE, WORD, Product, of_few, rate, usable
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.packing.word_parts import in_parts
from cpuconv.memory.aligned import aligned
from cpuconv.problem.integers import divide
from cpuconv.problem.types import Types
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

HEADER, MOST = 64, 127  # bytes of a row before the state; quantised value of the largest |h|
UNIT, SUM, LACKING = 0, 4, 8  # header offsets: scale, sum of the quantised state, correction of the dot products
NUMBERS = 3  # rows of parameters per gate


def product_of_states(isa: Isa, sequences: int) -> Product:
    """The fastest int8 dot product of this CPU that takes one 32-bit group of a state, for `sequences` columns."""
    types = Types.parse("u8:s8:f32")
    able = (each for each in TABLE if each.takes(types) and usable(isa, each) and not each.paired)
    fastest = max(able, key=lambda each: rate(isa, each) / each.parts)
    return of_few(fastest) if sequences <= FEW else fastest


def row_bytes(hidden: int) -> int:
    """Bytes per row: the header and a quantised state."""
    return HEADER + divide(hidden, HEADER) * HEADER


def _offset(element: Element) -> int:
    return 128 if element == U8 else 0


def packed_int8(weights: np.ndarray, gates: int, lanes: int, product: Product) -> np.ndarray:
    """Pack int8 weights (directions, gates x hidden, depth): [direction][panel][word][gate][part][lanes][elements]."""
    directions, rows, depth = weights.shape
    hidden, words = rows // gates, divide(depth, WORD)
    panels = divide(hidden, lanes)
    full = np.zeros((directions, gates, panels * lanes, words * WORD), np.int8)
    full[:, :, :hidden, :depth] = weights.reshape(directions, gates, hidden, depth)
    split = in_parts(full.reshape(directions, gates, panels, lanes, words, WORD), product)
    ordered = split.transpose(0, 2, 4, 1, 6, 3, 5)
    made = aligned(ordered.shape, product.packed.dtype)
    made[...] = ordered
    return made


def packed_numbers(
    weights: np.ndarray, scales: np.ndarray, points: np.ndarray, gates: int, lanes: int, product: Product
) -> np.ndarray:
    """Pack initial sums (int32), scales and zero points of weights (directions, gates x hidden), as NUMBERS rows:
    [direction][panel][row][gate][lanes]."""
    directions, rows, _ = weights.shape
    hidden, panels = rows // gates, divide(rows // gates, lanes)
    made = aligned((directions, panels, NUMBERS, gates, lanes), np.int32)
    made[...] = 0
    signs = np.maximum(weights, 0), np.minimum(weights, 0)
    first = -sum(
        (_offset(product.x) + added) * each.sum(-1, dtype=np.int32)
        for added, each in zip(product.added(product.x), signs, strict=True)
    )
    for at, values in enumerate((first, *(each.astype(np.float32).view(np.int32) for each in (scales, points)))):
        full = np.zeros((directions, gates, panels * lanes), np.int32)
        full[:, :, :hidden] = values.reshape(directions, gates, hidden)
        made[:, :, at] = full.reshape(directions, gates, panels, lanes).swapaxes(1, 2)
    return made.view(np.float32)


@dataclass(frozen=True)
class QuantizeStatesTile:
    """Tile of the kernel; `product`: dot-product instruction, a name in `product.TABLE`."""

    lanes: int
    product: str


@MicroKernel
def quantize_states(
    tile: QuantizeStatesTile, builder: ir.IRBuilder, h: Any, h_step: Any, depth: Any, rows: Any, y: Any, y_step: Any
) -> None:
    """Quantise rows of `depth` float32 at h to y + HEADER, and write the header at y.

    `h_step` and `y_step` are bytes between rows.
    """
    vec = Math(builder, tile.lanes)
    product = BY_NAME[tile.product]
    element = product.x
    whole, left = builder.udiv(depth, I64(vec.lanes)), builder.urem(depth, I64(vec.lanes))
    mask = first_lanes(vec, left)
    # zeros pad the last 32-bit group
    words = first_lanes(vec, builder.and_(builder.add(left, I64(WORD - 1)), I64(-WORD)))

    def across(fold: str, value: Any) -> Any:
        """Reduce all lanes; each lane has the result."""
        distance = vec.lanes // 2
        while distance:
            turned = vec.shuffle(value, value, [lane ^ distance for lane in range(vec.lanes)])
            value, distance = FOLDS[fold](vec, value, turned), distance // 2
        return value

    def row(index: Any) -> None:
        start = vec.offset(vec.pointer(h), builder.mul(index, h_step))
        target = vec.offset(vec.pointer(y), builder.mul(index, y_step))

        def at(number: Any, size: int) -> Any:
            return builder.mul(number, I64(size * vec.lanes))

        def larger(number: Any, values: list[Any]) -> list[Any]:
            return [FOLDS["max"](vec, values[0], vec.absolute(vec.load(vec.offset(start, at(number, 4)))))]

        (most,) = repeat(vec, I64(0), whole, [vec.constant(0.0)], larger)
        rest = vec.load_masked(vec.offset(start, at(whole, 4)), mask)
        most = across("max", FOLDS["max"](vec, most, vec.absolute(rest)))
        scale = builder.extract_element(vec.mul(most, vec.constant(1 / MOST)), I32(0))
        builder.store(scale, builder.bitcast(vec.offset(target, UNIT), F32.as_pointer()))
        positive = builder.fcmp_ordered(">", most, vec.constant(2.0**-120))
        factor = builder.select(positive, vec.div(vec.constant(MOST), most), vec.constant(0.0))

        def store(value: Any, number: Any, totals: Sequence[Any], mask: Any = None) -> list[Any]:
            rounded = vec.nearest_int(vec.mul(value, factor))
            place = vec.offset(target, builder.add(at(number, 1), I64(HEADER)))
            moved = builder.add(rounded, vec.int_constant(_offset(element)))
            store_int(vec, element, moved, place, mask, fits=True)
            numbers = builder.sitofp(rounded, vec.type)
            counted = [numbers, vec.maximum(vec.negative(numbers), vec.constant(0.0))]
            return [vec.add(total, each) for total, each in zip(totals, counted, strict=False)]

        def stored(number: Any, totals: list[Any]) -> list[Any]:
            return store(vec.load(vec.offset(start, at(number, 4))), number, totals)

        totals = repeat(vec, I64(0), whole, [vec.constant(0.0)] * (1 + product.compact), stored)
        totals = store(rest, whole, totals, words)
        total, *lacking = (builder.extract_element(across("sum", each), I32(0)) for each in totals)
        builder.store(total, builder.bitcast(vec.offset(target, SUM), F32.as_pointer()))
        for each in lacking:
            builder.store(builder.fptosi(each, I32), builder.bitcast(vec.offset(target, LACKING), I32.as_pointer()))

    loop(builder, 0, rows, row)


call_quantize_states = quantize_states.caller()


def quantize_states_numpy(h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise states (..., hidden) with NumPy: integers, and their scales."""
    most = np.abs(h.astype(np.float32)).max(-1, keepdims=True, initial=0)
    with np.errstate(divide="ignore"):
        factor = np.where(most > 2.0**-120, np.float32(MOST) / most, np.float32(0))
    return np.rint(h.astype(np.float32) * factor).astype(np.float64), most.astype(np.float64) / MOST
