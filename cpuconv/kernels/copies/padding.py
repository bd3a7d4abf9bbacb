"""Padding of tensors: copies of the input and of its edges, and of a constant.

An axis of the output is cut into stretches: the input itself, and the padding before and after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from cpuconv.kernels.binding.constants import Constants
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.copies.tensor_views import Cut, broadcast, cut

_MAX_COPIES = 16  # maximum copies per padding; more are not worth their calls


class Stretch(NamedTuple):
    """A range of an output axis: start, size, and the slice of the input that fills it (None: the constant)."""

    start: int
    size: int
    source: Cut | None


Stretches = list[Stretch]  # of one axis, the input's own range first


def is_unpadded(stretches: Stretches, size: int) -> bool:
    """Whether an axis of `size` elements is unpadded."""
    return stretches == [Stretch(0, size, Cut(0, size))]


def padded(mode: str, shape: Sequence[int], pads: Sequence[tuple[int, int]]) -> list[Stretches] | None:
    """Stretches of every axis; `pads` are elements before and after. None where kernels support no such padding."""
    stretches = []
    for size, pair in zip(shape, pads, strict=True):
        found = _stretches(mode, size, *pair)
        if found is None:
            return None
        stretches.append(found)
    copies = math.prod(len([each for each in axis if each.source]) for axis in stretches)
    return stretches if copies <= _MAX_COPIES else None


def _stretches(mode: str, size: int, before: int, behind: int) -> Stretches | None:
    """Stretches of one padded axis, the input's own first; None where the padding needs more than three."""
    low, high = max(0, -before), size - max(0, -behind)
    before, behind, kept = max(0, before), max(0, behind), high - low
    most = {"constant": before + behind, "edge": before + behind, "reflect": kept - 1, "wrap": kept}[mode]
    if kept < 1 or max(before, behind) > most:
        return None
    ends = {
        "constant": (None, None),
        "edge": (Cut(low, before, 0), Cut(high - 1, behind, 0)),
        "reflect": (Cut(low + before, before, -1), Cut(high - 2, behind, -1)),
        "wrap": (Cut(high - before, before), Cut(low, behind)),
    }[mode]
    stretches = [Stretch(before, kept, Cut(low, kept)), Stretch(0, before, ends[0])]
    return [each for each in (*stretches, Stretch(before + kept, behind, ends[1])) if each.size]


def padding_steps(
    processor: Processor,
    space: Space,
    constants: Constants,
    x: TensorView,
    y: TensorView,
    stretches: Sequence[Stretches],
    value: float,
) -> list[Step]:
    """Make one copy per combination of stretches of all axes, and one fill per stretch without a source.

    What was written into the padded tensor is not copied.
    """
    steps: list[Step] = []
    for choice in product(*([each for each in axis if each.source] for axis in stretches)):
        source = cut(x, [each.source for each in choice if each.source])
        part = cut(y, [Cut(*each[:2]) for each in choice])
        if (source.ref, source.strides) != (part.ref, part.strides):
            steps += move_tensor(processor, space, source, part)
    done: list[Cut] = []  # ranges of the previous axes that are not filled with the constant
    for at, axis in enumerate(stretches):
        for each in axis:
            if each.source is None:
                part = cut(y, [*done, Cut(*each[:2]), *(Cut(0, size) for size in y.shape[at + 1 :])])
                steps += move_tensor(processor, space, _constant(constants, value, part), part)
        done.append(Cut(*axis[0][:2]))
    return steps


def _constant(constants: Constants, value: float, like: TensorView) -> TensorView:
    """A constant tensor in the form of another one; most of its elements share memory."""
    if like.block == 1:
        line = np.full(like.shape[-1:], value, like.dtype)
        return broadcast(TensorView.plain(constants.keep(line), line.shape, like.dtype), like.shape)
    lanes = np.zeros((like.physical[1], like.block), like.dtype)
    lanes.reshape(-1)[: like.shape[1]] = value
    return replace(like, ref=constants.keep(lanes), strides=(0, lanes.strides[0], 0, 0, lanes.strides[1]))
