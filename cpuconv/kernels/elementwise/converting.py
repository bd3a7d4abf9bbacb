"""Copies between tensors of different floating-point types."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpuconv.elements import OF_DTYPE
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Ref, Space, Step
from cpuconv.kernels.binding.tensor_view import FLOAT32, TensorView, image_shape
from cpuconv.kernels.copies.bf16_parts import parts_step
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.elementwise.driver import elementwise_steps
from cpuconv.kernels.elementwise.expression import Operand
from cpuconv.kernels.elementwise.loop_nests import crossed


def converted(processor: Processor, space: Space, x: TensorView, y: TensorView) -> list[Step]:
    """Make the calls that copy one tensor to another of the same shape, with conversion of floating-point types.

    Both have one dtype, or float32 and bfloat16 or parts of it.
    """
    if x.dtype == y.dtype:
        return move_tensor(processor, space, x, y)
    for parts, other in ((y, x), (x, y)):
        if parts.element.parts > 1:
            return _converted_parts(processor, space, parts, other, joins=parts is x)
    if (x.block > 1) == (y.block > 1) and not crossed(x, y, processor.isa.lanes):
        return elementwise_steps(processor, Operand(0), y, [x])
    if x.block > 1 and x.dtype != FLOAT32:
        between = _reserved(processor, space, x, y.dtype)
        return [*elementwise_steps(processor, Operand(0), between, [x]), *move_tensor(processor, space, between, y)]
    between = _reserved(processor, space, y, x.dtype)
    return [*move_tensor(processor, space, x, between), *elementwise_steps(processor, Operand(0), y, [between])]


def _converted_parts(
    processor: Processor, space: Space, parts: TensorView, other: TensorView, joins: bool
) -> list[Step]:
    """Make the calls that split a tensor to `parts`, or that join these to it."""
    between, moves = other, list[Step]()
    if other.block == 1 or other.dtype != FLOAT32:
        between = TensorView.blocked(Ref(""), other.shape, processor.isa.lanes)
        between = replace(between, ref=space.reserve(between.size))
        moves = converted(processor, space, *((between, other) if joins else (other, between)))
    step = parts_step(
        processor.isa.lanes,
        image_shape(parts.shape),
        between.operand,
        parts.operand,
        parts.element,
        joins=joins,
    )
    step = replace(step, parts=processor.parts(between.size + parts.size))
    return [step, *moves] if joins else [*moves, step]


def _reserved(processor: Processor, space: Space, like: TensorView, dtype: np.dtype) -> TensorView:
    """Reserve workspace for a tensor of another type with the order of another one's axes."""
    if like.block > 1:
        block = processor.isa.block(OF_DTYPE[dtype])
        sized = TensorView.blocked(Ref(""), like.shape, block, None, dtype)
    elif len(like.shape) in (3, 4) and like.shape[1] > 1 and like.strides[1] == like.dtype.itemsize:
        sized = TensorView.channels_last(Ref(""), like.shape, dtype)
    else:
        sized = TensorView.plain(Ref(""), like.shape, dtype)
    return replace(sized, ref=space.reserve(sized.size))
