"""The lane tiles of networks with open sizes: few for each kernel, that planes of every size are computed with.

Tiles that hold their weights take any number of rows, so that one column serves every plane that is as high as the
kernel; wider ones save loads. Looped tiles serve lower planes, and kernels whose weights no registers hold. By the
model, the best of the set takes so many times as long as the best of all tiles, in the mean of 400 planes of 1x1 to
200x300 drawn evenly by logarithm; and of those of them that have 6 rows and 7 columns or more:

| | 3x3 | 3x3, stride 2 | 5x5 | 5x5, stride 2 | 7x7 |
|---|---|---|---|---|---|
| AVX-512 | 1.06, 1.01 | 1.09, 1.05 | 1.09, 1.04 | 1.09, 1.03 | 1.12, 1.06 |
| AVX2 | 1.03, 1.03 | 1.03, 1.01 | 1.01, 1.00 | 1.03, 1.01 | 1.03, 1.00 |
"""

from __future__ import annotations

import functools
from dataclasses import replace

from cpuconv.isa import Isa
from cpuconv.kernels.windows.edges import Edges
from cpuconv.kernels.windows.lane_tile import LaneTile
from cpuconv.problem.activation import Activation
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared.lanes.lane_tiles import FEW_REGISTERS, Kernel, Shape, all_tiles, kernel_of

HELD_COLUMNS = (1, 2, 4, 7)  # of tiles of any number of rows
LOOPED = (
    (1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 5), (2, 7), (2, 9), (3, 1), (3, 3), (3, 7), (4, 2), (4, 4),
)  # fmt: skip
"""Rows and columns of tiles that loop over kernel rows, with many registers."""
LOW = ((1, 1), (1, 2), (1, 4), (1, 9), (2, 1), (2, 3), (2, 5))
"""The same for a kernel whose tiles of any number of rows serve all planes but the lowest."""
FEW_LOOPED = ((1, 1), (1, 2), (1, 3), (1, 4), (1, 6), (1, 8), (2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (4, 1), (4, 2))
"""The same with few registers."""
_LOW = 3  # output rows under way of such a kernel


@functools.lru_cache(maxsize=256)
def members(kernel: Kernel, isa: Isa, mix: int) -> frozenset[tuple[int, int, bool]]:
    """Rows (0: any number), columns, and whether it holds its weights, of each tile for a kernel."""
    able = {(kernel.rows(shape), shape.cols, shape.held) for shape in all_tiles(kernel, isa, mix)[0]}
    held = {(0, cols, True) for cols in HELD_COLUMNS} & able
    looped = LOW if held and kernel.rows_in_flight <= _LOW else LOOPED
    if isa.registers <= FEW_REGISTERS:
        looped = FEW_LOOPED
    return frozenset(held | {(*tile, False) for tile in looped if tile[0] < kernel.rows_in_flight or not held} & able)


def is_member(problem: ConvProblem, shape: Shape, isa: Isa) -> bool:
    """Whether a tile is of the set."""
    kernel = kernel_of(problem, shape.words)
    return (kernel.rows(shape), shape.cols, shape.held) in members(kernel, shape.seen(isa), shape.mix)


def relatives(tile: LaneTile, isa: Isa) -> list[LaneTile]:
    """The set's tiles of a convolution of float32 of which `tile` is one, for planes of other sizes."""
    reach = tile.reach, (tile.s - 1) * tile.dilation[1] + 1
    kernel = Kernel(tile.r, tile.s, tile.stride, tile.dilation, reach, tile.activation is not None)
    every = sorted(members(kernel, isa, tile.mix))
    return [replace(tile, rows=rows, cols=cols, weights_in_registers=held) for rows, cols, held in every]


def lane_tiles(
    isa: Isa, r: int, s: int, stride: tuple[int, int], activation: Activation | None, residual: bool = False
) -> list[LaneTile]:
    """The micro-kernels of a depthwise convolution of float32 in channel blocks, padded by half its kernel, for planes
    of every size.
    """
    first = LaneTile(
        *(isa.lanes, 1, 1, r, s, stride, (1, 1), Edges(s // 2, s // 2)),
        checked=r > 1, residual=residual, activation=activation,
    )  # fmt: skip
    return relatives(first, isa)
