"""Columns at the ends of a window that may be outside of the input: skipped, or read from a row of padding.

The columns are known only at run time, so that one micro-kernel serves all tiles of a row, and planes of any width.
Tiles inside of the input have their own code. Padding that is not zero cannot be skipped; its addresses are selected by
masks. With conditional moves, LLVM would load the rows of a column together, and sums would spill.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, Vector
from cpuconv.problem.problem import ConvProblem


@dataclass(frozen=True)
class Edges:
    """Numbers of columns at either end of a window that may be outside of the input.

    With `all_outside` they all are: the tile is the only one of its row.
    """

    left: int
    right: int
    all_outside: bool = False

    @classmethod
    def of(cls, problem: ConvProblem, cols: int, alone: bool = True) -> Edges:
        """Edges of tiles of `cols` outputs: no window reaches beyond the padding.

        Both sides are as wide as the wider padding: with a stride, one of them is narrower at some image sizes. With
        `alone`, a tile that is the only one of its row has edges that are all outside.
        """
        left, right = problem.pads[2:]
        if cols < problem.ow or not alone:
            return cls(max(left, right), max(left, right))
        reach = (cols - 1) * problem.stride[1] + problem.effective_kernel[1]
        return cls(min(left, reach), max(0, reach - left - problem.w), True)

    def inner_columns(self, wide: int) -> range:
        """Columns of a window that may be inside."""
        return range(self.left, wide - self.right) if self.all_outside else range(wide)


NO_EDGES = Edges(0, 0)
Sums = dict[tuple[int, int], Any]  # by row and column of a tile


@dataclass(frozen=True)
class Columns:
    """Addresses of a window's columns: for columns in `masks`, a row of padding (`zeros`) where the mask is 0."""

    vec: Vector
    zeros: Any
    masks: dict[int, Any]
    pixel: int  # bytes between columns

    def skip_outside(self, column: int, sums: Sums, add: Callable[[Sums], None]) -> Sums:
        """Emit `add`, which changes the sums of a column; skip it at run time where the column is outside."""
        builder, after = self.vec.builder, dict(sums)
        if column not in self.masks:
            add(after)
            return after
        entry = builder.block
        with builder.if_then(builder.icmp_unsigned("!=", self.masks[column], I64(0))):
            add(after)
            done = builder.block
        for key, value in after.items():
            if value is not sums[key]:
                after[key] = builder.phi(value.type)
                after[key].add_incoming(sums[key], entry)
                after[key].add_incoming(value, done)
        return after

    def address(self, start: Any, column: int) -> Any:
        """Address of a column in the window row at `start`."""
        vec, builder = self.vec, self.vec.builder
        place = vec.offset(start, column * self.pixel)
        if column not in self.masks:
            return place
        apart = builder.sub(builder.ptrtoint(place, I64), builder.ptrtoint(self.zeros, I64))
        return vec.offset(self.zeros, builder.and_(apart, self.masks[column]))


def emit_edge_and_inner(
    edges: Edges,
    vec: Vector,
    position: Any,
    width: Any,
    wide: int,
    zeros: Any,
    emit: Callable[[Columns], None],
    pixel: int = 0,
) -> None:
    """Emit a tile's code, made by `emit`, twice: for windows that reach beyond the input, and for windows inside.

    Parameters
    ----------
    position, width
        Index of the window's first column in the input, and columns of the input.
    wide
        Columns of the window.
    zeros
        Address of a row of padding.
    pixel
        Bytes between columns; 0: those of a vector.
    """
    builder, pixel = vec.builder, pixel or vec.size
    outer = [column for column in range(wide) if column not in range(edges.left, wide - edges.right)]
    if edges.all_outside or not outer:
        emit(Columns(vec, zeros, dict.fromkeys(outer, I64(0)), pixel))
        return
    fits = builder.icmp_unsigned("<=", position, builder.sub(width, I64(wide)))
    fits = builder.and_(fits, builder.icmp_signed(">=", width, I64(wide)))
    with builder.if_else(fits, likely=True) as (inside, beyond):
        with inside:
            emit(Columns(vec, zeros, {}, pixel))
        with beyond:
            exist = {at: builder.icmp_unsigned("<", builder.add(position, I64(at)), width) for at in outer}
            masks = {at: vec.opaque(builder.sext(each, I64)) for at, each in exist.items()}
            emit(Columns(vec, zeros, masks, pixel))
