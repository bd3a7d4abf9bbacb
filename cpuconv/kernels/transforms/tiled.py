"""Convolution in a transformed domain, by tiles: transform → one GEMM per frequency → inverse and epilogue.

This is the driver of Winograd and FFT. A table lists the tiles of an output plane. Tiles are cut into blocks whose
transforms stay in L2. For each block, all channels of its tiles are transformed. Then, for each chunk of output
channels, the GEMMs of all planes are computed and transformed back. A plane is one real component of the transform. A
GEMM reduces one plane over channels, or a pair of planes that are the real and imaginary parts of complex numbers.
Single planes come first, then pairs. Images may overlap: each has all but the first channels of the one before it, as
depth slices of a window have. Then tiles of one place of successive images are adjacent, a block transforms each vector
of channels once, and GEMMs read overlapping tiles. The pixels of a tile are row_step and column_step apart, which makes
a dilated convolution a dense one. The transforms and the GEMM are micro-kernels, passed by address; the arguments of
the transforms are those of `forward` and `backward` below.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.kernels.emit.intrinsics import copy_part, copy_vector, fill_vector, word, zero_vector
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.products.gemm import call_gemm_strip
from cpuconv.kernels.products.matrix_strip import load_configuration, release_tiles
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class TiledTile:
    """Lanes of the instruction set, and the layout of operands that are not float32.

    Attributes
    ----------
    x_vectors, y_vectors : int
        Vectors of a transform per pixel of an input block, and of an output block.
    rows : int
        Rows of the epilogue's table per vector of output channels.
    filled : bool
        Padding is `fill`, not zero.
    tailed : bool
        The last vector of output channels has a transform of its own.
    last_vectors : int
        Vectors that this transform stores, including the zeros that pad its block.
    parts : int
        Components that the forward transform stores for one: bfloat16 parts of it, which AMX multiplies; 1: itself.
    overlapping : bool
        Tiles are in the order (place, image), of overlapping images.
    """

    lanes: int
    x_vectors: int = 1
    y_vectors: int = 1
    rows: int = 1
    filled: bool = False
    tailed: bool = False
    last_vectors: int = 1
    parts: int = 1
    overlapping: bool = False


def forward(tile: Any, builder: Any, x: Any, line: Any, pixel: Any, v: Any, plane: Any, scratch: Any) -> None:
    """v + f·plane = component f of the transform of the input tile at x.

    Parameters
    ----------
    x, v, scratch
        Addresses of the tile, of component 0, and of the worker's scratch memory.
    line, pixel, plane
        Byte strides: of the tile's rows, of its pixels, and of components.
    """


def backward(
    tile: Any, builder: Any, m: Any, plane: Any, y: Any, line: Any, pixel: Any, bias: Any, residual: Any, scratch: Any
) -> None:
    """y[i][j] = epilogue(inverse transform of the components m + f·plane).

    Parameters
    ----------
    m, y, bias, scratch
        Addresses of component 0, of the output tile, of the bias, and of the worker's scratch memory.
    plane, line, pixel
        Byte strides: of components, of output rows, and of pixels.
    residual
        Distance in bytes from y to the residual.
    """


_call_forward = MicroKernel(forward).caller()
_call_backward = MicroKernel(backward).caller()


@inline
def _patch(tile, args, source, row, column, worker):
    """Copy the input tile at (row, column), which crosses the border, to a dense tile with padding."""
    pixel = 4 * tile.lanes
    start = args.patch + worker * args.patch_step
    target = start
    for i in range(args.in_tile_height):
        line = row + i * args.row_step
        inside = 0 <= line < args.in_height
        for j in range(args.in_tile_width):
            place = column + j * args.column_step
            if inside and 0 <= place < args.in_width:
                copy_vector(tile, source + line * args.x_h + place * pixel, target)
            elif tile.filled:
                fill_vector(tile, target, args.fill)
            else:
                zero_vector(tile, target)
            target += pixel
    return start


@inline
def _forward(tile, args, x, piece, first, count, v, worker):
    """Transform tiles first … first+count-1: all input channels of the group that starts with vector `piece` at x."""
    pixel = 4 * tile.lanes
    scratch = args.scratch + worker * args.scratch_step
    outer = first // args.inner
    inner = first - outer * args.inner
    for index in range(min(count + args.halo, args.total - first)):
        image, place = (inner, outer) if tile.overlapping else (outer, inner)
        row = word(tile, args.places, 4 * place) - args.pad_top
        column = word(tile, args.places, 4 * place + 1) - args.pad_left
        inside = (
            row >= 0
            and column >= 0
            and row + args.reach_rows <= args.in_height
            and column + args.reach_columns <= args.in_width
        )
        for block in range(args.channel_blocks):
            source = x + image * args.x_image + (piece + block) // tile.x_vectors * args.x_cb
            line = args.row_step * args.x_h
            step = args.column_step * pixel
            if inside:
                source += row * args.x_h + column * pixel
            else:
                source = _patch(tile, args, source, row, column, worker)
                line = args.in_tile_width * pixel
                step = pixel
            if tile.x_vectors > 1:
                source += (piece + block) % tile.x_vectors * (pixel // tile.x_vectors)
            target = v + (block * args.held + index) * pixel
            if tile.parts > 1:  # two vectors of parts are a pixel
                target = v + (block // 2 * args.held + index) * pixel + block % 2 * (pixel // 2)
            _call_forward(args.forward, x=source, line=line, pixel=step, v=target, plane=args.v_plane, scratch=scratch)
        inner += 1
        if inner == args.inner:
            inner = 0
            outer += 1


@inline
def _multiply(tile, args, w, v, m, panel, next_panel, count):
    """Compute all GEMMs of the block for a range of weight panels."""
    pixel = 4 * tile.lanes
    first = min(panel * args.tile_vectors, args.vectors - args.tile_vectors)
    columns = (count + args.tile_columns - 1) // args.tile_columns
    plane = 0
    while plane < args.planes:
        wide = 1 if plane < args.singles else 2
        panel_bytes = wide * args.panel_bytes
        for p in range(panel, next_panel):
            vector = min(p * args.tile_vectors, args.vectors - args.tile_vectors) - first
            panel_weights = w + plane * args.panels * args.panel_bytes + p * panel_bytes
            following = 1 if p + 1 < next_panel else args.panels - (next_panel - panel) + 1  # panels to the next one
            call_gemm_strip(
                args.gemm if wide == 1 else args.pair_gemm,
                x=v + plane * tile.parts * args.v_plane,
                xrow=args.v_plane,
                table=args.table,
                segments=args.segments,
                kstep=args.v_plane if tile.parts > 1 else 0,
                w=panel_weights,
                y=m + plane * args.m_plane + vector * args.most * pixel,
                yrow=args.m_plane,
                yvec=args.most * pixel,
                bias=0,
                residual=0,
                suspended_sums=0,
                prefetch_address=panel_weights + following * panel_bytes,
                turn=0,
                fetch_step=wide * args.fetch_step,
                shares=args.shares,
                tails=args.tails,
                valid=0,
                first=0,
                last=columns,
                width=count,
            )
        plane += wide


@inline
def _copy_pixels(tile, source, source_line, source_step, target, target_line, target_step, rows, columns, vectors):
    """Copy rows × columns pixels of one channel block, `vectors` vectors each; byte strides of rows and of pixels."""
    for i in range(rows):
        for j in range(columns):
            from_ = source + i * source_line + j * source_step
            to = target + i * target_line + j * target_step
            if tile.y_vectors == 1:
                copy_vector(tile, from_, to)
            else:
                for piece in range(vectors):
                    at = piece * (4 * tile.lanes // tile.y_vectors)
                    copy_part(tile, from_ + at, to + at)


@inline
def _backward(tile, args, group, first, count, m, panel, next_panel, worker):
    """Compute inverse transforms and epilogue of the block for a range of weight panels.

    A tile that crosses the far edges is computed in a patch, and only the pixels inside the plane are copied from it.
    """
    pixel = 4 * tile.lanes
    scratch = args.scratch + worker * args.scratch_step
    patch = args.patch + worker * args.patch_step
    patch_line = args.tile_width * pixel
    patch_residual = patch + args.tile_height * patch_line
    line = args.row_step * args.y_line
    step = args.column_step * pixel
    distance = args.residual - args.y
    first_outer = first // args.inner
    first_vector = min(panel * args.tile_vectors, args.vectors - args.tile_vectors)
    for vector in range(first_vector, min(next_panel * args.tile_vectors, args.vectors)):
        number = group * args.vectors + vector
        bias = args.bias + number * (tile.rows * pixel)
        plane = args.y + number // tile.y_vectors * args.y_vector
        if tile.tailed:
            plane += number % tile.y_vectors * (pixel // tile.y_vectors)
        last = tile.tailed and vector == args.vectors - 1
        stored = tile.last_vectors if last else 1
        outer, inner = first_outer, first - first_outer * args.inner
        for index in range(count):
            image, place = (inner, outer) if tile.overlapping else (outer, inner)
            inner += 1
            if inner == args.inner:
                inner = 0
                outer += 1
            if tile.overlapping and image >= args.images:
                continue
            source = m + ((vector - first_vector) * args.most + index) * pixel
            rows = word(tile, args.places, 4 * place + 2)
            columns = word(tile, args.places, 4 * place + 3)
            y = plane + image * args.y_image + word(tile, args.places, 4 * place) * args.y_line
            y += word(tile, args.places, 4 * place + 1) * pixel
            backward = args.backward_last if last else args.backward
            if rows == args.tile_height and columns == args.tile_width:
                _call_backward(
                    backward,
                    m=source,
                    plane=args.m_plane,
                    y=y,
                    line=line,
                    pixel=step,
                    bias=bias,
                    residual=distance,
                    scratch=scratch,
                )
            else:
                if distance != 0:
                    _copy_pixels(tile, y + distance, line, step, patch_residual, patch_line, pixel, rows, columns, 1)
                _call_backward(
                    backward,
                    m=source,
                    plane=args.m_plane,
                    y=patch,
                    line=patch_line,
                    pixel=pixel,
                    bias=bias,
                    residual=patch_residual - patch,
                    scratch=scratch,
                )
                _copy_pixels(tile, patch, patch_line, pixel, y, line, step, rows, columns, stored)


@kernel(
    "gemm pair_gemm tile_vectors tile_columns forward backward x y w bias residual table segments panel_bytes "
    "panels vectors planes singles chunk chunks places inner images halo groups total blocks most held tile_height "
    "tile_width in_tile_height in_tile_width row_step column_step reach_rows reach_columns in_height in_width "
    "pad_top pad_left channel_blocks x_image x_cb x_h y_image y_vector y_line v v_step v_plane m m_step m_plane "
    "patch patch_step scratch scratch_step fill backward_last fetch_step shares tails configuration"
)
def tiled(tile, worker, before, part, parts, args):
    """y = epilogue(convolution of x and w) for blocked x and y; see the module.

    `places` has a row, a column, rows and columns for each tile of an output plane. `total` is the number of tiles of
    all images, cut into `blocks` blocks for each group; `inner` that of an image, or of a place with `halo` tiles more
    than `images`. A block has up to `most` tiles, and transforms `held` for each vector of channels.
    """
    if tile.parts > 1:
        load_configuration(tile, args.configuration)
    units = args.groups * args.blocks * args.chunks
    v = args.v + worker * args.v_step
    m = args.m + worker * args.m_step
    done = last_unit(units, before, parts) // args.chunks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        chunk = unit % args.chunks
        place = unit // args.chunks
        group = place // args.blocks
        block = place % args.blocks
        first = args.total * block // args.blocks
        count = args.total * (block + 1) // args.blocks - first
        if done != place:
            done = place
            vector = group * args.channel_blocks
            x = args.x + vector // tile.x_vectors * args.x_cb
            _forward(tile, args, x, vector % tile.x_vectors, first, count, v, worker)
        w = args.w + group * args.planes * args.panels * args.panel_bytes
        last = args.panels * (chunk + 1) // args.chunks
        panel = args.panels * chunk // args.chunks
        while panel < last:
            next_panel = min(panel + args.chunk, last)
            _multiply(tile, args, w, v, m, panel, next_panel, count)
            _backward(tile, args, group, first, count, m, panel, next_panel, worker)
            panel = next_panel
    if tile.parts > 1:
        release_tiles(tile)
