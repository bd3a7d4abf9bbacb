"""Tail lanes of a blocked output back to zero, for activations that do not keep zero."""

from __future__ import annotations

from dataclasses import dataclass

from cpuconv.micro.intrinsics import zero_float
from cpuconv.runtime.kernel import kernel


@dataclass(frozen=True)
class ClearTile:
    """Lanes of the instruction set."""

    lanes: int


@kernel("y image batch pixels pixel valid block")
def clear_tail(tile, worker, workers, args):
    """Zero lanes valid … block-1 of every pixel of the channel block at y, for each image."""
    for n in range(args.batch):
        for p in range(args.pixels):
            place = args.y + n * args.image + p * args.pixel
            for lane in range(args.valid, args.block):
                zero_float(tile, place + 4 * lane)
