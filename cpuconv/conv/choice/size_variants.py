"""Micro-kernels that other sizes of a network need in place of a given one.

They are few for all sizes. If they are compiled with those of one size, no other size compiles. Winograd and FFT
transforms have none, as a network's algorithms are those of its class of sizes.
"""

from __future__ import annotations

from cpuconv.isa import Isa
from cpuconv.kernels.axis.axis_driver import work_on_line
from cpuconv.kernels.axis.axis_emitter import AxisTile
from cpuconv.kernels.axis.lines import line_tiles
from cpuconv.kernels.binding.steps import MicroRef
from cpuconv.kernels.windows.depthwise_tile import LaneTile, lane_strip
from cpuconv.kernels.windows.pooling import pool_strip, strip_tiles
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared.lanes import lane_set


def size_variants(ref: MicroRef, isa: Isa) -> list[MicroRef]:
    """The micro-kernels that replace `ref` in programs of other sizes; with `ref`, if it is in their closed set."""
    if ref.kernel is lane_strip and _is_float32(ref.tile):
        return [MicroRef(lane_strip, each) for each in lane_set.relatives(ref.tile, isa)]
    if ref.kernel is pool_strip:
        return [MicroRef(pool_strip, each) for each in strip_tiles(ref.tile, isa)]
    if ref.kernel is work_on_line:
        return [MicroRef(work_on_line, each) for each in _lines(ref.tile, isa)]
    return [ref]


def _is_float32(tile: LaneTile) -> bool:
    return (tile.x, tile.sum, tile.y) == (ALL_F32.x, ALL_F32.sum, ALL_F32.y)


def _lines(tile: AxisTile, isa: Isa) -> list[AxisTile]:
    return line_tiles(isa, tile.operation, epsilon=tile.epsilon, shift=tile.shift, x=tile.x, y=tile.y)
