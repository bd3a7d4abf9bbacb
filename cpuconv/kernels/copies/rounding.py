"""Round rows of float32 to bfloat16, for dot-product instructions that take pairs of them, or copy bfloat16."""

from __future__ import annotations

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
    whole, left = builder.udiv(depth, I64(vec.lanes)), builder.urem(depth, I64(vec.lanes))

    def row(index: Any) -> None:
        start = vec.offset(vec.pointer(x), builder.mul(index, x_step))
        target = vec.offset(vec.pointer(y), builder.mul(index, y_step))

        def places(number: Any) -> tuple[Any, Any]:
            source, goal = (builder.mul(number, I64(vec.lanes * element.bytes)) for element in (tile.x, BF16))
            return vec.offset(start, source), vec.offset(target, goal)

        def moved(number: Any, mask: Any = None) -> None:
            source, goal = places(number)
            value = load_narrow(vec, tile.x, source, mask)
            if tile.x == BF16:
                store_narrow(vec, BF16, value, goal)
            else:
                store_float(vec, BF16, value, goal)

        def vector(number: Any, _: list[Any]) -> list[Any]:
            moved(number)
            return []

        repeat(vec, I64(0), whole, [], vector)
        with builder.if_then(builder.icmp_signed("!=", left, I64(0))):
            moved(whole, first_lanes(vec, left))

    loop(builder, 0, rows, row)


call_round_rows = round_rows.caller()
