"""Zero the tail lanes of a blocked output: an activation may map zero to another value, and 0·Inf is NaN."""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.transpose import keep_first
from cpuconv.runtime.kernel import kernel


@dataclass(frozen=True)
class ZeroTailTile:
    """Tile: 32-bit lanes of a vector, which is one pixel of a block; its first `valid` elements are channels."""

    lanes: int
    valid: int
    element: Element = F32


@emitter
def _mask_vector(tile: ZeroTailTile, vec: Vector, address: Any) -> None:
    """Zero the elements from `valid` on of the vector at `address`."""
    address = vec.pointer(address)
    vec.store(keep_first(vec, vec.load(address), I64(tile.valid), tile.element.bytes), address)


@kernel("y image batch pixels")
def zero_tail_lanes(tile, worker, before, part, parts, args):
    """Zero the tail lanes of every pixel of the channel block at y, for each image."""
    pixels = args.batch * args.pixels
    for p in range(pixels * part // parts, pixels * (part + 1) // parts):
        n = p // args.pixels
        _mask_vector(tile, args.y + n * args.image + (p - n * args.pixels) * 4 * tile.lanes)
