"""Candidate register tiles for an output plane, ranked by a model of the inner loop."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.table import Isa
from cpuconv.problem.integers import divide

MAX_ROWS = 7
_MAX_ROWS_A_COLUMN = 3  # taller tiles touch one page per row and use little of it: measured at half the speed
_COUNTS = 2  # pixel counts listed per number of weight vectors
_STREAMED = 0.75  # share of the L2 bandwidth that prefetched weights reach
_L1_WEIGHTS = 16 << 10  # bytes of a weight panel that stay in L1 next to the pixels
_LOOP_OVERHEAD = 6.0  # cycles per tile, besides its sums and stores
_ADDITION = 2.4  # cycles of a conversion and an addition of a block of float16 sums in memory, by llvm-mca, in stores
_LOADS_BESIDE = 0.05  # share of the loads that FMAs do not hide: prefers larger tiles
_CLOSED_COLUMNS: dict[str, tuple[tuple[int, ...], ...]] = {  # columns of closed-set tiles with 1, 2, … weight vectors
    "avx512": (
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 17, 19, 23, 28, 29),
        (1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 14),
        (1, 2, 3, 4, 5, 6, 7, 9),
        (1, 2, 3, 4, 5, 6),
    ),
}  # other instruction sets have all. Counts for more vectors are also listed for fewer, as a last panel has fewer
_REMEMBERED = 4096  # cached results: layouts of one problem, and several solvers, repeat the same queries
_LAYERS = 512  # cached layers that differ in vectors and scalars, about 5 KB each


@dataclass(frozen=True)
class Tile:
    """v weight vectors × rows × cols pixels."""

    v: int
    rows: int
    cols: int


def fits(isa: Isa, v: int, n: int) -> bool:
    """Whether sums, weights and one broadcast stay in registers."""
    return v <= len(isa.pixels) and n <= isa.pixels[v - 1]


@functools.cache
def closed_columns(isa: Isa, v: int) -> tuple[int, ...]:
    """Columns that tiles of the closed set may have with `v` weight vectors.

    The set has 44 of AVX-512's 59 pairs of vectors and columns. By the model, no row of 1 to 400 pixels takes more than
    3.5% longer with them than with all, for reductions of 32, 256 and 2048 scalars.
    """
    most = isa.pixels[v - 1]
    listed = _CLOSED_COLUMNS.get(isa.name)
    return tuple(cols for cols in (listed[v - 1] if listed else range(1, most + 1)) if cols <= most)


def segment(isa: Isa, channels: int) -> tuple[int, int]:
    """Scalars of a channel block, and of a last, partial one (0: there is none)."""
    return min(channels, isa.lanes), channels % isa.lanes if channels > isa.lanes else 0


def streams(isa: Isa, v: Any, reduction: int) -> Any:
    """Whether a panel of weights does not stay in L1 next to the pixels, so that every tile reads it from L2."""
    return v * isa.lanes * F32.bytes * reduction > _L1_WEIGHTS


def _step(isa: Isa, v: int, n: int, streamed: bool) -> float:
    """Modelled cycles of one scalar of the reduction: the maximum over FMA slots, load slots, latency and weights."""
    loads = v / isa.load_rate + n / (isa.broadcast_rate * isa.scalars_per_load)
    stream = v * isa.lanes * F32.bytes / (_STREAMED * isa.l2_rate) if streamed else 0.0
    return max(v * n / isa.fma_rate, loads, isa.latency, stream) + _LOADS_BESIDE * (loads + stream)


def _efficiency(isa: Isa, v: int, n: int) -> float:
    uneven = abs(v * n - isa.registers // 2) * isa.uneven
    return isa.efficiency[min(v, len(isa.efficiency)) - 1] / (1 + uneven)


def _additions(isa: Isa, reduction: int) -> float:
    """Cycles to add a vector of sums of all blocks to wider sums, in those of a store."""
    return _ADDITION * divide(reduction, isa.sum_block) if 0 < isa.sum_block < reduction else 0.0


@functools.lru_cache(maxsize=_REMEMBERED)
def cycles(isa: Isa, v: int, n: int, reduction: int) -> float:
    """Modelled cycles of one tile of v weight vectors and n pixels over `reduction` scalars.

    A panel of weights that does not stay in L1 streams from L2 for every tile.
    """
    step = _step(isa, v, n, streams(isa, v, reduction))
    stores = v * n * isa.store_cost * (1 + _additions(isa, reduction))
    return step * reduction / _efficiency(isa, v, n) + stores + _LOOP_OVERHEAD


def complex_cycles(isa: Isa, v: int, n: int, reduction: int) -> float:
    """Modelled cycles of a complex tile: FMAs and loads of a real one twice as high and wide, half its stores."""
    return cycles(isa, 2 * v, 2 * n, reduction) - 2 * v * n * isa.store_cost


def pixel_cycles(isa: Isa, reduction: int) -> float:
    """Lower bound of any tile's cycles per output vector."""
    return reduction / (isa.fma_rate * max(isa.efficiency)) + isa.store_cost


def plane_cycles(isa: Isa, tile: Tile, vectors: int, height: int, width: int, reduction: int) -> float:
    """Modelled cycles of a whole output plane of `vectors` vectors of output channels."""
    count = divide(vectors, tile.v) * divide(height, tile.rows) * divide(width, tile.cols)
    return count * cycles(isa, tile.v, tile.rows * tile.cols, reduction)


class _Table(NamedTuple):
    """Tiles, the lowest first, and arrays of the terms of `cycles`: one array expression ranks all tiles of a plane."""

    tiles: np.ndarray
    v: np.ndarray
    rows: np.ndarray
    cols: np.ndarray
    wide: np.ndarray  # weight vectors of the real tile whose FMAs and loads count
    step: np.ndarray  # cycles per scalar of the reduction; `streamed`: where weights stream from L2
    streamed: np.ndarray
    efficiency: np.ndarray
    stores: np.ndarray  # cycles of the real tile's stores
    unstored: np.ndarray  # cycles of these stores that the tile itself does not have

    @classmethod
    def of(cls, isa: Isa, tiles: Sequence[Tile], scale: int = 1) -> _Table:
        """Build the table of some tiles.

        Parameters
        ----------
        isa : Isa
        tiles : Sequence[Tile]
        scale : int
            Each tile represents one of `scale` times its height and width; FMAs and loads are counted for that one.
        """
        tiles = sorted(tiles, key=lambda tile: (tile.rows, -tile.v))
        wide = [(scale * tile.v, scale * tile.rows * tile.cols) for tile in tiles]
        stores = np.array([v * n * isa.store_cost for v, n in wide])
        return cls(
            tiles=np.array(tiles, object),
            v=np.array([tile.v for tile in tiles]),
            rows=np.array([tile.rows for tile in tiles]),
            cols=np.array([tile.cols for tile in tiles]),
            wide=np.array([v for v, _ in wide]),
            step=np.array([_step(isa, v, n, False) for v, n in wide]),
            streamed=np.array([_step(isa, v, n, True) for v, n in wide]),
            efficiency=np.array([_efficiency(isa, v, n) for v, n in wide]),
            stores=stores,
            unstored=stores * (1 - 1 / scale),
        )

    def some(self, able: np.ndarray) -> _Table:
        """The rows of the table that `able` selects."""
        return _Table(*(each[able] for each in self))

    def cycles(self, isa: Isa, reduction: int) -> np.ndarray:
        """`cycles` or `complex_cycles` of every tile."""
        step = np.where(streams(isa, self.wide, reduction), self.streamed, self.step)
        stores = self.stores * (1 + _additions(isa, reduction))
        return step * reduction / self.efficiency + stores + _LOOP_OVERHEAD - self.unstored


class _Timed(NamedTuple):
    """Tiles, their numbers of panels (negative, as `//` then rounds up), and the cycles of one tile each."""

    tiles: list[Tile]
    panels: np.ndarray
    rows: np.ndarray
    cols: np.ndarray
    cycles: np.ndarray

    @classmethod
    def of(cls, table: _Table, isa: Isa, vectors: int, reduction: int) -> _Timed:
        """Time the tiles of a table for layers with `vectors` output vectors and `reduction` scalars."""
        panels, cycles = -vectors // table.v, table.cycles(isa, reduction)
        return cls(table.tiles.tolist(), panels, table.rows, table.cols, cycles)

    def best(self, height: int, width: int, most: int, alike: int) -> tuple[Tile, ...]:
        """The `most` best tiles for a plane, best first, with at most `alike` pixel counts per number of vectors."""
        count = self.panels * (-height // self.rows) * (-width // self.cols)  # all negative: rounded up
        found: list[Tile] = []
        seen: dict[int, set[int]] = {}
        for index in np.argsort(-count * self.cycles, kind="stable").tolist():  # of equals, the lowest
            tile = self.tiles[index]
            counts = seen.setdefault(tile.v, set())
            if len(counts) < alike and tile.rows * tile.cols not in counts:
                counts.add(tile.rows * tile.cols)
                found.append(tile)
                if len(found) == most:
                    break
        return tuple(found)


def is_closed(isa: Isa, tile: Tile) -> bool:
    """Whether a tile is in the closed set, whose tiles have one row."""
    return tile.rows == 1 and fits(isa, tile.v, 1) and tile.cols in closed_columns(isa, tile.v)


@functools.cache
def _every(isa: Isa) -> _Table:
    """All tiles that stay in registers."""
    counts = range(1, len(isa.pixels) + 1), range(1, MAX_ROWS + 1), range(1, max(isa.pixels) + 1)
    able = (Tile(v, n, m) for v, n, m in itertools.product(*counts) if fits(isa, v, n * m))
    return _Table.of(isa, [tile for tile in able if not isa.closed or is_closed(isa, tile)])


@functools.cache
def _every_pair(isa: Isa) -> _Table:
    """All complex tiles that stay in registers."""
    every = (Tile(v, 1, n) for v, most in enumerate(isa.pairs, 1) for n in range(1, most + 1))
    return _Table.of(isa, [tile for tile in every if not isa.closed or is_closed(isa, tile)], 2)


@functools.lru_cache(maxsize=_LAYERS)
def _real(isa: Isa, vectors: int, height: int, width: int, reduction: int, counts: tuple[int, ...] | None) -> _Timed:
    """Candidate tiles for planes of a layer; planes beyond the largest tile share an entry."""
    every = _every(isa)
    able = (every.v <= vectors) & (every.rows <= height) & (every.cols <= width)
    able &= (every.rows <= _MAX_ROWS_A_COLUMN * every.cols) | (every.cols == width)
    if counts is not None:
        able &= np.isin(every.v, counts)
    return _Timed.of(every.some(able), isa, vectors, reduction)


@functools.lru_cache(maxsize=_LAYERS)
def _complex(isa: Isa, vectors: int, width: int, reduction: int) -> _Timed:
    every = _every_pair(isa)
    return _Timed.of(every.some((every.v <= vectors) & (every.cols <= width)), isa, vectors, reduction)


_among: contextvars.ContextVar[frozenset[Tile] | None] = contextvars.ContextVar("among", default=None)


@contextlib.contextmanager
def tiles_among(wanted: frozenset[Tile]) -> Iterator[None]:
    """Within the context, `tiles` returns all of these tiles that a plane can have, however many, and no others.
    Code that ranks tiles of other kinds returns all of them."""
    before = _among.set(wanted)
    try:
        yield
    finally:
        _among.reset(before)


def takes_all() -> bool:
    """Whether lists of tiles are unlimited: within `tiles_among`."""
    return _among.get() is not None


def every_tile(isa: Isa) -> tuple[Tile, ...]:
    """All tiles that stay in registers."""
    return tuple(_every(isa).tiles.tolist())


def tiles(
    isa: Isa,
    vectors: int,
    height: int,
    width: int,
    reduction: int,
    most: int,
    counts: tuple[int, ...] | None = None,
) -> tuple[Tile, ...]:
    """The `most` best tiles for a plane, best first: a few numbers of weight vectors, and a few of pixels with each.

    `counts`: the numbers of weight vectors that tiles may have; None: any.
    """
    wanted = _among.get()
    if wanted is None:
        return _best(isa, vectors, height, width, reduction, most, counts)
    timed = _of_plane(isa, vectors, height, width, reduction, counts)
    return tuple(tile for tile in timed.best(height, width, len(timed.tiles), len(timed.tiles)) if tile in wanted)


@functools.lru_cache(maxsize=_REMEMBERED)
def _best(
    isa: Isa, vectors: int, height: int, width: int, reduction: int, most: int, counts: tuple[int, ...] | None
) -> tuple[Tile, ...]:
    return _of_plane(isa, vectors, height, width, reduction, counts).best(height, width, most, _COUNTS)


def _of_plane(
    isa: Isa, vectors: int, height: int, width: int, reduction: int, counts: tuple[int, ...] | None
) -> _Timed:
    widest = max(isa.pixels) + 1
    return _real(isa, vectors, min(height, MAX_ROWS), min(width, widest), reduction, counts)


@functools.lru_cache(maxsize=_REMEMBERED)
def complex_tiles(isa: Isa, vectors: int, width: int, reduction: int, most: int) -> tuple[Tile, ...]:
    """The `most` best complex tiles for a row of pixels, best first: one per number of weight vectors."""
    return _complex(isa, vectors, min(width, max(isa.pairs)), reduction).best(1, width, most, 1)
