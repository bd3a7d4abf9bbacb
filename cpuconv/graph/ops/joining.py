"""Concatenation, splitting, slicing, padding and repetition.

Source: ONNX operators Concat, Split, Slice, Pad and Tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.elements import F32
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import EXACT, REQUIRED, Arrays, Inputs, Op, axis_in, given, integers, known
from cpuconv.graph.ops.traits import Int8, Movement, Sign
from cpuconv.graph.ops.views import blockable, view_offers
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import DENSE, STRIDED, TensorView, in_words, stored_as
from cpuconv.kernels.copies.lane_pick import pick_step
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.copies.padding import Stretches, is_unpadded, padded, padding_steps
from cpuconv.kernels.copies.tensor_views import (
    Box,
    Cut,
    cut,
    other_channels,
    repeats,
    stays_dense,
    whole,
    whole_blocks,
    whole_planes,
)
from cpuconv.symbolic.sizes import greatest, least


def _infer_concat(node: Node, inputs: Inputs) -> list[Value]:
    first = inputs[0].shape
    axis = axis_in(node["axis"], len(first))
    for value in inputs:
        if len(value.shape) != len(first) or any(
            a != b for at, (a, b) in enumerate(zip(value.shape, first, strict=True)) if at != axis
        ):
            raise ValueError(f"they differ on other axes than {axis}")
    total = sum(value.shape[axis] for value in inputs)
    return [Value((*first[:axis], total, *first[axis + 1 :]), inputs[0].dtype)]


def _infer_interleave(node: Node, inputs: Inputs) -> list[Value]:
    if node["axis"] or any(value.shape != inputs[0].shape for value in inputs):
        raise ValueError("the inputs must be as many images of one shape, and the axis 0")
    return _infer_concat(node, inputs)


def concat(node: Node, arrays: Arrays) -> np.ndarray:
    """Concatenate along an axis."""
    return np.concatenate(arrays, node["axis"])


def interleave_images(node: Node, arrays: Arrays) -> np.ndarray:
    """The first image of each input, then the second ones, and so on."""
    return np.stack(arrays, 1).reshape(-1, *arrays[0].shape[1:])


def _parts(node: Node, size: int, stated: np.ndarray | None) -> list[int]:
    """Sizes of the parts: as stated, or equal with a smaller last part."""
    if stated is not None:
        parts = integers(stated)
        if sum(parts) != size or len(parts) != len(node.outputs) or min(parts) < 0:
            raise ValueError(f"parts of {parts} do not make {size} in {len(node.outputs)} outputs")
        return parts
    count = node["num_outputs"] or len(node.outputs)
    if not len(node.outputs) <= count <= max(size, len(node.outputs)):
        raise ValueError(f"{size} cannot be split into {count}")
    each = -(-size // count)
    return [min(each, max(0, size - part * each)) for part in range(count)]


def split(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Split along an axis."""
    x, stated = arrays[0], given(arrays, 1)
    axis = axis_in(node["axis"], x.ndim)
    parts = _parts(node, x.shape[axis], stated)
    return tuple(np.split(x, list(accumulate(parts))[:-1], axis))


def _infer_split(node: Node, inputs: Inputs) -> list[Value]:
    x = inputs[0]
    axis = axis_in(node["axis"], len(x.shape))
    parts = _parts(node, x.shape[axis], known(inputs, 1))
    return [Value((*x.shape[:axis], part, *x.shape[axis + 1 :]), x.dtype) for part in parts]


def _infer_slice(node: Node, inputs: Inputs) -> list[Value]:
    x = inputs[0]
    sizes = list(x.shape)
    for axis, taken in _slices(x.shape, *(known(inputs, at) for at in range(1, 5))).items():
        sizes[axis] = _taken(x.shape[axis], *taken)[1]
    return [Value(tuple(sizes), x.dtype)]


def _slices(
    shape: Sequence[int], starts: np.ndarray, ends: np.ndarray, axes: np.ndarray | None, steps: np.ndarray | None
) -> dict[int, tuple[int, int, int]]:
    """Start, end and step by axis; starts before the first element are clamped."""
    at = range(len(starts)) if axes is None else integers(axes)
    stated = [1] * len(starts) if steps is None else integers(steps)
    counts = [len(numbers) for numbers in (at, starts, ends, stated)]
    if len({*counts}) > 1:
        raise ValueError(f"axes, starts, ends and steps are {', '.join(map(str, counts))} numbers")
    columns = zip((axis_in(axis, len(shape)) for axis in at), integers(starts), integers(ends), stated, strict=True)
    return {axis: (max(start, -shape[axis]), end, step) for axis, start, end, step in columns}


def _taken(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Index of the first element that Python's slice takes, and the number of elements."""
    if step == 0:
        raise ValueError("a step of 0")
    first, last = (0, size) if step > 0 else (-1, size - 1)
    start, end = (least(greatest(at + size if at < 0 else at, first), last) for at in (start, end))
    return start, greatest(0, -((start - end) // step))


def slice_(node: Node, arrays: Arrays) -> np.ndarray:
    """Take every step-th element from start to end along some axes; ends are clamped to the axis."""
    x = arrays[0]
    index = [slice(None)] * x.ndim
    for axis, taken in _slices(x.shape, *(given(arrays, at) for at in range(1, 5))).items():
        index[axis] = slice(*taken)
    return x[tuple(index)]


def pads_of(node: Node, rank: int, stated: np.ndarray, axes: np.ndarray | None) -> list[tuple[int, int]]:
    """(before, after) of every axis; negative ones crop."""
    at = range(rank) if axes is None else [axis_in(axis, rank) for axis in integers(axes)]
    numbers = integers(stated)
    pads = [(0, 0)] * rank
    half = len(numbers) // 2
    if len(numbers) != 2 * len(at):
        raise ValueError(f"there are {len(numbers)} pads for {len(at)} axes")
    for axis, before, behind in zip(at, numbers[:half], numbers[half:], strict=True):
        pads[axis] = before, behind
    return pads


def _infer_pad(node: Node, inputs: Inputs) -> list[Value]:
    x = inputs[0]
    pads = pads_of(node, len(x.shape), inputs[1].array, known(inputs, 3))
    return [Value(tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True)), x.dtype)]


def pad(node: Node, arrays: Arrays) -> np.ndarray:
    """Pad the input by a constant, the edge, reflection or wrapping; negative pads crop."""
    x, stated, constant, axes = arrays[0], arrays[1], given(arrays, 2), given(arrays, 3)
    pads = pads_of(node, x.ndim, stated, axes)
    cut = tuple(slice(max(0, -a), size - max(0, -b)) for size, (a, b) in zip(x.shape, pads, strict=True))
    added = [(max(0, a), max(0, b)) for a, b in pads]
    if node["mode"] == "constant":
        return np.pad(x[cut], added, constant_values=0 if constant is None or not constant.size else constant.item())
    return np.pad(x[cut], added, mode=node["mode"])


def _infer_tile(node: Node, inputs: Inputs) -> list[Value]:
    x, repeats = inputs[0], integers(inputs[1].array)
    if len(repeats) != len(x.shape):
        raise ValueError(f"there are {len(repeats)} repeats for {len(x.shape)} axes")
    return [Value(tuple(size * times for size, times in zip(x.shape, repeats, strict=True)), x.dtype)]


def tile(node: Node, arrays: Arrays) -> np.ndarray:
    """Repeat the input along every axis."""
    return np.tile(arrays[0], integers(arrays[1]))


# --- split and slice ------------------------------------------------------------------------------------------------


def _split_boxes(node: Node, inputs: Inputs) -> list[Box]:
    """Box of each output in the input."""
    x = inputs[0]
    axis = axis_in(node["axis"], len(x.shape))
    sizes = _parts(node, x.shape[axis], known(inputs, 1))
    return [whole(x.shape, axis, Cut(end - size, size)) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _slice_boxes(node: Node, inputs: Inputs) -> list[Box]:
    """Box of the output in the input."""
    taken: Any = slice_(node, [_Ranges(inputs[0].shape), *(value and value.array for value in inputs[1:])])
    return [taken]


class _Ranges:
    """Stand-in for an array whose index returns the cut of every axis."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape, self.ndim = shape, len(shape)

    def __getitem__(self, index: tuple[slice, ...]) -> list[Cut]:
        return [_part(size, part) for size, part in zip(self.shape, index, strict=True)]


def _part(size: int, part: slice) -> Cut:
    """Cut of an axis by a slice, by Python's rules."""
    if part == slice(None):
        return Cut(0, size, 1)
    start, count = _taken(size, part.start, part.stop, part.step)
    return Cut(start, count, part.step)


def _cuts(boxes: Callable[[Node, Inputs], list[Box]]) -> dict[str, Any]:
    """Offers, lowering and views of an operator whose outputs are boxes of its first input: views, or copies of blocks.

    Channel blocks are copied if a box does not consist of whole planes and whole blocks.
    """

    def offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
        x, parts = inputs[0], boxes(node, inputs)
        if any(each.size == 0 for box in parts for each in box):
            return []
        dense = all(stays_dense(x.shape, box) for box in parts)
        kept = (STRIDED, DENSE) if dense else (STRIDED,)
        ways = [(form, form) for plain in kept for form in target.forms(plain, x.dtype)]
        copies = []
        for form in target.blocks(x.dtype) if blockable(x) else ():
            dtype = stored_as(form, x.dtype)
            planes = all(whole_planes(x.shape, box) for box in parts)
            blocks = all(whole_blocks(x.shape[1], box[1], target.block(dtype)) for box in parts)
            if blocks and planes:
                ways.append((form, form))
            elif blocks or all(other_channels(x.shape, box) for box in parts):
                source, size = (form, *[""] * (len(inputs) - 1)), x.nbytes * dtype.itemsize // x.dtype.itemsize
                copies.append(Offer(source, (form,) * len(parts), target.moving(2 * size)))
        return view_offers(inputs, ways, len(parts)) + copies

    def view(node: Node, places: Sequence[Any], values: Sequence[Any]) -> list[TensorView]:
        return [cut(places[0], box) for box in boxes(node, places)]

    def lower(call: Call) -> list[Step]:
        x, steps = call.x, []
        for box, y in zip(boxes(call.node, call.inputs), call.outputs, strict=True):
            if whole_blocks(x.shape[1], box[1], x.block):
                steps += move_tensor(call.target, call.space, cut(x, box), y)
            else:
                steps.append(pick_step(call.target, x, y, range(box[1].start, box[1].start + y.shape[1])))
        return steps

    return {"offers": offers, "lower": lower, "view": view, "signature": "x: any, places*: known -> y*: =x"}


# --- concatenation --------------------------------------------------------------------------------------------------


def _concat_boxes(node: Node, inputs: Inputs) -> list[Box]:
    """Box of each input in the output."""
    if node.op == "InterleaveImages":
        return [whole(value.shape, 0, Cut(at, value.shape[0], len(inputs))) for at, value in enumerate(inputs)]
    axis = axis_in(node["axis"], len(inputs[0].shape))
    sizes = [value.shape[axis] for value in inputs]
    starts = [end - size for size, end in zip(sizes, accumulate(sizes), strict=True)]
    return [
        whole(value.shape, axis, Cut(start, size)) for value, start, size in zip(inputs, starts, sizes, strict=True)
    ]


def _offer_concat(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    if any(0 in value.shape for value in inputs):
        return []
    size, dtype = sum(value.nbytes for value in inputs), inputs[0].dtype
    offers = [
        Offer(
            (read,) * len(inputs), (form,), target.moving(2 * size * stored_as(form, dtype).itemsize / dtype.itemsize)
        )
        for read, form in zip(target.forms(STRIDED, dtype), target.forms(DENSE, dtype), strict=True)
    ]
    for form in target.blocks(dtype) if blockable(inputs[0]) else ():
        narrow = stored_as(form, dtype)
        if _fills_words(node, inputs, narrow):
            seconds = target.moving(2 * size * narrow.itemsize / dtype.itemsize)
            offers.append(Offer((form,) * len(inputs), (form,), seconds))
    return offers


def _fills_words(node: Node, inputs: Inputs, dtype: np.dtype) -> bool:
    """Whether no 32-bit group of a channel block would have channels of two concatenated inputs."""
    group = F32.bytes // dtype.itemsize
    return axis_in(node["axis"], len(inputs[0].shape)) != 1 or all(value.shape[1] % group == 0 for value in inputs)


def _concat_parts(node: Node, inputs: Inputs, output: TensorView) -> list[TensorView]:
    """Places of the inputs in the output, if a producer may write there: for all inputs, or none.

    Plain: contiguous except for the first axis. Blocked: whole channel blocks, or images.
    """
    axis = axis_in(node["axis"], len(output.shape))
    if output.block > 1:
        legal = axis == 0 or (axis == 1 and all(value.shape[1] % output.block == 0 for value in inputs[:-1]))
    else:
        legal = math.prod(output.shape[1:axis]) == 1
    return [cut(output, box) for box in _concat_boxes(node, inputs)] if legal else []


def _lower_concat(call: Call) -> list[Step]:
    """Copy the inputs that were not computed in place.

    If channels of two inputs share a block, the second one is copied later and preserves those of the first.
    """
    y, steps = call.outputs[0], []
    for x, box in zip(call.inputs, _concat_boxes(call.node, call.inputs), strict=True):
        assert x is not None
        if y.block > 1 and box[1].start % y.block:
            group = F32.bytes // y.dtype.itemsize
            channels = range(x.shape[1] // group)
            steps.append(pick_step(call.target, in_words(x), in_words(y), channels, onto=box[1].start // group))
            continue
        part = cut(y, box)
        if (x.ref, x.strides) != (part.ref, part.strides):
            steps += move_tensor(call.target, call.space, x, part)
    return steps


# --- padding and repetition -----------------------------------------------------------------------------------------


def _stretches(node: Node, inputs: Inputs) -> list[Stretches] | None:
    """Stretches of every axis; None if kernels do not support the padding."""
    x, constant = inputs[0], given(inputs, 2)
    if constant is not None and constant.array is None:
        return None
    return padded(node["mode"], x.shape, pads_of(node, len(x.shape), inputs[1].array, known(inputs, 3)))


def _offer_pad(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    stretches = None if 0 in inputs[0].shape else _stretches(node, inputs)
    if stretches is None:
        return []
    dtype, rest = inputs[0].dtype, [""] * (len(inputs) - 1)
    ways = [*zip(target.forms(STRIDED, dtype), target.forms(DENSE, dtype), strict=True)]
    if blockable(inputs[0]) and is_unpadded(stretches[1], inputs[0].shape[1]):
        ways += [(form, form) for form in target.blocks(dtype)]
    size = 2 * _infer_pad(node, inputs)[0].nbytes // dtype.itemsize
    return [
        Offer((source, *rest), (goal,), target.moving(size * stored_as(goal, dtype).itemsize)) for source, goal in ways
    ]


def _pad_parts(node: Node, inputs: Inputs, output: TensorView) -> list[TensorView]:
    """Place of the input in the output, if a producer may write there: if images are added around it."""
    stretches = _stretches(node, inputs)
    if stretches is None or not all(map(is_unpadded, stretches[1:], output.shape[1:])):
        return []
    start, size, source = stretches[0][0]
    inside = size == inputs[0].shape[0] and source == Cut(0, size)
    return [cut(output, whole(inputs[0].shape, 0, Cut(start, size)))] if inside else []


def _lower_pad(call: Call) -> list[Step]:
    stretches, constant = _stretches(call.node, call.inputs), known(call.inputs, 2)
    assert stretches is not None
    value = 0 if constant is None or not constant.size else constant.item()
    return padding_steps(call.target, call.space, call.constants, call.x, call.y, stretches, value)


def _offer_tile(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    y = _infer_tile(node, inputs)[0]
    return [] if y.nbytes == 0 else [Offer((STRIDED, ""), (DENSE,), target.moving(2 * y.nbytes))]


def _lower_tile(call: Call) -> list[Step]:
    return move_tensor(call.target, call.space, *repeats(call.x, call.y))


_LAID: dict[str, Any] = {"offers": _offer_concat, "lower": _lower_concat, "parts": _concat_parts}
_LAID |= {"signature": "x: any, others*: =x -> y: =x", "joins": True, "int8": Int8.MOVED, "sign": Sign.KEPT}
_PADDED: dict[str, Any] = {"offers": _offer_pad, "lower": _lower_pad, "parts": _pad_parts}
_PADDED["signature"] = "x: any, pads: known, value?: known, axes?: known -> y: =x"
_TILED: dict[str, Any] = {"offers": _offer_tile, "lower": _lower_tile}
_TILED |= {"signature": "x: any, repeats: known -> y: =x", "int8": Int8.MOVED}
_SPLIT = {"axis": 0, "num_outputs": None}
_PARTS = {**_cuts(_split_boxes), "int8": Int8.SAME_SCALE}
_SLICED = {**_cuts(_slice_boxes), "movement": Movement.PART, "int8": Int8.MOVED, "sign": Sign.KEPT}

OPS = (
    Op("Concat", _infer_concat, concat, {"axis": REQUIRED}, widened=False, **_LAID, follows_sizes=True),
    Op("InterleaveImages", _infer_interleave, interleave_images, {"axis": 0}, widened=False, **_LAID, own=True),
    Op("Split", _infer_split, split, _SPLIT, parameters=(1,), widened=False, **_PARTS),
    Op("Slice", _infer_slice, slice_, parameters=(1, 2, 3, 4), widened=False, **_SLICED, follows_sizes=True),
    Op("Pad", _infer_pad, pad, {"mode": "constant"}, parameters=(1, 3), **EXACT, **_PADDED),
    Op("Tile", _infer_tile, tile, parameters=(1,), widened=False, **_TILED),
)
