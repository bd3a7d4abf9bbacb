"""Loop state of a GEMM tile over the segments of its reduction, and its prefetches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, L1, L2, Vector
from cpuconv.kernels.products.gemm_tile import LINE, GemmTile
from cpuconv.problem.integers import divide

_AHEAD = 2048  # bytes of weights between prefetch and use
_ROWS_AHEAD = 8  # scalars between prefetch and use, where they are `kstep` apart


@dataclass(frozen=True)
class TileOperands:
    """Operands that a tile reads: pixel 0, offsets of the other rows and the columns, the next tile, the segments."""

    x: Any
    row_offsets: list[Any]
    columns: list[Any]
    tile_step: Any
    fetch_step: Any  # bytes between the prefetch addresses of two scalars
    table: Any
    segments: Any
    kstep: Any
    valid: Any
    sums: Any = None  # memory of float32 sums, where those in registers are float16


@dataclass(frozen=True)
class State:
    """Loop-carried values: address of the weights, address to prefetch, and the sums by pixel."""

    w: Any
    fetch: Any
    sums: list[Any]


def either(vec: Vector, condition: Any, yes: Callable[[], State], no: Callable[[], State]) -> State:
    """Emit both branches through a segment and merge their states."""
    builder = vec.builder
    found = []
    with builder.if_else(condition) as branches:
        for branch, way in zip(branches, (yes, no), strict=True):
            with branch:
                state = way()
                found.append(((state.w, state.fetch, *state.sums), builder.block))
    merged = []
    for values in zip(*(values for values, _ in found), strict=True):
        phi = builder.phi(values[0].type)
        for value, (_, block) in zip(values, found, strict=True):
            phi.add_incoming(value, block)
        merged.append(phi)
    w, fetch, *sums = merged
    return State(w, fetch, sums)


def lines_ahead(tile: GemmTile, vec: Vector, operands: TileOperands, unroll: int, following: Any) -> list[Any]:
    """Addresses of the cache lines of segment `following`; past the last, of the next tile's first segment."""
    if tile.ks == 0 or tile.packed:
        return []
    builder = vec.builder
    inside = builder.icmp_signed("<", following, operands.segments)
    entry = builder.load(builder.gep(operands.table, [builder.select(inside, following, I64(0))]))
    step = builder.select(inside, I64(0), operands.tile_step)
    start = vec.offset(operands.x, builder.add(entry, step))
    last = 4 * ((tile.cols - 1) * tile.xs + (unroll - 1) * tile.ks)
    offsets = range(0, last + 1, max(LINE, 4 * tile.xs))
    apart = operands.row_offsets if tile.xs else operands.columns[1:]
    rows = (start, *(vec.offset(start, offset) for offset in apart))
    return [vec.offset(row, offset) for row in rows for offset in offsets]


def prefetch(
    tile: GemmTile, vec: Vector, operands: TileOperands, k: int, starts: list[Any], ahead: list[Any], w: Any, fetch: Any
) -> Any:
    """Prefetch for scalar k of a segment whose weights are at `w`; return `fetch` of the next scalar."""
    builder = vec.builder
    wanted = [(address, L1) for address in ahead]
    if tile.ks == 0:
        far = builder.mul(operands.kstep, I64(_ROWS_AHEAD))
        wanted += [(vec.offset(start, far), L1) for start in starts]
    if tile.stream:
        size = tile.vectors * vec.size
        lines = range(divide(k * size, LINE), divide((k + 1) * size, LINE))  # that begin within its weights
        wanted += [(vec.offset(w, LINE * at + _AHEAD), L1) for at in lines]
    if tile.fetch:
        wanted += [(vec.offset(fetch, j * LINE), L2) for j in range(tile.fetch)]
        fetch = vec.offset(fetch, operands.fetch_step)
    for address, level in wanted:
        vec.prefetch(address, level)
    return fetch
