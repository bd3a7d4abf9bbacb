"""Kernels that make planes in channel blocks from such planes: the arguments that say where these lie."""

from __future__ import annotations

from dataclasses import dataclass

from cpuconv.kernels.binding.place import Place
from cpuconv.kernels.binding.steps import Args

FIELDS = "x y units height width blocks x_image x_block y_image y_block"
"""Words of `plane_args`."""


@dataclass(frozen=True)
class PlaneTile:
    """Lanes of the instruction set; blocks of `y` that are pieces of a block of `x`, whose elements are narrower."""

    lanes: int
    side: int = 1


def plane_args(x: Place, y: Place) -> Args:
    """Planes of `x` and of `y`, whose rows are the units of work; both lie in channel blocks."""
    n, blocks, height, width, _ = y.physical
    return {
        "x": x.ref,
        "y": y.ref,
        "units": n * blocks * height,
        "height": height,
        "width": width,
        "blocks": blocks,
        "x_image": x.strides[0],
        "x_block": x.strides[1],
        "y_image": y.strides[0],
        "y_block": y.strides[1],
    }
