"""Padding that is not multiplied: kernel rows outermost, so that a tile leaves out those that meet padding alone.

Of floats of 16 bits, whose padding is zero (that of integers is a zero point, which weights are compensated for).
"""

from __future__ import annotations

import functools

from cpuconv.isa import Isa
from cpuconv.kernels.emit.product import Product
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import spans


def rows_first(problem: ConvProblem, isa: Isa, product: Product) -> bool:
    """Whether kernel rows are outermost in the sums of a problem."""
    plain = problem.types.x.half and not product.matrix and not product.paired
    whole = problem.cg % isa.block(problem.types.x) == 0 and not spans.needed(problem, isa)
    return plain and whole and problem.r > 1 and any(problem.pads[:2])


def rows_met(problem: ConvProblem, row: int, rows: int) -> int:
    """Kernel rows that meet the input for some of a tile's output rows from `row` on."""
    step, dilation = problem.stride[0], problem.dilation[0]
    first = divide(max(0, problem.pads[0] - (row + rows - 1) * step), dilation)
    last = min(problem.r, divide(max(0, problem.h + problem.pads[0] - row * step), dilation))
    return max(1, last - first)


@functools.lru_cache(maxsize=64)  # candidates of as many rows ask
def share(problem: ConvProblem, rows: int) -> float:
    """What tiles of so many rows multiply, as a share of all products."""
    starts = [min(row, problem.oh - rows) for row in range(0, problem.oh, rows)]
    return sum(rows_met(problem, row, rows) for row in starts) / (len(starts) * problem.r)
