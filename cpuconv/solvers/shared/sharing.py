"""How work is cut for threads: the parts that workers take, and the units that these are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared.base import divide

_MOST_PARTS = 8  # for each worker
_PART_FLOPS = 1e6  # some 10 µs: taking a part costs a hundredth of that


def parts_each(problem: ConvProblem, units: int) -> int:
    """Parts for each worker of work in so many units: enough for others to take over, and worth it."""
    workers = max(1, problem.threads)
    return max(1, min(_MOST_PARTS, units // workers, int(problem.flops / _PART_FLOPS / workers)))


def shortest(threads: int, planes: int, blocks: int, tiles: int, panels: int = 1) -> tuple[int, int]:
    """Blocks of a plane and chunks of its panels that leave the slowest worker the least.

    They are the `blocks` given or finer ones, of a plane of `tiles`; and all panels together, or a chunk for each
    worker.
    Ties go to fewer: they reread less.
    """
    planes = max(1, planes)
    finer = min(tiles, divide(blocks, threads) * threads)
    chunked = min(panels, threads)

    def slowest(option: tuple[int, int]) -> int:
        parts, chunks = option
        return divide(planes * parts * chunks, threads) * divide(tiles, parts) * divide(panels, chunks)

    return min([(blocks, 1), (finer, 1), (blocks, chunked), (finer, chunked)], key=slowest)


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
