"""Partition of work for threads: the units of work, and the parts, ranges of units, that workers take."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.symbolic.sizes import applied, greatest, items_of, least

_MAX_PARTS = 8  # maximum parts per worker
_CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)  # numbers of chunks to try, besides one per worker or panel
_REMEMBERED = 1 << 12  # memoised partitions
_EVEN = 1.1  # ratio of total to one worker's work up to which sharing counts as even
_TURNS = 4  # number of even cuts to try, each finer than the last
SERIAL_FLOPS = 500_000  # with fewer, one thread ends before others have started
_PART_FLOPS = 1_000_000  # minimum FLOPs per part, some 10 µs: taking a part costs a hundredth of that


def parts_if_shared(flops: int, parts: int = 1) -> int:
    """`parts` (`Step.parts`) if the work is large enough to share, else 0: one thread runs it."""
    return applied(_parts_if_shared, flops, parts)


def _parts_if_shared(flops: int, parts: int) -> int:
    return parts if flops > SERIAL_FLOPS else 0


def parts_each(problem: ConvProblem, units: int) -> int:
    """Parts per worker for work of `units` units: enough for work stealing, not too small; 0: one worker runs it."""
    workers = max(1, problem.threads)
    parts = greatest(1, least(_MAX_PARTS, units // workers, problem.flops // (_PART_FLOPS * workers)))
    return parts if workers == 1 else parts_if_shared(problem.flops, parts)


@dataclass(frozen=True)
class Grid:
    """Work to partition in two dimensions: tiles of planes, and panels of weights that each tile is multiplied by.
    Cycles are those of one core.

    Attributes
    ----------
    planes, tiles, panels : int
        Planes; tiles per plane; panels per tile.
    unit : float
        Cycles per tile and panel.
    prepare : float
        Cycles to pack or transform a tile, for each worker that processes its block.
    weight_cycles, activation_cycles : float
        Cycles to read all panels, and to read and write the activations of all planes, from another worker's cache or
        from memory.
    min_tiles : int
        Tiles that are computed together: the minimum of a block; a remainder costs as much.
    """

    planes: int
    tiles: int
    panels: int = 1
    unit: float = 1.0
    prepare: float = 0.0
    weight_cycles: float = 0.0
    activation_cycles: float = 0.0
    min_tiles: int = 1

    def work(self, threads: int, blocks: int, chunks: int) -> float:
        """Cycles of the slowest worker, for `blocks` blocks per plane and `chunks` chunks of its panels.

        A worker takes consecutive units (block, chunk), the chunk fastest.
        """
        units = divide(self.planes * blocks * chunks, threads)
        high, wide = divide(self.tiles, blocks), divide(self.panels, chunks)
        taken = divide(high, self.min_tiles) * self.min_tiles
        return units * taken * wide * self.unit + divide(units, chunks) * high * self.prepare

    def reading(self, threads: int, blocks: int, chunks: int) -> float:
        """Cycles of a worker to read remote data: all weights of its chunks, and the activations of its blocks."""
        places = self.planes * blocks
        units = divide(places * chunks, threads)
        return (
            min(chunks, units) / chunks * self.weight_cycles + divide(units, chunks) / places * self.activation_cycles
        )

    def imbalance(self, threads: int, blocks: int) -> float:
        """Load imbalance: `threads` times the work of the slowest worker over the work of one worker with these blocks.

        Up to a tenth more is ignored: cost models do not resolve such differences.
        """
        if threads == 1:
            return 1.0
        ratio = threads * self.work(threads, *best_partition(threads, blocks, self)) / self.work(1, blocks, 1)
        return max(1.0, ratio / _EVEN)


UNPARTITIONED = Grid(1, 1)
_FIELDS = ("planes", "tiles", "panels", "unit", "prepare", "weight_cycles", "activation_cycles", "min_tiles")
"""`UNPARTITIONED`: the grid of work that is not partitioned; `_FIELDS`: the attributes of `Grid`."""


def best_partition(threads: int, blocks: int, grid: Grid) -> tuple[int, int]:
    """Blocks per plane and chunks of its panels that minimise the time of the slowest worker.

    Blocks are the given number or more; chunks are fewer than workers. Ties go to fewer units, which reread less.
    """
    if threads == 1:
        return blocks, 1
    found = applied(_best_partition, threads, blocks, *(getattr(grid, name) for name in _FIELDS))
    blocks, chunks = items_of(found)
    return blocks, chunks


@functools.lru_cache(maxsize=_REMEMBERED)
def _best_partition(threads: int, blocks: int, *fields: Any) -> tuple[int, int]:
    grid = Grid(*fields)
    most = max(blocks, grid.tiles // grid.min_tiles)
    return min(
        _cuts(threads, blocks, most, grid), key=lambda cut: grid.work(threads, *cut) + grid.reading(threads, *cut)
    )


def _cuts(threads: int, blocks: int, most: int, grid: Grid) -> list[tuple[int, int]]:
    """Blocks and chunks to try, few units first: those that give all workers as many units, and the extremes."""
    found = set()
    for chunks in sorted({min(count, grid.panels, threads) for count in (*_CHUNKS, threads, grid.panels)}):
        # number of blocks that makes units a multiple of workers
        step = threads // math.gcd(grid.planes * chunks, threads)
        even = (divide(blocks, step) * step + turn * step for turn in range(_TURNS))
        found |= {(count, chunks) for count in (blocks, most, *even) if count <= most}
    return sorted(found, key=lambda cut: (cut[0] * cut[1], cut[1]))


def first_even(threads: int, units: int, options: Sequence[tuple[int, int]], many: float = math.inf) -> tuple[int, int]:
    """The first option (blocks, chunks) that gives all workers as many units, or at least `many` each, so that one more
    does not matter; else the last option.

    For work whose chunks each prepare the same input: order options by the number of chunks.
    """
    for blocks, chunks in options:
        count = units * blocks * chunks
        if count % threads == 0 or count >= many * threads:
            return blocks, chunks
    return options[-1]
