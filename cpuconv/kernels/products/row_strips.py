"""Strips of rows of a GEMM whose lanes are columns: their selection, their arguments, and their call in drivers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.columns import Columns
from cpuconv.kernels.binding.steps import Args, MicroRef, OneOf
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.products import tiling
from cpuconv.kernels.products.closed.closed_set import row_columns
from cpuconv.kernels.products.gemm import call_gemm_strip, gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.problem.integers import divide
from cpuconv.runtime.code import at_hand, background
from cpuconv.runtime.kernel import inline
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import applied, is_symbolic, now

_UNROLLS = range(8, 4, -1)  # elements of a segment of the reduction; the remainder is summed one by one
_LONG = 64  # length of a reduction from which its remainder is negligible
_SEGMENT_CYCLES, _SINGLE_CYCLES = 3, 5  # overhead of a segment, and of a single element


def _cycles(isa: Isa, v: int, n: int, rows: int, depth: int, columns: int) -> float:
    panels = divide(columns, v * isa.lanes)
    last = divide(columns - (panels - 1) * v * isa.lanes, isa.lanes)
    panel_cycles = (panels - 1) * tiling.cycles(isa, v, n, depth) + tiling.cycles(isa, last, n, depth)
    return divide(rows, n) * panel_cycles


def best_tile(isa: Isa, rows: int, depth: int, columns: int) -> tuple[float, int, int]:
    """Modelled cycles of the best tile, its vectors of columns, and its rows."""
    widest = min(len(isa.pixels), divide(columns, isa.lanes))
    tiles = [(v, n) for v in range(1, widest + 1) for n in _heights(isa, v, rows)]
    return min((_cycles(isa, v, n, rows, depth, columns), v, n) for v, n in tiles)


def _heights(isa: Isa, v: int, rows: int) -> list[int]:
    """Candidate heights of tiles with `v` vectors: equal shares of the rows, or all of the closed set."""
    if isa.closed:
        return [n for n in tiling.closed_columns(isa, v) if n <= rows]
    return [divide(rows, divide(rows, isa.pixels[v - 1]))]


def _unroll(depth: int) -> int:
    """Elements of a segment of the reduction: one of a few values, so that GEMMs of all sizes share micro-kernels."""
    cycles = {each: depth // each * _SEGMENT_CYCLES + depth % each * _SINGLE_CYCLES for each in _UNROLLS}
    return min(cycles, key=cycles.__getitem__) if depth < _LONG else _UNROLLS[0]


def segment_starts(unroll: int, depth: int, step: int) -> np.ndarray:
    """Byte offsets of the segments of a reduction: `unroll` elements each, then one each for the remainder."""
    whole = depth // unroll * unroll
    return np.concatenate((np.arange(0, whole, unroll), np.arange(whole, depth))).astype(np.int64) * step


@dataclass(frozen=True)
class _Sizes:
    """A left matrix (rows, depth) with byte strides of rows and columns, the columns of the right one, and the kind of
    the products; depth is in 32-bit groups.
    """

    rows: int
    depth: int
    columns: int
    row: int
    column: int
    product: str

    @property
    def now(self) -> list[int]:
        """Current rows, depth and columns."""
        return [now(size) for size in (self.rows, self.depth, self.columns)]


def _strips(isa: Isa, sizes: _Sizes) -> Iterator[tuple[GemmTile, GemmTile]]:
    """Strips for all panels and for the last one: the best by the model, then others, the fastest first.

    All add in the same order."""
    rows, depth, columns = sizes.now
    unroll = _unroll(depth) if sizes.column else 1  # to the tile, a step of 0 means a run-time stride
    _, v, n = best_tile(isa, rows, depth, columns)
    yield _strip(isa, sizes, v, n, unroll)
    counts = range(1, min(len(isa.pixels), divide(columns, isa.lanes)) + 1)
    tiles = [(v, n) for v in counts for n in range(1, min(rows, isa.pixels[v - 1]) + 1)]
    tiles.sort(key=lambda tile: _cycles(isa, tile[0], tile[1], rows, depth, columns))
    for v, n in tiles:
        for each in _UNROLLS if unroll > 1 else (1,):
            yield _strip(isa, sizes, v, n, each)


def _strip_at_hand(isa: Isa, sizes: _Sizes) -> tuple[GemmTile, GemmTile]:
    """The first of `_strips`; where kernels at hand are preferred, the first that is at hand. The best is then compiled
    in the background, if it is clearly faster."""

    def kernels(both: tuple[GemmTile, GemmTile]) -> list[tuple[MicroKernel, GemmTile]]:
        return [(gemm_strip, each) for each in both]

    best = next(_strips(isa, sizes))
    if isa.closed:
        return best
    found = at_hand.first(_strips(isa, sizes), kernels)
    if found != best:
        least, own = best_tile(isa, *sizes.now)[0], _cycles(isa, found[0].v, found[0].cols, *sizes.now)
        if own > (1 + background.MIN_SAVING) * least:
            background.request(at_hand.missing(kernels(best)))
    return found


def _strip(isa: Isa, sizes: _Sizes, v: int, n: int, unroll: int) -> tuple[GemmTile, GemmTile]:
    step, tail = sizes.column // F32.bytes or 1, int(unroll > 1)
    gemm = GemmTile(
        isa.lanes, v, 1, n, unroll, 0, 0, step, planar=True, has_epilogue=False, tail=tail, product=sizes.product,
        x=BY_NAME[sizes.product].x,
    )  # fmt: skip
    rest = last_columns(sizes.columns, v * isa.lanes)
    if is_symbolic(rest):
        return gemm, replace(gemm, masked=True)
    last = replace(_narrower(gemm, divide(rest, isa.lanes)), masked=rest % isa.lanes > 0)
    return (gemm if sizes.columns > rest else last), last


def _narrower(tile: GemmTile, v: int) -> GemmTile:
    """The tile for `v` of the vectors of a panel, which are read in place or packed with the others."""
    return replace(tile, unused_vectors=tile.v - v) if tile.packed else replace(tile, v=v)


def last_columns(columns: Any, panel: int) -> Any:
    """Columns of the last panel."""
    return columns - (divide(columns, panel) - 1) * panel


def _last(last: GemmTile, rest: Any, rows: Columns) -> MicroRef | OneOf:
    """The micro-kernel of a last panel of `rest` columns."""

    def strip(tile: GemmTile, count: int) -> MicroRef:
        return MicroRef(gemm_strip, replace(tile, cols=count))

    if not is_symbolic(rest):
        return rows.ref(functools.partial(strip, last))
    refs = [strip(_narrower(last, v), count) for count in rows.options for v in range(1, last.v + 1)]
    return OneOf(tuple(refs), rows.index * last.v + divide(rest, last.lanes) - 1)


@dataclass(frozen=True)
class RowStrips:
    """GEMM strips of rows of a left matrix by panels of a right one, and their arguments.

    Attributes
    ----------
    v : int
        Vectors of columns per panel.
    unroll : int
        Elements of a segment of the reduction.
    tiles : int
        Tiles of rows.
    args : Args
        `gemm` and `gemm_last` (for the last panel), the table of segments, and `a_tile` and `a_overlap`: bytes between
        tiles of rows, and from where the last one would begin to where it begins.
    """

    v: int
    unroll: int
    tiles: int
    args: Args


def row_strips(isa: Isa, rows: int, depth: int, columns: int, row: int, column: int, product: str = "fma") -> RowStrips:
    """Select the strips for a left matrix (rows, depth) with byte strides `row` and `column`.

    `depth` and `column` are in elements, or in 32-bit groups of the `product`'s narrower elements; `isa` is the
    instruction set as it sees the product (`as_seen`).

    Raises
    ------
    ValueError
        A tile would have more rows than there are.
    """
    sizes = _Sizes(rows, depth, columns, row, column, product)
    gemm, last = _strip_at_hand(isa, sizes)
    v, unroll = gemm.v, gemm.unroll
    options = row_columns(isa, isa, gemm, last, rows)  # rows of a tile are the columns of its strip
    n = options.taken
    if rows < min(options.options):
        raise ValueError("tiles of more rows than there are")
    tiles, panels, rest = divide(rows, n), divide(columns, v * isa.lanes), last_columns(columns, v * isa.lanes)
    args: Args = {
        "gemm": (
            options.ref(lambda count: MicroRef(gemm_strip, replace(gemm, cols=count)))
            if is_symbolic(panels) or panels > 1
            else 0
        ),
        "gemm_last": _last(last, rest, options),
        "tiles": tiles,
        "whole_tiles": rows // n,
        "table": applied(functools.partial(segment_starts, unroll), depth, column),
        "segments": depth // unroll + depth % unroll,
        "tails": depth % unroll,
        "valid": (rest - 1) % isa.lanes + 1 if is_symbolic(rest) else rest % isa.lanes,
        "a_tile": n * row,
        "a_overlap": (rows - n - (tiles - 1) * n) * row,
    }
    return RowStrips(v, unroll, tiles, args)


@inline
def multiply_rows(
    strip, x, x_tile, x_overlap, table, segments, tails, pitch, w, y, y_row, y_vector, bias, valid, rows, begin, end,
    whole,
):  # fmt: skip
    """Call a strip of planar tiles for tiles of rows begin … end-1, of which the first `whole` do not overlap.

    The last tile of rows overlaps the one before where rows are no multiple of a tile; it reads `x_overlap` bytes from
    where it would begin.
    """
    for overlapping in range(2):
        first = begin if overlapping == 0 else max(begin, whole)
        last = min(end, whole) if overlapping == 0 else end
        if first < last:
            call_gemm_strip(
                strip,
                x=x + overlapping * x_overlap,
                xrow=x_tile,
                table=table,
                segments=segments,
                kstep=pitch,
                w=w,
                y=y,
                yrow=y_row,
                yvec=y_vector,
                bias=bias,
                residual=0,
                suspended_sums=y,
                prefetch_address=y,
                turn=0,
                fetch_step=0,
                shares=1,
                tails=tails,
                valid=valid,
                first=first,
                last=last,
                width=rows,
            )
