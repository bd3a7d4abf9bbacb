"""Views of a tensor in memory (`TensorView`): reshaped, permuted, broadcast or sliced by strides; no kernel runs.

A box is a slice of each axis: start, size and step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from cpuconv.kernels.binding.tensor_view import TensorView, image_shape
from cpuconv.kernels.copies.movement import merge_axes


class Cut(NamedTuple):
    """A slice of an axis: first index, number of elements, and step between them."""

    start: int
    size: int
    step: int = 1


Box = Sequence[Cut]  # one slice per axis


def reshaped(place: TensorView, shape: Sequence[int]) -> TensorView | None:
    """Reshape a tensor without a copy; None where no strides give that shape.

    A blocked tensor keeps its blocks if batch and channels are unchanged; with one pixel it may become plain.
    """
    if place.block > 1:
        n, c, *_ = place.shape
        if len(shape) in (3, 4) and tuple(shape[:2]) == (n, c):
            return place.at(0, shape, (*place.strides[:2], *_plane_strides(shape, place)))
        if math.prod(place.shape[2:]) > 1 or (n > 1 and c % place.block):
            return None
        image, _, _, _, lane = place.strides
        plain = replace(place, shape=(n, c), strides=(image, lane), block=1, array=None)
        return reshaped(plain, shape)
    strides = _regrouped(place.shape, place.strides, shape, place.dtype.itemsize)
    return None if strides is None else place.at(0, shape, strides)


def _plane_strides(shape: Sequence[int], place: TensorView) -> tuple[int, int, int]:
    """Byte strides of h, w and lane."""
    pixel = place.block * place.dtype.itemsize
    return image_shape(shape)[3] * pixel, pixel, place.dtype.itemsize


def _regrouped(
    shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int], itemsize: int
) -> tuple[int, ...] | None:
    """Strides with which axes of the sizes `wanted` visit the elements of the given axes; None if there are none."""
    runs = merge_axes(zip(shape, strides, strict=True))
    made, left, step = [], 1, itemsize
    for size in reversed(wanted):
        if size > 1 and left == 1:
            left, step = runs.pop()
        if left % size:
            return None
        made.append(step)
        left //= size
        step *= size
    return tuple(reversed(made))


def broadcast(place: TensorView, shape: Sequence[int]) -> TensorView:
    """Broadcast a plain tensor to a shape: new and expanded axes have stride 0."""
    missing = len(shape) - len(place.shape)
    steps = [0 if size == 1 else step for size, step in zip(place.shape, place.strides, strict=True)]
    return place.at(0, shape, [0] * missing + steps)


def permuted(place: TensorView, order: Sequence[int]) -> TensorView:
    """Permute the axes of a plain tensor."""
    return place.at(0, [place.shape[axis] for axis in order], [place.strides[axis] for axis in order])


def unpermuted(place: TensorView, order: Sequence[int]) -> TensorView:
    """Invert `permuted`."""
    return permuted(place, [list(order).index(axis) for axis in range(len(order))])


def repeats(x: TensorView, y: TensorView) -> tuple[TensorView, TensorView]:
    """Views of a plain tensor and of its tiling (ONNX Tile) with equal axes: a repeat axis before each axis."""
    axes = [(b // a, a) for a, b in zip(x.shape, y.shape, strict=True)]
    shape = [size for pair in axes for size in pair]
    read = [step for stride in x.strides for step in (0, stride)]
    written = [step for (_, size), stride in zip(axes, y.strides, strict=True) for step in (size * stride, stride)]
    return x.at(0, shape, read), y.at(0, shape, written)


def depth_and_space(deep: TensorView, flat: TensorView, block: int, together: bool) -> tuple[TensorView, TensorView]:
    """Views of both sides of DepthToSpace with equal axes: channels, block rows, rows in a block, block columns,
    columns in a block of `block` x `block` pixels. `together`: channels of a block are adjacent (CRD order, else DCR).
    """
    n, c, h, w, *lanes = deep.physical
    kept = c // (block * block)
    channel, row, column = (block * block, block, 1) if together else (1, block * kept, kept)
    step_n, step_c, step_h, step_w, *lane = deep.strides
    of_deep = (step_n, channel * step_c, step_h, row * step_c, step_w, column * step_c, *lane)
    step_n, step_c, step_h, step_w, *lane = flat.strides
    of_flat = (step_n, step_c, block * step_h, step_h, block * step_w, step_w, *lane)
    shape = (n, kept, h, block, w, block, *lanes)
    return (
        replace(deep, shape=shape, strides=of_deep, block=1),
        replace(flat, shape=shape, strides=of_flat, block=1),
    )


def whole(shape: Sequence[int], axis: int, taken: Cut) -> list[Cut]:
    """The box that slices one axis and takes all of the others."""
    return [taken if at == axis else Cut(0, size) for at, size in enumerate(shape)]


def cut(place: TensorView, box: Box) -> TensorView:
    """Slice a tensor; for a blocked one, the channels must be `whole_blocks`."""
    shape = tuple(each.size for each in box)
    if place.block == 1:
        taken, strides = list(box), list(place.strides)
    else:
        n, c, *plane = box
        blocks = Cut(c.start // place.block, c.size)
        h, w = plane if len(plane) == 2 else (Cut(0, 1), *plane)
        taken, strides = [n, blocks, h, w, Cut(0, place.block)], list(place.strides)
    offset = sum(each.start * stride for each, stride in zip(taken, strides, strict=True))
    return place.at(offset, shape, [each.step * stride for each, stride in zip(taken, strides, strict=True)])


def whole_blocks(channels: int, taken: Cut, lanes: int) -> bool:
    """Whether a slice of the channels is whole blocks, in order."""
    start, size, step = taken
    return start % lanes == 0 and (size % lanes == 0 or start + size == channels) and (step == 1 or size == 1)


def whole_planes(shape: Sequence[int], box: Box) -> bool:
    """Whether a box takes every plane wholly, and images in increasing order."""
    return box[0].step > 0 and all(each == Cut(0, size) for each, size in zip(box[2:], shape[2:], strict=True))


def other_channels(shape: Sequence[int], box: Box) -> bool:
    """Whether a box is a contiguous range of channels and takes all of the other axes."""
    return box[1].step == 1 and all(
        each == Cut(0, size) for each, size in zip(box, shape, strict=True) if each is not box[1]
    )


def stays_dense(shape: Sequence[int], box: Box) -> bool:
    """Whether a slice of a contiguous tensor is contiguous."""
    cuts = [axis for axis, each in enumerate(box) if each != Cut(0, shape[axis])]
    if not cuts:
        return True
    return box[cuts[-1]].step == 1 and math.prod(box[axis].size for axis in range(cuts[-1])) == 1
