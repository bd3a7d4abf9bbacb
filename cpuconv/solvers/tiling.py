"""Which register tiles are worth trying for an output plane: ranked by a model of the inner loop."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
_REMEMBERED = 4096  # answers: the layouts of one problem, and several solvers, ask for the same


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


def _step(isa: Isa, v: int, n: int, streamed: bool) -> float:
    """Modelled cycles of one scalar of the reduction: whichever of FMA slots, load slots, latency and weights binds."""
    loads = v / isa.load_rate + n / isa.broadcast_rate
    stream = v * isa.lanes * FLOAT / (_STREAMED * isa.l2_rate) if streamed else 0.0
    return max(v * n / isa.fma_rate, loads, _LATENCY, stream) + _LOADS_BESIDE * (loads + stream)


def _efficiency(isa: Isa, v: int) -> float:
    return isa.efficiency[min(v, len(isa.efficiency)) - 1]


def cycles(isa: Isa, v: int, n: int, reduction: int) -> float:
    """Modelled cycles of one tile of v weight vectors and n pixels over `reduction` scalars. A panel of weights that
    does not stay in L1 streams from L2 for every tile."""
    step = _step(isa, v, n, streams(isa, v, reduction))
    return step * reduction / _efficiency(isa, v) + v * n * isa.store_cost + _LOOP_OVERHEAD


def complex_cycles(isa: Isa, v: int, n: int, reduction: int) -> float:
    """Modelled cycles of a complex tile: the FMAs and loads of a real one twice as high and wide, half its sums."""
    return cycles(isa, 2 * v, 2 * n, reduction) - 2 * v * n * isa.store_cost


def pixel_cycles(isa: Isa, reduction: int) -> float:
    """Cycles that no tile is below, for one of its vectors of outputs."""
    return reduction / (isa.fma_rate * max(isa.efficiency)) + isa.store_cost


def plane_cycles(isa: Isa, tile: Tile, vectors: int, height: int, width: int, reduction: int) -> float:
    """Modelled cycles of a whole output plane of `vectors` output vectors."""
    count = divide(vectors, tile.v) * divide(height, tile.rows) * divide(width, tile.cols)
    return count * cycles(isa, tile.v, tile.rows * tile.cols, reduction)


class _Table:
    """Tiles, and as arrays what `cycles` is made of, so that a plane costs one sum for all of them."""

    def __init__(self, isa: Isa, tiles: Sequence[Tile], scale: int = 1) -> None:
        """`scale`: how much higher and wider than the tile the real one is whose FMAs and loads count."""
        self.tiles = tiles
        self.v, self.rows, self.cols = np.array([(tile.v, tile.rows, tile.cols) for tile in tiles]).T.copy()
        self.order = -self.v, self.rows  # of equals, fewer rows first, then more weight vectors
        wide = [(scale * tile.v, scale * tile.rows * tile.cols) for tile in tiles]
        self._wide = np.array([v for v, _ in wide])
        self._steps = [np.array([_step(isa, v, n, streamed) for v, n in wide]) for streamed in (False, True)]
        self._efficiency = np.array([_efficiency(isa, v) for v, _ in wide])
        self._stores = np.array([v * n * isa.store_cost for v, n in wide])
        self._halved = scale > 1

    def cycles(self, isa: Isa, reduction: int) -> np.ndarray:
        """`cycles` of every tile, or `complex_cycles`."""
        step = np.where(streams(isa, self._wide, reduction), self._steps[1], self._steps[0])
        found = step * reduction / self._efficiency + self._stores + _LOOP_OVERHEAD
        return found - self._stores / 2 if self._halved else found

    def best(
        self, isa: Isa, vectors: int, height: int, width: int, reduction: int, most: int, alike: int
    ) -> tuple[Tile, ...]:
        """The `most` best tiles for a plane, best first: `alike` numbers of pixels with one number of vectors."""
        count = (-vectors // self.v) * (-height // self.rows) * (-width // self.cols)  # all negative: rounded up
        ranked = np.lexsort((*self.order, -count * self.cycles(isa, reduction)))
        found: list[Tile] = []
        seen: dict[int, set[int]] = {}
        for index in ranked.tolist():
            tile = self.tiles[index]
            counts = seen.setdefault(tile.v, set())
            if len(counts) < alike and tile.rows * tile.cols not in counts:
                counts.add(tile.rows * tile.cols)
                found.append(tile)
                if len(found) == most:
                    break
        return tuple(found)


@functools.lru_cache(maxsize=_REMEMBERED)
def _real(isa: Isa, vectors: int, height: int, width: int) -> _Table:
    """The tiles that a plane can have: all that differ from those of larger planes."""
    return _Table(
        isa,
        [
            Tile(v, rows, cols)
            for v in range(1, min(vectors, len(isa.pixels)) + 1)
            for rows in range(1, min(height, MOST_ROWS) + 1)
            for cols in range(1, min(width, isa.pixels[v - 1]) + 1)
            if fits(isa, v, rows * cols) and (rows <= _MOST_ROWS_A_COLUMN * cols or cols == width)
        ],
    )


@functools.lru_cache(maxsize=_REMEMBERED)
def _complex(isa: Isa, vectors: int, width: int) -> _Table:
    most = enumerate(isa.pairs, 1)
    return _Table(isa, [Tile(v, 1, n) for v, least in most if v <= vectors for n in range(1, min(least, width) + 1)], 2)


@functools.lru_cache(maxsize=_REMEMBERED)
def tiles(isa: Isa, vectors: int, height: int, width: int, reduction: int, most: int) -> tuple[Tile, ...]:
    """The `most` best tiles for a plane, best first: a few numbers of weight vectors, and of pixels with each."""
    widest = isa.pixels[0] + 1
    table = _real(isa, min(vectors, len(isa.pixels)), min(height, MOST_ROWS), min(width, widest))
    return table.best(isa, vectors, height, width, reduction, most, _COUNTS)


@functools.lru_cache(maxsize=_REMEMBERED)
def complex_tiles(isa: Isa, vectors: int, width: int, reduction: int, most: int) -> tuple[Tile, ...]:
    """The `most` best complex tiles for a row of pixels, best first: one for a number of weight vectors."""
    table = _complex(isa, min(vectors, len(isa.pairs)), min(width, max(isa.pairs)))
    return table.best(isa, vectors, 1, width, reduction, most, 1)
