"""Round rows of float32 to bfloat16, for dot-product instructions that take pairs, or split them; copy bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32, Element
from cpuconv.isa.typed import load_narrow, store_float, store_narrow
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.product import WORD
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.problem.types import Types
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

PAIR = WORD // BF16.bytes  # elements per 32-bit group
BF16_TYPES = Types(BF16, BF16, F32, F32)


@dataclass(frozen=True)
class RoundTile:
    """Tile of the rounding kernel: the vector width, and the type of the rows, float32 or bfloat16."""

    lanes: int
    x: Element = F32


@MicroKernel
def round_rows(
    tile: RoundTile, builder: ir.IRBuilder, x: Any, x_step: Any, depth: Any, rows: Any, y: Any, y_step: Any
) -> None:
    """Round `rows` (at least one) rows of `depth` elements at x to bfloat16 at y, padded with zeros to whole vectors.

    `x_step` and `y_step` are bytes between rows.
    """
    vec = Vector(builder, tile.lanes)

    def moved(source: Any, target: Any, mask: Any = None) -> None:
        value = load_narrow(vec, tile.x, source, mask)
        if tile.x == BF16:
            store_narrow(vec, BF16, value, target)
        else:
            store_float(vec, BF16, value, target)

    _move_rows(vec, tile.x, x, x_step, depth, rows, y, y_step, moved)


def _move_rows(
    vec: Vector, element: Element, x: Any, x_step: Any, depth: Any, rows: Any, y: Any, y_step: Any,
    moved: Callable[..., None],
) -> None:  # fmt: skip
    """Call `moved(source, target)` for each vector of rows of `element`, and with a mask for a last partial one."""
    builder = vec.builder
    whole, left = builder.udiv(depth, I64(vec.lanes)), builder.urem(depth, I64(vec.lanes))

    def row(index: Any) -> None:
        start = vec.offset(vec.pointer(x), builder.mul(index, x_step))
        target = vec.offset(vec.pointer(y), builder.mul(index, y_step))

        def places(number: Any) -> tuple[Any, Any]:
            source, goal = (builder.mul(number, I64(vec.lanes * each.bytes)) for each in (element, BF16))
            return vec.offset(start, source), vec.offset(target, goal)

        def vector(number: Any, _: list[Any]) -> list[Any]:
            moved(*places(number))
            return []

        repeat(vec, I64(0), whole, [], vector)
        with builder.if_then(builder.icmp_signed("!=", left, I64(0))):
            mask = first_lanes(vec, left)
            moved(*places(whole), mask)

    loop(builder, 0, rows, row)


call_round_rows = round_rows.caller()


@dataclass(frozen=True)
class SplitTile:
    """Tile of the splitting kernel: the vector width, and the bfloat16 parts of a float32."""

    lanes: int
    parts: int


@MicroKernel
def split_rows(
    tile: SplitTile,
    builder: ir.IRBuilder,
    x: Any,
    x_step: Any,
    depth: Any,
    rows: Any,
    y: Any,
    y_step: Any,
    part_step: Any,
) -> None:
    """Split rows of float32, as `round_rows` rounds them, into bfloat16 parts that are `part_step` bytes apart.

    The parts are those of `elements.split_to_bfloat16`.
    """
    vec = Vector(builder, tile.lanes)

    def moved(source: Any, target: Any, mask: Any = None) -> None:
        for part, value in enumerate(split(vec, load_narrow(vec, F32, source, mask), tile.parts)):
            store_narrow(vec, BF16, value, vec.offset(target, builder.mul(part_step, I64(part))))

    _move_rows(vec, F32, x, x_step, depth, rows, y, y_step, moved)


call_split_rows = split_rows.caller()


def split(vec: Vector, value: Any, count: int) -> list[Any]:
    """Split float32 lanes into `count` bfloat16, whose bits are 16-bit integers."""
    builder, found = vec.builder, []
    infinite, upper, half = (vec.int_constant(bits) for bits in (0x7F800000, -0x10000, 16))
    finite = builder.fcmp_ordered("<", vec.absolute(value), builder.bitcast(infinite, vec.type))
    rest = builder.select(finite, value, vec.constant(0.0))
    for part in range(count):
        bits = builder.bitcast(rest, vec.int_type)
        odd = builder.and_(builder.lshr(bits, half), vec.int_constant(1))
        near = builder.and_(builder.add(builder.add(bits, vec.int_constant(0x7FFF)), odd), upper)
        overflows = builder.icmp_signed("==", builder.and_(near, infinite), infinite)
        near = builder.select(overflows, builder.and_(bits, upper), near)
        rest = vec.sub(rest, builder.bitcast(near, vec.type))
        if part == count - 1:  # the sum is an infinity, or a NaN with its quiet bit
            near = builder.select(finite, near, builder.bitcast(vec.add(value, value), vec.int_type))
        found.append(builder.trunc(builder.lshr(near, half), ir.VectorType(ir.IntType(16), vec.lanes)))
    return found
