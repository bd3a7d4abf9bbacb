"""Kernels of networks with open sizes, other than GEMM strips: a few of each kind, for planes of every size.

The other kernels of a network depend on the network, not on its sizes: those of rare windows, activations and
expressions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.attention.driver import AttentionTile, RowsTile, attention, scale_rows
from cpuconv.kernels.attention.softmax import softmax_rows, weights_tile
from cpuconv.kernels.axis.axis_driver import work_on_line
from cpuconv.kernels.axis.lines import line_tiles
from cpuconv.kernels.binding.steps import MicroRef
from cpuconv.kernels.convolutions.pixel_blocks import PixelBlockTile, im2col
from cpuconv.kernels.copies import strips
from cpuconv.kernels.copies.rows import BLOCKED, CHANNELS, RowTile
from cpuconv.kernels.copies.strip_steps import COPIED
from cpuconv.kernels.packing.columns import LINES as IN_LINES
from cpuconv.kernels.packing.columns import VECTORS
from cpuconv.kernels.products.panels import COPIED as ROWS
from cpuconv.kernels.products.panels import TRANSPOSED
from cpuconv.kernels.windows.depthwise_tile import lane_strip
from cpuconv.kernels.windows.pool_strip import StripTile, pool_strip
from cpuconv.kernels.windows.pooling import strip_tiles
from cpuconv.problem.activation import Activation
from cpuconv.runtime.code.parallel_compile import Wanted
from cpuconv.solvers import winograd
from cpuconv.solvers.shared.lanes import lane_set

RELU, RELU6, HARD_SWISH, SILU = ("relu",), ("relu6",), ("hardswish",), ("silu",)
ONE, HALF, LINES_HALF, PIXELS_HALF = (1, 1), (2, 2), (2, 1), (1, 2)
DEPTHWISE: tuple[tuple[int, tuple[int, int], tuple[Activation | None, ...]], ...] = (  # kernel, stride, activations
    (3, ONE, (RELU, RELU6, HARD_SWISH, SILU)),
    (3, HALF, (RELU, RELU6, HARD_SWISH, SILU)),
    (3, LINES_HALF, (HARD_SWISH,)),  # in text recognisers
    (3, PIXELS_HALF, (HARD_SWISH,)),
    (5, ONE, (HARD_SWISH,)),
    (5, HALF, (HARD_SWISH, None)),
    (5, LINES_HALF, (HARD_SWISH,)),
    (7, ONE, (None,)),
)
WINOGRAD = ((3, 3, (None, RELU)), (1, 3, (None, SILU)), (3, 1, (None,)))  # rows and columns, activations
POOLINGS = (("max", 3, 2), ("max", 2, 2), ("sum", 2, 2))  # fold, taps, stride
LINES: tuple[tuple[str, dict[str, float]], ...] = (
    ("Softmax", {}),
    *(("LayerNormalization", {"epsilon": float(np.float32(each)), "shift": True}) for each in (1e-5, 1e-6)),
)


def float32(isa: Isa) -> Iterator[MicroRef]:
    """Yield all these kernels for float32."""
    for size, stride, activations in DEPTHWISE:
        for activation in activations:
            for lane in lane_set.lane_tiles(isa, size, size, stride, activation):
                yield MicroRef(lane_strip, lane)
    for rows, cols, activations in WINOGRAD:
        every = (winograd.closed_tiles(isa, rows, cols, activation) for activation in activations)
        yield from dict.fromkeys(itertools.chain.from_iterable(every))
    for fold, taps, step in POOLINGS:
        first = StripTile(isa.lanes, fold, 1, taps, step, 1, edged=False, scaled=fold == "sum")
        yield from (MicroRef(pool_strip, strip) for strip in strip_tiles(first, isa))
    for work, fields in LINES:
        yield from (MicroRef(work_on_line, line) for line in line_tiles(isa, work, **fields))
    yield MicroRef(scale_rows, RowsTile(isa.lanes))
    yield from (MicroRef(softmax_rows, weights_tile(isa, masked, 1.0, F32)) for masked in (False, True))


def drivers(isa: Isa) -> Iterator[Wanted]:
    """Yield the drivers that take longest to compile, among those that a new size may need first."""
    blocks, channels = RowTile(isa.lanes, BLOCKED), RowTile(isa.lanes, CHANNELS)
    for rows, load, residual in itertools.product((blocks, channels), (IN_LINES, VECTORS), (False, True)):
        yield im2col, PixelBlockTile(isa.lanes, load, residual, rows is blocks, rows, rows)
    for ends, bundle in itertools.product(((blocks, channels), (channels, blocks)), (1, 2)):
        yield strips.move_strips, strips.StripTile(isa.lanes, *ends, bundle, COPIED)
    for packed in ((ROWS, TRANSPOSED, ROWS, ROWS), (TRANSPOSED, ROWS, TRANSPOSED, TRANSPOSED)):  # tokens, planes
        yield attention, AttentionTile(isa.lanes, *packed)
