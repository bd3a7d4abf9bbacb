"""Tensors in contiguous memory, with one axis last if wanted, around kernels that need it."""

from __future__ import annotations

from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Space, Step
from cpuconv.kernels.binding.tensor_view import DENSE, TensorView
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.copies.tensor_views import permuted


def ending_in(x: TensorView, axis: int) -> TensorView:
    """View a tensor with an axis last."""
    return permuted(x, [*(other for other in range(len(x.shape)) if other != axis), axis])


def packed_input(processor: Processor, space: Space, x: TensorView) -> tuple[TensorView, list[Step]]:
    """A tensor in contiguous memory, and the calls that copy it there, if any."""
    if x.format == DENSE:
        return x, []
    copied = TensorView.plain(space.reserve(x.size), x.shape, x.dtype)
    return copied, move_tensor(processor, space, x, copied)


def packed_output(processor: Processor, space: Space, y: TensorView) -> tuple[TensorView, list[Step]]:
    """Contiguous memory for a result, and the calls that then copy it to `y`, if it is not there."""
    if y.format == DENSE:
        return y, []
    made = TensorView.plain(space.reserve(y.size), y.shape, y.dtype)
    return made, move_tensor(processor, space, made, y)
