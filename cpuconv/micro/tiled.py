"""Convolution in a transformed domain, by tiles: transform → one GEMM a frequency → inverse and epilogue.

The driver of Winograd and FFT. The output is cut into tiles of tile_height × tile_width pixels (the last of a row or
column overlaps its predecessor), and tiles into blocks whose transforms stay in L2. For a block: all channels of its
tiles are transformed; then, for each chunk of output channels, the products of all planes are formed and transformed
back. A plane is one real component of the transform; a product sums it over channels. The transforms and the GEMM are
micro-kernels, given by address; the transforms' words are those of `forward` and `backward` below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpuconv.micro.gemm import call_gemm_strip
from cpuconv.micro.intrinsics import copy_vector, zero_vector
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class TiledTile:
    """Lanes of the instruction set."""

    lanes: int


def forward(tile: Any, builder: Any, x: Any, line: Any, pixel: Any, v: Any, plane: Any, scratch: Any) -> None:
    """v + f·plane = component f of the transform of the input tile at x; `scratch` is the worker's own."""


def backward(
    tile: Any, builder: Any, m: Any, plane: Any, y: Any, line: Any, pixel: Any, bias: Any, residual: Any, scratch: Any
) -> None:
    """y[i][j] = epilogue(inverse transform of the components m + f·plane); `residual`: distance from y to it."""


_call_forward = MicroKernel(forward).caller()
_call_backward = MicroKernel(backward).caller()


@inline
def _patch(tile, args, source, row, column, worker):
    """The input tile at (row, column), which crosses the border, as a dense tile with zeros around it."""
    pixel = 4 * tile.lanes
    start = args.patch + worker * args.patch_step
    target = start
    for i in range(args.in_tile_height):
        inside = 0 <= row + i < args.in_height
        for j in range(args.in_tile_width):
            if inside and 0 <= column + j < args.in_width:
                copy_vector(tile, source + (row + i) * args.x_h + (column + j) * pixel, target)
            else:
                zero_vector(tile, target)
            target += pixel
    return start


@inline
def _tile_place(args, index):
    """Image, row and column of the output of tile `index`."""
    tiles = args.grid_rows * args.grid_columns
    place = index % tiles
    row = min(place // args.grid_columns * args.tile_height, args.height - args.tile_height)
    column = min(place % args.grid_columns * args.tile_width, args.width - args.tile_width)
    return index // tiles, row, column


@inline
def _forward(tile, args, first, count, v, worker):
    """Transforms of tiles first … first+count-1, all input channels."""
    pixel = 4 * tile.lanes
    scratch = args.scratch + worker * args.scratch_step
    for index in range(count):
        image, row, column = _tile_place(args, first + index)
        row -= args.pad_top
        column -= args.pad_left
        inner = (
            row >= 0
            and column >= 0
            and row + args.in_tile_height <= args.in_height
            and column + args.in_tile_width <= args.in_width
        )
        for block in range(args.channel_blocks):
            source = args.x + image * args.x_image + block * args.x_cb
            line = args.x_h
            if inner:
                source += row * line + column * pixel
            else:
                source = _patch(tile, args, source, row, column, worker)
                line = args.in_tile_width * pixel
            target = v + (block * args.most + index) * pixel
            _call_forward(args.forward, source, line, pixel, target, args.v_plane, scratch)


@inline
def _multiply(tile, args, v, m, panel, next_panel, count):
    """All products of the block for a range of weight panels."""
    pixel = 4 * tile.lanes
    first = min(panel * args.tile_vectors, args.vectors - args.tile_vectors)
    columns = (count + args.tile_columns - 1) // args.tile_columns
    for product in range(args.products):
        for p in range(panel, next_panel):
            vector = min(p * args.tile_vectors, args.vectors - args.tile_vectors) - first
            w = args.w + (product * args.panels + p) * args.panel_bytes
            following = 1 if p + 1 < next_panel else args.panels - (next_panel - panel) + 1  # panel of weights
            call_gemm_strip(
                args.gemm,
                v + product * args.v_plane,
                0,
                args.table,
                args.segments,
                0,
                w,
                m + product * args.m_plane + vector * args.most * pixel,
                0,
                args.most * pixel,
                0,
                0,
                0,
                w + following * args.panel_bytes,
                0,
                0,
                columns,
                count,
            )


@inline
def _copy_pixels(tile, source, source_line, target, target_line, rows, columns):
    """Copy rows × columns pixels of one channel block; byte steps between rows."""
    pixel = 4 * tile.lanes
    for i in range(rows):
        for j in range(columns):
            copy_vector(tile, source + i * source_line + j * pixel, target + i * target_line + j * pixel)


@inline
def _backward(tile, args, first, count, m, panel, next_panel, worker):
    """Inverse transforms and epilogue of the block for a range of weight panels.

    A tile that overlaps its predecessors is finished in a patch, and only its own pixels are stored: the same pixel
    computed from another tile differs in rounding, and the two tiles may be two workers'.
    """
    pixel = 4 * tile.lanes
    scratch = args.scratch + worker * args.scratch_step
    patch = args.patch + worker * args.patch_step
    patch_line = args.tile_width * pixel
    patch_residual = patch + args.tile_height * patch_line
    first_vector = min(panel * args.tile_vectors, args.vectors - args.tile_vectors)
    for vector in range(first_vector, min(next_panel * args.tile_vectors, args.vectors)):
        bias = args.bias + vector * pixel
        for index in range(count):
            image, row, column = _tile_place(args, first + index)
            source = m + ((vector - first_vector) * args.most + index) * pixel
            y = args.y + image * args.y_image + vector * args.y_vector + row * args.y_line + column * pixel
            residual = args.residual - args.y
            over = (-row) % args.tile_height  # rows and columns of predecessors
            across = (-column) % args.tile_width
            if over == 0 and across == 0:
                _call_backward(args.backward, source, args.m_plane, y, args.y_line, pixel, bias, residual, scratch)
                continue
            if residual != 0:
                _copy_pixels(
                    tile, y + residual, args.y_line, patch_residual, patch_line, args.tile_height, args.tile_width
                )
            residual = patch_residual - patch
            _call_backward(args.backward, source, args.m_plane, patch, patch_line, pixel, bias, residual, scratch)
            own = over * patch_line + across * pixel
            y += over * args.y_line + across * pixel
            rows = args.tile_height - over
            _copy_pixels(tile, patch + own, patch_line, y, args.y_line, rows, args.tile_width - across)


@kernel(
    "gemm tile_vectors tile_columns forward backward x y w bias residual table segments panel_bytes panels "
    "vectors products chunk chunks tiles blocks most grid_rows grid_columns tile_height tile_width in_tile_height "
    "in_tile_width height width in_height in_width pad_top pad_left channel_blocks x_image x_cb x_h y_image "
    "y_vector y_line v v_step v_plane m m_step m_plane patch patch_step scratch scratch_step"
)
def tiled(tile, worker, workers, args):
    """y = epilogue(convolution of x and w) for blocked x and y; see the module."""
    units = args.blocks * args.chunks
    v = args.v + worker * args.v_step
    m = args.m + worker * args.m_step
    done = -1
    for unit in range(units * worker // workers, units * (worker + 1) // workers):
        block = unit // args.chunks
        chunk = unit % args.chunks
        first = args.tiles * block // args.blocks
        count = args.tiles * (block + 1) // args.blocks - first
        if done != block:
            done = block
            _forward(tile, args, first, count, v, worker)
        last = args.panels * (chunk + 1) // args.chunks
        panel = args.panels * chunk // args.chunks
        while panel < last:
            next_panel = min(panel + args.chunk, last)
            _multiply(tile, args, v, m, panel, next_panel, count)
            _backward(tile, args, first, count, m, panel, next_panel, worker)
            panel = next_panel
