"""Round rows of float32 to bfloat16, for dot-product instructions that take pairs; split them, join parts, copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32, Element
from cpuconv.isa.typed import load_as_float, load_narrow, split_to_bfloat16, store_float, store_narrow
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
PART_CYCLES = 2.5  # to split a vector, for each part: instructions counted, two a cycle; not measured


@dataclass(frozen=True)
class RoundTile:
    """Tile of the rounding kernel: the vector width, and the types of the rows, float32, bfloat16 or bfloat16 parts."""

    lanes: int
    x: Element = F32
    y: Element = BF16


@MicroKernel
def round_rows(
    tile: RoundTile, builder: ir.IRBuilder, x: Any, x_step: Any, depth: Any, rows: Any, y: Any, y_step: Any
) -> None:
    """Round `rows` (at least one) rows of `depth` elements at x to those at y, padded with zeros to whole vectors.

    `x_step` and `y_step` are bytes between rows. Rows in parts are of one vector.
    """
    vec = Vector(builder, tile.lanes)

    def moved(source: Any, target: Any, mask: Any = None) -> None:
        if tile.x == BF16:
            store_narrow(vec, BF16, load_narrow(vec, BF16, source, mask), target)
        else:
            store_float(vec, tile.y, load_as_float(vec, tile.x, source, mask), target)

    _move_rows(vec, (tile.x, tile.y), x, x_step, depth, rows, y, y_step, moved)


def _move_rows(
    vec: Vector, types: tuple[Element, Element], x: Any, x_step: Any, depth: Any, rows: Any, y: Any, y_step: Any,
    moved: Callable[..., None],
) -> None:  # fmt: skip
    """Call `moved(source, target)` for each vector of rows of these types, and with a mask for a last partial one."""
    builder = vec.builder
    whole, left = builder.udiv(depth, I64(vec.lanes)), builder.urem(depth, I64(vec.lanes))

    def row(index: Any) -> None:
        start = vec.offset(vec.pointer(x), builder.mul(index, x_step))
        target = vec.offset(vec.pointer(y), builder.mul(index, y_step))

        def places(number: Any) -> tuple[Any, Any]:
            source, goal = (builder.mul(number, I64(vec.lanes * each.part_bytes)) for each in types)
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
    """Split rows of float32, as `round_rows` rounds them, into bfloat16 parts that are `part_step` bytes apart."""
    vec = Vector(builder, tile.lanes)

    def moved(source: Any, target: Any, mask: Any = None) -> None:
        for part, value in enumerate(split_to_bfloat16(vec, load_narrow(vec, F32, source, mask), tile.parts)):
            store_narrow(vec, BF16, value, vec.offset(target, builder.mul(part_step, I64(part))))

    _move_rows(vec, (F32, BF16), x, x_step, depth, rows, y, y_step, moved)


call_split_rows = split_rows.caller()
