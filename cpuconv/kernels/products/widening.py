"""Widen rows of int8 or uint8, less their zero point, to int16, for instructions that take pairs of elements."""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import S16, Element
from cpuconv.isa.typed import I16, load_as_int, load_narrow, store_int
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.loop import loop
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class WidenTile:
    """Tile of the kernel; `x` is the element type, int8 or uint8."""

    lanes: int
    x: Element


@MicroKernel
def widen_rows(
    tile: WidenTile, builder: ir.IRBuilder, x: Any, x_step: Any, depth: Any, rows: Any, y: Any, y_step: Any, zero: Any
) -> None:
    """Write `rows` (at least one) rows of `depth` elements at x, less `zero`, to y as int16; zeros pad odd rows.

    `x_step` and `y_step` are bytes between rows.
    """
    vec, single = Vector(builder, tile.lanes), Vector(builder, 1)
    kind: Any = ir.VectorType(I16, tile.lanes)
    number = builder.trunc(zero, I32)
    point = builder.trunc(vec.splat(number), kind)
    whole = builder.udiv(depth, I64(vec.lanes))

    def row(index: Any) -> None:
        start = vec.offset(vec.pointer(x), builder.mul(index, x_step))
        target = vec.offset(vec.pointer(y), builder.mul(index, y_step))

        def places(at: Any) -> tuple[Any, Any]:
            return vec.offset(start, at), vec.offset(target, builder.mul(at, I64(S16.bytes)))

        def vector(turn: Any, _: list[Any]) -> list[Any]:
            source, goal = places(builder.mul(turn, I64(vec.lanes)))
            wide = (builder.zext if tile.x.dtype.kind == "u" else builder.sext)(load_narrow(vec, tile.x, source), kind)
            less = builder.sub(wide, point)
            builder.store(less, builder.bitcast(goal, kind.as_pointer())).align = S16.bytes
            return []

        def one(at: Any, _: list[Any]) -> list[Any]:
            source, goal = places(at)
            store_int(single, S16, builder.sub(load_as_int(single, tile.x, source), number), goal, fits=True)
            return []

        repeat(vec, I64(0), whole, [], vector)
        repeat(vec, builder.mul(whole, I64(vec.lanes)), depth, [], one)
        with builder.if_then(builder.trunc(depth, ir.IntType(1))):
            store_int(single, S16, I32(0), places(depth)[1], fits=True)

    loop(builder, 0, rows, row)


call_widen_rows = widen_rows.caller()
