"""Moves of activations between any two views, one vector of channels at a time."""

from __future__ import annotations

from cpuconv.elements import Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.steps import Args, Space, Step
from cpuconv.kernels.copies.movement import COSTS, FEW_SETS, LINE, OPEN, WAY, Image, count_l1_sets
from cpuconv.kernels.copies.reorder import BOTH, PACK, UNPACK, ReorderTile, reorder
from cpuconv.kernels.copies.rows import ANY, BLOCKED, CHANNELS, PLANES, ROWS, WORDS, RowTile
from cpuconv.kernels.copies.strips import VECTORS
from cpuconv.kernels.copies.views import row_tile, view_args
from cpuconv.problem.integers import divide
from cpuconv.symbolic.sizes import least
from layouts import Strides

# Pixels per unit: long streams; fewer pages, where vectors of channels alternate.
_CHUNK, _CHUNK_OF_ALL_CHANNELS = 512, 64


def _lanes(isa: Isa, channels: int, element: Element, *views: Strides) -> int:
    """32-bit lanes per vector: those that either view has adjacent, at most those of the instruction set."""
    together = max(view.block if view.block > 1 else channels if view.cb == element.bytes else 0 for view in views)
    wanted = min(isa.lanes, divide(together * element.bytes, 4) or isa.lanes)
    return next((lanes for lanes in (4, 8) if wanted <= lanes < isa.lanes), isa.lanes)


def _mode(source: RowTile, target: RowTile, block: int) -> tuple[int, bool]:
    """Select the mode for a target of block size `block`, and whether partial vectors need no buffer."""
    if target.kind == BLOCKED:
        return PACK, True
    if source.kind == BLOCKED:
        return UNPACK, block == 1  # tail lanes of a source need not be zero, those of a target must
    if target.kind == CHANNELS:
        return PACK, False
    if source.kind == CHANNELS:
        return UNPACK, False
    return BOTH, True


def _spare(mode: int, tile: RowTile, channels: int, source: Strides, target: Strides) -> int | None:
    """Pixels at the end of a chunk whose last vector of channels would reach past the chunk; None: all of them.

    A vector may be read past its pixel where the excess is dropped. It may be written past its pixel where the next
    pixels are written later: those of a single group, without gaps.
    """
    view = source if mode == UNPACK else target
    alone = channels <= tile.group and view.w == channels * tile.bytes
    if view.w <= 0 or not (target.block == 1 if mode == UNPACK else alone):
        return None
    return divide((-channels % tile.group) * tile.bytes, view.w)


def supports(image: Image) -> ReorderTile:
    """Select the tile for a movement."""
    element = image.element
    lanes = _lanes(image.isa, image.channels, element, image.source, image.target)
    read, written = (row_tile(lanes, view, element, image.channels) for view in (image.source, image.target))
    mode, parts = _mode(read, written, image.target.block)
    return ReorderTile(lanes, read, written, mode, parts)


def cost(image: Image) -> float:
    """Cycles per cache line."""
    tile = supports(image)
    kinds = {tile.source.kind, tile.target.kind}
    total = _evictions(image, kinds) + COSTS.buffer * (tile.mode == BOTH)
    if ANY in kinds:
        return total + COSTS.lane * LINE / image.size
    if kinds & {ROWS, WORDS, PLANES} and image.width < tile.source.least:
        return total + COSTS.short_row * LINE / image.size
    return total + COSTS.vector + COSTS.partial * (CHANNELS in kinds and image.channels % tile.target.each != 0)


def _evictions(image: Image, kinds: set[int]) -> float:
    """Cycles per cache line to fetch those again that were evicted before the next vector of channels.

    Where pixels share no sets, only copies of vectors evict them.
    """
    source, target = image.source, image.target
    if kinds == {BLOCKED}:  # vectors of a long block are far apart
        return COSTS.refetch * (max(source.block, target.block) > image.isa.block(image.element))
    far = [
        count_l1_sets(view.w)
        for view in (source, target)
        if view.block == 1 and view.cb == image.size and abs(view.w) * _CHUNK_OF_ALL_CHANNELS >= OPEN * WAY
    ]
    if not far or not kinds <= {*VECTORS} and min(far) == WAY // LINE:
        return 0.0
    return COSTS.evicted if min(far) <= FEW_SETS else COSTS.refetch


def bind(image: Image, tile: ReorderTile, space: Space) -> Step:
    """Make the call of the kernel."""
    channels, width, source, target = image.channels, image.width, image.source, image.target
    stored = divide(channels, target.block) * target.block
    by_pixel = CHANNELS in (tile.source.kind, tile.target.kind)  # the groups of a pixel share its cache lines and page
    chunk = least(width, _CHUNK_OF_ALL_CHANNELS if by_pixel else _CHUNK)
    groups, chunks = divide(stored, tile.group), divide(width, chunk)
    spare = _spare(tile.mode, tile.target, channels, source, target)
    buffer_step = chunk * 4 * tile.lanes if tile.mode == BOTH or not tile.parts else 0
    args: Args = {
        "x": image.x,
        "y": image.y,
        **worker_args("buffer", space, buffer_step, image.threads),
        "units": image.n * groups * image.rows * chunks,
        "channels": channels,
        "stored": stored,
        "groups": groups,
        "rows": image.rows,
        "chunks": chunks,
        "by_pixel": int(by_pixel),
        "chunk": chunk,
        "spare": width if spare is None else spare,
        "width": width,
        **view_args("x", source),
        **view_args("y", target),
    }
    return Step(reorder, tile, args)
