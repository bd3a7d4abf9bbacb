"""Scores of few queries: keys are read in place, once, and the lanes of their products are folded.

A key's elements are contiguous, and lanes of a GEMM tile are keys, so packing transposes them; that takes as long as
multiplying some twenty queries. Here lanes are elements, and as many keys as a vector has lanes are folded together.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.fold import fold_lanes, repeat
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.transpose import first_lanes, present_rows
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class DotsTile:
    """Tile of `multiply_keys`: the vector width, also the number of keys that are folded together."""

    lanes: int


@MicroKernel
def multiply_keys(
    tile: DotsTile,
    builder: ir.IRBuilder,
    q: Any,
    q_row: Any,
    rows: Any,
    k: Any,
    k_column: Any,
    keys: Any,
    depth: Any,
    y: Any,
    y_row: Any,
) -> None:
    """y = q k for `rows` >= 1 contiguous queries, `q_row` bytes apart, and `keys` contiguous keys, `k_column` apart.

    Rows of y are written to the end of a vector.
    """
    vec = Vector(builder, tile.lanes)
    q, k, y = (vec.pointer(each) for each in (q, k, y))
    whole = builder.udiv(builder.sub(depth, I64(1)), I64(vec.lanes))  # the last vector has 1 … lanes elements
    inside = first_lanes(vec, builder.sub(depth, builder.mul(whole, I64(vec.lanes))))

    def block(number: Any) -> None:
        first = builder.mul(number, I64(vec.lanes))
        row = present_rows(vec, vec.offset(k, builder.mul(first, k_column)), k_column, builder.sub(keys, first))
        places = [row(at) for at in range(vec.lanes)]

        def one(index: Any) -> None:
            query = vec.offset(q, builder.mul(index, q_row))

            def add(at: Any, values: list[Any], mask: Any = None) -> list[Any]:
                offset = builder.mul(at, I64(vec.size))
                loaded = [vec.offset(place, offset) for place in (query, *places)]
                x, *key = (vec.load(each) if mask is None else vec.load_masked(each, mask) for each in loaded)
                return [vec.fma(x, each, value) for each, value in zip(key, values, strict=True)]

            values = add(whole, repeat(vec, I64(0), whole, [vec.constant(0.0)] * vec.lanes, add), inside)
            target = vec.offset(y, builder.add(builder.mul(index, y_row), builder.mul(first, I64(F32.bytes))))
            vec.store(fold_lanes(vec, Vector.add, values), target)

        loop(builder, 0, rows, one)

    loop(builder, 0, builder.udiv(builder.add(keys, I64(vec.lanes - 1)), I64(vec.lanes)), block)


call_multiply_keys = multiply_keys.caller()
