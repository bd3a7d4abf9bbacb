"""Arguments of kernels that compute planes from planes, in channel blocks or plain."""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import S8, U8, Element
from cpuconv.isa import Isa
from cpuconv.isa.typed import store_float
from cpuconv.isa.vector import Vector
from cpuconv.kernels.binding.arguments import stride_args
from cpuconv.kernels.binding.steps import Args
from cpuconv.kernels.binding.tensor_view import TensorView, blocked_shape

FIELDS = "x y units height width blocks x_image x_block y_image y_block"
"""Argument words made by `plane_args`."""


@dataclass(frozen=True)
class PlaneTile:
    """Lanes of the instruction set; blocks of `y` per block of `x`, whose elements are narrower; bytes of a pixel."""

    lanes: int
    side: int = 1
    pixel: int = 0

    @property
    def dense(self) -> bool:
        """Whether planes are not in channel blocks."""
        return self.pixel < 4 * self.lanes

    @classmethod
    def of(cls, isa: Isa, x: TensorView) -> PlaneTile:
        """The tile for planes with pixels like those of `x`."""
        return cls(isa.lanes, pixel=x.block * x.dtype.itemsize)


_ENDS = {U8: (0.0, 255.0), S8: (-128.0, 127.0)}


def store_nearest(vec: Vector, element: Element, value: Any, address: Any) -> None:
    """Element at address + element.bytes·i = lanes[i], float32; 8-bit elements are rounded to nearest and clamped."""
    if element in _ENDS:
        low, high = map(vec.constant, _ENDS[element])
        value = vec.round(vec.minimum(vec.maximum(value, low), high))
    store_float(vec, element, value, address)


def plane_args(x: TensorView, y: TensorView) -> Args:
    """Arguments for planes of `x` and of `y`, both in channel blocks or both dense; rows of `y` are the units of work.

    A plane of a dense tensor is a block of one channel.
    """
    n, blocks, height, width, _ = blocked_shape(y.shape, y.block)
    return {
        "x": x.ref,
        "y": y.ref,
        "units": n * blocks * height,
        "height": height,
        "width": width,
        "blocks": blocks,
        **stride_args("x", x.strides, "image block"),
        **stride_args("y", y.strides, "image block"),
    }
