"""Moves of activations between layouts as transpositions of pieces, where views allow; what the tiles are."""

from __future__ import annotations

from typing import NamedTuple

from cpuconv.elements import F32, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.steps import Args, Operand, Space, Step
from cpuconv.kernels.copies.matrices import MatrixTile, transpose_pieces
from cpuconv.kernels.copies.moving import lines_apart, move_step
from cpuconv.kernels.copies.views import plane
from cpuconv.kernels.emit.interleave import QUAD
from cpuconv.problem.integers import divide
from layouts import Strides

_PIECES = (1, 2, 4, 8)  # bytes of one
_OPEN = 4  # lines of a set of the first cache that may be open at a time
_FEW = 8  # sets of pixels: where they are in no more, bundles of vectors leave fewer lines open
_STREAM = 512  # pixels of a strip of blocks
_THREE = 3  # pieces of a pixel that are moved at once, as one of four would be


class _View(NamedTuple):
    """A side of a move: channels that lie side by side, whether they are all of them, and bytes from pixel to pixel."""

    together: int
    all: bool
    pixel: int


def transpose_step(
    isa: Isa,
    space: Space,
    shape_nchw: tuple[int, int, int, int],
    x: Operand,
    y: Operand,
    threads: int,
    element: Element = F32,
) -> Step:
    """`move_step`, by transpositions of pieces where they serve."""
    n, channels, height, width = shape_nchw
    rows, width, (source, target) = plane(height, width, x.strides, y.strides)
    read, written = (_view(view, channels, element.bytes) for view in (source, target))
    tile = None if read is None or written is None else matrix_tile(isa, channels, width, read, written, element)
    if tile is None or read is None or written is None:
        return move_step(isa, space, shape_nchw, x, y, threads, element)
    fine, coarse = (read, written) if tile.packs else (written, read)
    pieces = channels // fine.together
    block = coarse.together // fine.together
    blocks = divide(pieces, block)
    longest = _OPEN * lines_apart(coarse.pixel) if coarse.all else _STREAM
    strip = min(width, max(tile.pixels, longest))
    strips = width // strip
    lines, pixels = (source, target) if tile.packs else (target, source)
    of_lines = {"image": lines.n, "h": lines.h, "block": block * lines.cb, "line": lines.cb, "pixel": tile.size}
    across = 0 if coarse.all else pixels.cb
    of_pixels = {"image": pixels.n, "h": pixels.h, "block": across, "line": tile.size, "pixel": pixels.w}
    xs, ys = (of_lines, of_pixels) if tile.packs else (of_pixels, of_lines)
    args: Args = {
        "x": x.ref,
        "y": y.ref,
        "units": n * rows * strips * blocks,
        "strips": strips,
        "strips_first": 1 if coarse.all else strips,
        "blocks_first": blocks if coarse.all else 1,
        "strip": strip,
        "width": width,
        "rows": rows,
        "blocks": blocks,
        "pieces": pieces,
        "block": block,
        "stored": blocks * block if tile.packs else pieces,
        **{f"x_{name}": step for name, step in xs.items()},
        **{f"y_{name}": step for name, step in ys.items()},
    }
    return Step(transpose_pieces, tile, args)


def _view(view: Strides, channels: int, size: int) -> _View | None:
    """None: channels or pixels lie otherwise."""
    if view.block > 1:
        return _View(view.block, False, view.w) if view.c == size and not view.block & view.block - 1 else None
    if view.w == size:
        return _View(1, False, size)
    return _View(channels, True, view.w) if view.cb == size else None


def matrix_tile(
    isa: Isa, channels: int, width: int, read: _View, written: _View, element: Element
) -> MatrixTile | None:
    """What is transposed at once, if such views of rows of `width` pixels can be."""
    packs = read.together < written.together
    fine, coarse = (read, written) if packs else (written, read)
    size = fine.together * element.bytes
    if element.bytes == 4 or coarse.all and lines_apart(coarse.pixel) <= _FEW:
        return None
    if size not in _PIECES or fine.pixel != size or fine.together == coarse.together or channels % fine.together:
        return None
    pieces, block = channels // fine.together, coarse.together // fine.together
    bytes_ = min(block * size, 4 * isa.lanes if packs else QUAD)
    at_once = 1 << (bytes_ // size).bit_length() - 1
    if block == _THREE and coarse.pixel == _THREE * size < QUAD:
        at_once = _THREE
    some = not coarse.all and pieces % (block if packs else at_once) != 0
    dense = at_once * size == coarse.pixel < QUAD
    for lanes in (each for each in (16, 8, 4) if each <= isa.lanes):
        tile = MatrixTile(lanes, size, at_once, packs, dense, some)
        if width >= tile.pixels:
            return tile
    return None
