"""Moves of tensors: of all kinds of loops that support a movement, the one with the lowest modelled cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter

import numpy as np

from cpuconv.elements import F32, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Operand, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies import copying, group_steps, pixel_steps, reorder_steps, strip_steps
from cpuconv.kernels.copies.movement import Image, Strided, image_movements, known, tensor_movements

KINDS = {Image: (group_steps, pixel_steps, strip_steps, reorder_steps), Strided: (copying,)}
"""Modules of kinds of loops, by the description of a movement that they take. Each has `supports(movement)`, which
returns its tile or None, `cost(movement)`, in cycles per cache line, and `bind(movement, tile, space)`, its call."""


def move(movements: Iterable[Image | Strided], space: Space) -> Step:
    """Make the call of the cheapest loops that support a movement, in one of its descriptions.

    Costs are compared for the current numbers of symbolic sizes. What loops need of sizes is recorded.
    """
    numbers = [(each, known(each)) for each in movements]
    ranked = [(kind.cost(number), kind, each) for each, number in numbers for kind in KINDS[type(each)]]
    for _, kind, movement in sorted(ranked, key=itemgetter(0)):
        tile = kind.supports(movement)
        if tile is not None:
            return kind.bind(movement, tile, space)
    raise AssertionError(f"no loops for {ranked}")


def move_image(
    isa: Isa,
    space: Space,
    shape_nchw: tuple[int, int, int, int],
    x: Operand,
    y: Operand,
    threads: int,
    element: Element = F32,
) -> Step:
    """Make one parallel call that moves the (N, C, H, W) activation `x` to `y`; tail channels of `y` are zero."""
    return move(image_movements(isa, shape_nchw, x, y, threads, element), space)


def move_tensor(
    processor: Processor, space: Space, x: TensorView, y: TensorView, table: np.ndarray | None = None
) -> list[Step]:
    """Make the calls that copy a tensor to another of the same shape: one, or none of empty tensors.

    They may have any forms and strides; `table` as for `tensor_movements`.
    """
    if 0 in x.shape:
        return []
    step = move(tensor_movements(processor, x, y, table), space)
    return [replace(step, parts=processor.parts(x.size + y.size))]
