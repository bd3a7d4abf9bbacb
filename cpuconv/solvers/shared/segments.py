"""Segments of a sum: the adjacent elements of a pixel that a GEMM tile reads per iteration, and their addresses.

Channels of the problems here are 32-bit groups (`words.py`).

In 16-bit floating-point types kernel rows are the outermost loop, so that a tile skips rows that overlap only padding.
Integers do not skip it: their padding is a zero point, which packed weights compensate.
"""

from __future__ import annotations

import numpy as np

from cpuconv.isa import Isa
from cpuconv.kernels.emit.product import WORD, Product
from cpuconv.kernels.products import tiling
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import spans
from cpuconv.solvers.shared.spans import Spans
from cpuconv.symbolic.sizes import affine, memoised


def segment(problem: ConvProblem, isa: Isa, parts: Spans | None = None) -> tuple[int, int]:
    """32-bit groups of a tap per segment, and those of a partial last block (0: none)."""
    return (parts.segment, 0) if parts else tiling.segment(isa, problem.cg)


def table(
    problem: ConvProblem,
    isa: Isa,
    plane: int,
    line: int,
    pixel: int,
    planar: bool,
    parts: Spans | None = None,
    rows_first: bool = False,
) -> np.ndarray:
    """Byte offset of each segment: channel (block) → kernel row → kernel column (planar: whole kernel rows).

    `rows_first`: kernel row → channel block → kernel column. One row, or with `parts` one row per panel: the number of
    offsets, and the offsets.
    """

    def made(plane: int, line: int) -> np.ndarray:
        return _table(problem, isa, plane, line, pixel, planar, parts, rows_first)

    return affine(made, plane, line)


def _table(
    problem: ConvProblem,
    isa: Isa,
    plane: int,
    line: int,
    pixel: int,
    planar: bool,
    parts: Spans | None,
    rows_first: bool,
) -> np.ndarray:
    rows = np.arange(problem.r, dtype=np.int64) * problem.dilation[0] * line
    columns = np.zeros(1, np.int64) if planar else np.arange(problem.s, dtype=np.int64) * problem.dilation[1] * pixel
    taps = (rows[:, None] + columns).ravel()
    if planar:
        starts = np.arange(problem.cg, dtype=np.int64) * plane
        return (starts[:, None] + taps).reshape(1, -1)
    if rows_first:
        blocks = np.arange(divide(problem.cg, isa.lanes), dtype=np.int64)[:, None] * plane
        return (rows[:, None, None] + blocks + columns).reshape(1, -1)
    if parts is None:
        return _offsets(np.arange(0, problem.cg, segment(problem, isa)[0]), isa, plane, taps)[None]
    found = np.zeros((len(parts.first), 1 + parts.most // parts.segment * len(taps)), np.int64)
    for row, first, count in zip(found, parts.first, parts.words, strict=True):
        offsets = _offsets(np.arange(first, first + count, parts.segment), isa, plane, taps)
        row[0], row[1 : 1 + len(offsets)] = len(offsets), offsets
    return found


def _offsets(words: np.ndarray, isa: Isa, plane: int, taps: np.ndarray) -> np.ndarray:
    """Byte offsets of segments that start at these 32-bit groups, at every tap."""
    starts = words.astype(np.int64) // isa.lanes * plane + words % isa.lanes * WORD
    return (starts[:, None] + taps).ravel()


def rows_first(problem: ConvProblem, isa: Isa, product: Product) -> bool:
    """Whether kernel rows are the outermost loop of a problem's sums."""
    plain = problem.types.x.half and not (product.matrix or product.paired or product.half_sums)
    whole = problem.cg % isa.block(problem.types.x) == 0 and not spans.needed(problem, isa)
    return plain and whole and problem.r > 1 and any(problem.pads[:2])


def rows_met(problem: ConvProblem, row: int, rows: int) -> int:
    """Kernel rows that overlap the input for any of a tile's output rows, which start at `row`."""
    step, dilation = problem.stride[0], problem.dilation[0]
    first = divide(max(0, problem.pads[0] - (row + rows - 1) * step), dilation)
    last = min(problem.r, divide(max(0, problem.h + problem.pads[0] - row * step), dilation))
    return max(1, last - first)


@memoised(64)  # called for candidates with the same number of rows
def share(problem: ConvProblem, rows: int) -> float:
    """Share of all products that tiles of this many rows compute."""
    starts = [min(row, problem.oh - rows) for row in range(0, problem.oh, rows)]
    return sum(rows_met(problem, row, rows) for row in starts) / (len(starts) * problem.r)
