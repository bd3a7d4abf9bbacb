"""Copies between tensors of different floating-point types."""

from __future__ import annotations

import math

from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Space, Step
from cpuconv.kernels.binding.tensor_view import FLOAT32, TensorView
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.elementwise.driver import elementwise_steps
from cpuconv.kernels.elementwise.expression import Operand


def converted(processor: Processor, space: Space, x: TensorView, y: TensorView) -> list[Step]:
    """Make the calls that copy one tensor to another of the same shape, with conversion of floating-point types.

    Both have one dtype, or float32 and bfloat16. bfloat16 must be blocked; as a destination it may also be dense.
    """
    if x.dtype == y.dtype:
        return move_tensor(processor, space, x, y)
    if (x.block > 1) == (y.block > 1):
        return elementwise_steps(processor, Operand(0), y, [x])
    if y.block == 1 and y.dtype != FLOAT32:
        plain = TensorView.plain(space.reserve(math.prod(x.shape) * FLOAT32.itemsize), x.shape)
        return [*converted(processor, space, x, plain), *converted(processor, space, plain, y)]
    wide = [place for place in (x, y) if place.block > 1]  # the plain one is float32
    between = TensorView.blocked(space.reserve(_bytes(wide[0], processor)), x.shape, processor.isa.lanes)
    return [*converted(processor, space, x, between), *converted(processor, space, between, y)]


def _bytes(place: TensorView, processor: Processor) -> int:
    """Bytes of the tensor in blocks of float32."""
    return TensorView.blocked(place.ref, place.shape, processor.isa.lanes).size
