"""How work is cut for threads: the parts that workers take, and the units that these are made of."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.following.sizes import applied, greatest, items_of, least
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem

_MOST_PARTS = 8  # for each worker
_CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)  # worth trying, beside one for each worker or panel
_REMEMBERED = 1 << 12
_EVEN = 1.1  # work of all over that of one that counts as evenly shared
_TURNS = 4  # of even cuts, each finer than the last
SERIAL_FLOPS = 500_000  # below, one thread is done before others have started
_PART_FLOPS = 1_000_000  # some 10 µs: taking a part costs a hundredth of that


def parts_if_shared(flops: int, parts: int = 1) -> int:
    """`parts` (`Step.parts`) where the work is worth sharing, else 0: one thread runs it."""
    return applied(_parts_if_shared, flops, parts)


def _parts_if_shared(flops: int, parts: int) -> int:
    return parts if flops > SERIAL_FLOPS else 0


def parts_each(problem: ConvProblem, units: int) -> int:
    """Parts for each worker of work in so many units: enough for others to take over, and worth it; 0 for so little
    that one worker runs it."""
    workers = max(1, problem.threads)
    parts = greatest(1, least(_MOST_PARTS, units // workers, problem.flops // (_PART_FLOPS * workers)))
    return parts if workers == 1 else parts_if_shared(problem.flops, parts)


@dataclass(frozen=True)
class Grid:
    """Work to be cut in two dimensions: tiles of planes, and panels of weights that each tile takes. Cycles are of one
    core.

    Attributes
    ----------
    planes, tiles, panels : int
        Planes; tiles of each; panels of each tile.
    unit : float
        Cycles of a tile and a panel.
    prepare : float
        Cycles to pack or transform a tile, for every worker that comes to its block.
    weights, moved : float
        Cycles to read all panels, and to read and write the activations of all planes, from where another worker left
        them.
    least : int
        Tiles that are taken together: a block has that many, at least, and a rest costs as much.
    """

    planes: int
    tiles: int
    panels: int = 1
    unit: float = 1.0
    prepare: float = 0.0
    weights: float = 0.0
    moved: float = 0.0
    least: int = 1

    def work(self, threads: int, blocks: int, chunks: int) -> float:
        """Cycles of the slowest worker, of so many blocks of each plane and chunks of its panels.

        A worker does units (block, chunk) that follow one another, the chunk fastest.
        """
        units = divide(self.planes * blocks * chunks, threads)
        high, wide = divide(self.tiles, blocks), divide(self.panels, chunks)
        taken = divide(high, self.least) * self.least
        return units * taken * wide * self.unit + divide(units, chunks) * high * self.prepare

    def reading(self, threads: int, blocks: int, chunks: int) -> float:
        """Cycles to read what another worker, or memory, has: all weights of a worker's chunks, and its blocks."""
        places = self.planes * blocks
        units = divide(places * chunks, threads)
        return min(chunks, units) / chunks * self.weights + divide(units, chunks) / places * self.moved

    def uneven(self, threads: int, blocks: int) -> float:
        """How many times the work of one worker, with these blocks, all workers could do until the last ends.

        A tenth more does not count: the models of solvers do not tell times apart that are so near.
        """
        if threads == 1:
            return 1.0
        ratio = threads * self.work(threads, *shortest(threads, blocks, self)) / self.work(1, blocks, 1)
        return max(1.0, ratio / _EVEN)


UNCUT = Grid(1, 1)
_FIELDS = ("planes", "tiles", "panels", "unit", "prepare", "weights", "moved", "least")
"""The grid of one worker, of which nothing is asked."""


def shortest(threads: int, blocks: int, grid: Grid) -> tuple[int, int]:
    """Blocks of a plane and chunks of its panels that leave the slowest worker the least.

    They are the `blocks` given or finer ones; and chunks that are fewer than workers. Ties go to fewer: they reread
    less.
    """
    if threads == 1:
        return blocks, 1
    found = applied(_shortest, threads, blocks, *(getattr(grid, name) for name in _FIELDS))
    blocks, chunks = items_of(found)
    return blocks, chunks


@functools.lru_cache(maxsize=_REMEMBERED)
def _shortest(threads: int, blocks: int, *fields: Any) -> tuple[int, int]:
    grid = Grid(*fields)
    most = max(blocks, grid.tiles // grid.least)
    return min(
        _cuts(threads, blocks, most, grid), key=lambda cut: grid.work(threads, *cut) + grid.reading(threads, *cut)
    )


def _cuts(threads: int, blocks: int, most: int, grid: Grid) -> list[tuple[int, int]]:
    """Blocks and chunks worth trying, few units first: those that give each worker as many units, and the ends."""
    found = set()
    for chunks in sorted({min(count, grid.panels, threads) for count in (*_CHUNKS, threads, grid.panels)}):
        step = threads // math.gcd(grid.planes * chunks, threads)  # blocks that make units a multiple of workers
        even = (divide(blocks, step) * step + turn * step for turn in range(_TURNS))
        found |= {(count, chunks) for count in (blocks, most, *even) if count <= most}
    return sorted(found, key=lambda cut: (cut[0] * cut[1], cut[1]))


def first_even(threads: int, units: int, options: Sequence[tuple[int, int]], many: float = math.inf) -> tuple[int, int]:
    """The first of the options (blocks, chunks) that cuts each of the units so that all workers get as many, or at
    least `many`, of which one more does not count; else the last option.

    For work whose chunks each prepare the same input: options with few of them come first.
    """
    for blocks, chunks in options:
        count = units * blocks * chunks
        if count % threads == 0 or count >= many * threads:
            return blocks, chunks
    return options[-1]
