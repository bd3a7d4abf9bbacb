"""Which register tiles are worth trying for an output plane: ranked by a model of the inner loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cpuconv.isa.table import Isa
from cpuconv.solvers.base import FLOAT, divide

MOST_ROWS = 7
_MOST_ROWS_A_COLUMN = 3  # taller tiles touch a page a row and use little of it: measured at half the speed
_COUNTS = 2  # numbers of pixels with one number of weight vectors
_LATENCY = 4  # cycles of an FMA
_STREAMED = 0.75  # share of the bandwidth of L2 that prefetched weights reach
_L1_WEIGHTS = 16 << 10  # bytes of a weight panel that stay in L1 beside the pixels
_LOOP_OVERHEAD = 6.0  # cycles a tile, beside its sums and stores
_LOADS_BESIDE = 0.05  # share of the loads that FMAs do not hide: larger tiles first


@dataclass(frozen=True)
class Tile:
    """v weight vectors × rows × cols pixels."""

    v: int
    rows: int
    cols: int


def fits(isa: Isa, v: int, n: int) -> bool:
    """Whether sums, weights and one broadcast stay in registers."""
    return v <= len(isa.pixels) and n <= isa.pixels[v - 1]


def segment(isa: Isa, channels: int) -> tuple[int, int]:
    """Scalars of a channel block, and of a last one that is not full (0: there is none)."""
    return min(channels, isa.lanes), channels % isa.lanes if channels > isa.lanes else 0


def streams(isa: Isa, v: int, reduction: int) -> bool:
    """Whether a panel of weights does not stay in L1 beside the pixels, so that every tile reads it from L2."""
    return v * isa.lanes * FLOAT * reduction > _L1_WEIGHTS


def cycles(isa: Isa, tile: Tile, reduction: int) -> float:
    """Modelled cycles of one tile over `reduction` scalars: whichever of FMA slots, load slots, latency and weights
    binds. A panel of weights that does not stay in L1 streams from L2 for every tile."""
    n = tile.rows * tile.cols
    loads = tile.v / isa.load_rate + n / isa.broadcast_rate
    stream = tile.v * isa.lanes * FLOAT / (_STREAMED * isa.l2_rate) if streams(isa, tile.v, reduction) else 0.0
    step = max(tile.v * n / isa.fma_rate, loads, _LATENCY, stream) + _LOADS_BESIDE * (loads + stream)
    efficiency = isa.efficiency[min(tile.v, len(isa.efficiency)) - 1]
    return step * reduction / efficiency + tile.v * n * isa.store_cost + _LOOP_OVERHEAD


def plane_cycles(isa: Isa, tile: Tile, vectors: int, height: int, width: int, reduction: int) -> float:
    """Modelled cycles of a whole output plane of `vectors` output vectors."""
    tiles = divide(vectors, tile.v) * divide(height, tile.rows) * divide(width, tile.cols)
    return tiles * cycles(isa, tile, reduction)


def tiles(isa: Isa, vectors: int, height: int, width: int, reduction: int, most: int) -> Iterator[Tile]:
    """The `most` best tiles for a plane, best first: a few numbers of weight vectors, and of pixels with each."""
    found = [
        Tile(v, rows, cols)
        for v in range(1, min(vectors, len(isa.pixels)) + 1)
        for rows in range(1, min(height, MOST_ROWS) + 1)
        for cols in range(1, min(width, isa.pixels[v - 1]) + 1)
        if fits(isa, v, rows * cols) and (rows <= _MOST_ROWS_A_COLUMN * cols or cols == width)
    ]
    found.sort(key=lambda tile: (plane_cycles(isa, tile, vectors, height, width, reduction), tile.rows, -tile.v))
    seen: dict[int, set[int]] = {}
    for tile in found:
        counts = seen.setdefault(tile.v, set())
        if most and len(counts) < _COUNTS and tile.rows * tile.cols not in counts:
            counts.add(tile.rows * tile.cols)
            most -= 1
            yield tile
