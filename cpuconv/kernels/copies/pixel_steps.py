"""Moves between NHWC pixels that do not fill 32-bit groups, and blocks longer than them or of at least 16 bytes."""

from __future__ import annotations

from cpuconv.kernels.binding.steps import Args, Space, Step
from cpuconv.kernels.copies.group_steps import pixels_per_strip, views_of
from cpuconv.kernels.copies.movement import COSTS, Image
from cpuconv.kernels.copies.pixels import PixelTile, move_pixels
from cpuconv.kernels.emit.interleave import QUAD
from cpuconv.problem.integers import divide
from cpuconv.symbolic.sizes import applied

_WORD, _PIXELS = 8, 16  # bytes per move of a pixel's partial group; minimum row of pixels shorter than that
_STRIP = 64  # maximum pixels whose channels are copied block by block


def supports(image: Image) -> PixelTile | None:
    """Select the tile for a movement; None between other views, or where pixels fill 32-bit groups."""
    read, written = views_of(image)
    packs = written.together > 1 and not written.all
    fine, coarse = (written, read) if packs else (read, written)
    bytes_, block = image.channels * image.size, fine.together * image.size
    if fine.all or not coarse.all or bytes_ % 4 == 0 or block < 4 or bytes_ > block < QUAD:
        return None
    if bytes_ < _WORD and not (image.width >= _PIXELS and coarse.pixel > 0):
        return None
    return PixelTile(min(image.isa.lanes, max(4, block // 4)), packs, min(_WORD, block))


def cost(image: Image) -> float:
    """Cycles per cache line."""
    return 2 * COSTS.vector


def bind(image: Image, tile: PixelTile, space: Space) -> Step:
    """Make the call of the kernel."""
    width, source, target, outer = image.width, image.source, image.target, image.n * image.rows
    block = (target if tile.packs else source).block * image.size
    bytes_ = image.channels * image.size
    blocks = divide(bytes_, block)
    strip = applied(pixels_per_strip, width, _PIXELS, _STRIP, outer, image.threads)
    across = {"x": block if tile.packs else source.cb, "y": target.cb if tile.packs else block}
    args: Args = {
        "x": image.x,
        "y": image.y,
        "units": outer * (width // strip),
        "strips": width // strip,
        "strip": strip,
        "width": width,
        "rows": image.rows,
        "blocks": blocks,
        "block": block,
        "end": bytes_ - (blocks - 1) * block,
        "alone": int(bytes_ < tile.word),
    }
    for prefix, view in (("x", source), ("y", target)):
        steps = {"image": view.n, "h": view.h, "block": across[prefix], "pixel": view.w}
        args |= {f"{prefix}_{name}": step for name, step in steps.items()}
    return Step(move_pixels, tile, args)
