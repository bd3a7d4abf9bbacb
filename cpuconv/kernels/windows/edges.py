"""Columns at the ends of a window that may lie outside the input: left out, or read from a row of padding.

Which they are is known at run time only, so that one micro-kernel serves the tiles at both ends of a row, those between
and planes of any width. Tiles that lie inside have code of their own. Padding that is not zero cannot be left out; its
addresses are chosen by masks: by conditional moves, LLVM loads the rows of a column together, and sums spill.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.isa.vector import I64, Vector
from cpuconv.problem.problem import ConvProblem


@dataclass(frozen=True)
class Edges:
    """So many columns at either end of a window may lie outside the input.

    With `known` they all do: the tile is the only one of its row.
    """

    left: int
    right: int
    known: bool = False

    @classmethod
    def of(cls, problem: ConvProblem, cols: int, alone: bool = True) -> Edges:
        """Those of tiles of `cols` outputs: no window reaches farther than the padding.

        Both are as the wider padding, as one of them is narrower at some sizes of a stride's images. With `alone` a
        tile that is the only one of its row has edges that are known.
        """
        left, right = problem.pads[2:]
        if cols < problem.ow or not alone:
            return cls(max(left, right), max(left, right))
        reach = (cols - 1) * problem.stride[1] + problem.effective_kernel[1]
        return cls(min(left, reach), max(0, reach - left - problem.w), True)

    def met(self, wide: int) -> range:
        """Columns of a window that may lie inside."""
        return range(self.left, wide - self.right) if self.known else range(wide)


NO_EDGES = Edges(0, 0)
Sums = dict[tuple[int, int], Any]  # by row and column of a tile


@dataclass(frozen=True)
class Columns:
    """Where the columns of a window are read: those of `masks` in a row of padding, an address, where the mask is 0."""

    vec: Vector
    zeros: Any
    masks: dict[int, Any]

    def where_met(self, column: int, sums: Sums, add: Callable[[Sums], None]) -> Sums:
        """The sums after `add`, which changes those that a column meets; as they are where it lies outside."""
        builder, after = self.vec.builder, dict(sums)
        if column not in self.masks:
            add(after)
            return after
        entry = builder.block
        with builder.if_then(builder.icmp_unsigned("!=", self.masks[column], I64(0))):
            add(after)
            met = builder.block
        for key, value in after.items():
            if value is not sums[key]:
                after[key] = builder.phi(value.type)
                after[key].add_incoming(sums[key], entry)
                after[key].add_incoming(value, met)
        return after

    def address(self, start: Any, column: int) -> Any:
        """That of a column in the row of the window at `start`."""
        vec, builder = self.vec, self.vec.builder
        place = vec.offset(start, column * vec.size)
        if column not in self.masks:
            return place
        apart = builder.sub(builder.ptrtoint(place, I64), builder.ptrtoint(self.zeros, I64))
        return vec.offset(self.zeros, builder.and_(apart, self.masks[column]))


def either(
    edges: Edges, vec: Vector, position: Any, width: Any, wide: int, zeros: Any, emit: Callable[[Columns], None]
) -> None:
    """The code of a tile, which `emit` makes: for one whose window reaches beyond the input, and for one inside.

    Parameters
    ----------
    position, width
        Number of the window's first column in the input, and columns of the input.
    wide
        Columns of the window.
    zeros
        Address of a row of padding.
    """
    builder = vec.builder
    outer = [column for column in range(wide) if column not in range(edges.left, wide - edges.right)]
    if edges.known or not outer:
        emit(Columns(vec, zeros, dict.fromkeys(outer, I64(0))))
        return
    fits = builder.icmp_unsigned("<=", position, builder.sub(width, I64(wide)))
    fits = builder.and_(fits, builder.icmp_signed(">=", width, I64(wide)))
    with builder.if_else(fits, likely=True) as (inside, beyond):
        with inside:
            emit(Columns(vec, zeros, {}))
        with beyond:
            exist = {at: builder.icmp_unsigned("<", builder.add(position, I64(at)), width) for at in outer}
            emit(Columns(vec, zeros, {at: vec.opaque(builder.sext(each, I64)) for at, each in exist.items()}))
