"""Segments of a sum: what a GEMM tile reads side by side of a pixel, and where each lies.

Channels of the problems here are words of 32 bits (`words.py`).
"""

from __future__ import annotations

import math

import numpy as np

from cpuconv.isa import Isa
from cpuconv.kernels.emit.product import WORD
from cpuconv.kernels.products import tiling
from cpuconv.problem.problem import ConvProblem


def share_blocks(problem: ConvProblem, isa: Isa) -> bool:
    """Whether a channel block holds words of several groups."""
    return problem.groups > 1 and problem.cg % isa.lanes != 0


def segment(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Words that are read at once, and of a last block that is not full (0: there is none).

    Where groups share blocks, what is read lies in one block, whichever group it is of.
    """
    if share_blocks(problem, isa):
        return math.gcd(problem.cg, isa.lanes), 0
    return tiling.segment(isa, problem.cg)


def table(problem: ConvProblem, isa: Isa, plane: int, line: int, pixel: int, planar: bool) -> np.ndarray:
    """Byte offset of each segment's first scalar: channel (block) → kernel row → kernel column (planar: whole row).

    One row, or where groups share blocks a row for each of them.
    """
    rows = np.arange(problem.r, dtype=np.int64) * problem.dilation[0] * line
    columns = np.zeros(1, np.int64) if planar else np.arange(problem.s, dtype=np.int64) * problem.dilation[1] * pixel
    if planar:
        starts = np.arange(problem.cg, dtype=np.int64)[None] * plane
    else:
        groups = problem.groups if share_blocks(problem, isa) else 1
        first = np.arange(0, problem.cg, segment(problem, isa)[0], dtype=np.int64)
        channels = np.arange(groups, dtype=np.int64)[:, None] * problem.cg + first
        starts = channels // isa.lanes * plane + channels % isa.lanes * WORD
    return np.ascontiguousarray((starts[:, :, None, None] + rows[:, None] + columns).reshape(len(starts), -1))
