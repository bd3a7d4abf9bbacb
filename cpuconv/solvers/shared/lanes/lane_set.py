"""Lane tiles of networks with open sizes: a few per kernel, which together run planes of any size.

Tiles with all weights in registers run any number of rows, so one column of them serves every plane at least as high as
the kernel; wider ones save loads. Looped tiles serve lower planes, and kernels too large for the registers. By the
model, the fastest tile of the set takes this many times as long as the fastest of all tiles: mean over 400 planes of
1x1 to 200x300, log-uniformly drawn, and over those of at least 6 rows and 7 columns:

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

HELD_COLUMNS = (1, 2, 4, 7)  # columns of tiles that run any number of rows
LOOPED = (
    (1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 5), (2, 7), (2, 9), (3, 1), (3, 3), (3, 7), (4, 2), (4, 4),
)  # fmt: skip
"""Rows and columns of tiles that loop over kernel rows, on CPUs with many registers."""
LOW = ((1, 1), (1, 2), (1, 4), (1, 9), (2, 1), (2, 3), (2, 5))
"""The same for kernels whose tiles of any number of rows serve all planes but the lowest."""
FEW_LOOPED = ((1, 1), (1, 2), (1, 3), (1, 4), (1, 6), (1, 8), (2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (4, 1), (4, 2))
"""The same on CPUs with few registers."""
_LOW = 3  # output rows in flight of such a kernel


@functools.lru_cache(maxsize=256)
def members(kernel: Kernel, isa: Isa, mix: int) -> frozenset[tuple[int, int, bool]]:
    """Rows (0: any number), columns, and whether all weights are in registers, of each tile for a kernel."""
    able = {(kernel.rows(shape), shape.cols, shape.held) for shape in all_tiles(kernel, isa, mix)[0]}
    held = {(0, cols, True) for cols in HELD_COLUMNS} & able
    looped = LOW if held and kernel.rows_in_flight <= _LOW else LOOPED
    if isa.registers <= FEW_REGISTERS:
        looped = FEW_LOOPED
    return frozenset(held | {(*tile, False) for tile in looped if tile[0] < kernel.rows_in_flight or not held} & able)


def is_member(problem: ConvProblem, shape: Shape, isa: Isa) -> bool:
    """Whether a tile belongs to the set."""
    kernel = kernel_of(problem, shape.words)
    return (kernel.rows(shape), shape.cols, shape.held) in members(kernel, shape.seen(isa), shape.mix)


def relatives(tile: LaneTile, isa: Isa) -> list[LaneTile]:
    """Tiles of the set for the float32 convolution of `tile`, for planes of other sizes."""
    reach = tile.reach, (tile.s - 1) * tile.dilation[1] + 1
    kernel = Kernel(tile.r, tile.s, tile.stride, tile.dilation, reach, tile.activation is not None)
    every = sorted(members(kernel, isa, tile.mix))
    return [replace(tile, rows=rows, cols=cols, weights_in_registers=held) for rows, cols, held in every]


def lane_tiles(
    isa: Isa, r: int, s: int, stride: tuple[int, int], activation: Activation | None, residual: bool = False
) -> list[LaneTile]:
    """Micro-kernels of float32 depthwise convolution in channel blocks with half-kernel padding, of all plane sizes."""
    first = LaneTile(
        *(isa.lanes, 1, 1, r, s, stride, (1, 1), Edges(s // 2, s // 2)),
        checked=r > 1, residual=residual, activation=activation,
    )  # fmt: skip
    return relatives(first, isa)
