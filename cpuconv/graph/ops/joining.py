"""What joins tensors, takes parts of them, or puts something around them.

Source: ONNX operators Concat, Split, Slice, Pad and Tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from cpuconv.graph.ir import Node, Value
from cpuconv.graph.kernels.copying import copy_steps
from cpuconv.graph.lowering import Call, Offer, Target
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Op, as_reference, axis_in, given, integers
from cpuconv.graph.ops.views import (
    Box,
    Cut,
    blockable,
    cut,
    nbytes,
    stays_dense,
    view_offers,
    whole,
    whole_blocks,
    whole_planes,
)
from cpuconv.graph.place import BLOCKED, DENSE, STRIDED, Place
from cpuconv.solvers.shared.base import Step


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


def concat(node: Node, arrays: Arrays) -> np.ndarray:
    """One behind the other along an axis."""
    return np.concatenate(arrays, node["axis"])


def _parts(node: Node, size: int, stated: np.ndarray | None) -> list[int]:
    """Sizes of the parts: as stated, or equal ones, the last one smaller where they do not fit."""
    if stated is not None:
        parts = integers(stated)
        if sum(parts) != size or len(parts) != len(node.outputs) or min(parts) < 0:
            raise ValueError(f"parts of {parts} do not make {size} in {len(node.outputs)} outputs")
        return parts
    count = node["num_outputs"] or len(node.outputs)
    each = -(-size // count)
    return [min(each, max(0, size - part * each)) for part in range(count)]


def split(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Parts along an axis, in order."""
    x, stated = arrays[0], given(arrays, 1)
    axis = axis_in(node["axis"], x.ndim)
    parts = _parts(node, x.shape[axis], stated)
    return tuple(np.split(x, list(accumulate(parts))[:-1], axis))


def slice_(node: Node, arrays: Arrays) -> np.ndarray:
    """Every step-th element from start to end along some axes; ends beyond the axis are cut off."""
    x, starts, ends, axes, steps = arrays[0], arrays[1], arrays[2], given(arrays, 3), given(arrays, 4)
    axes = range(len(starts)) if axes is None else integers(axes)
    steps = [1] * len(starts) if steps is None else integers(steps)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, integers(starts), integers(ends), steps, strict=True):
        axis = axis_in(axis, x.ndim)
        index[axis] = slice(max(start, -x.shape[axis]), end, step)  # Python starts before the first element too
    return x[tuple(index)]


def _pads(node: Node, rank: int, stated: np.ndarray, axes: np.ndarray | None) -> list[tuple[int, int]]:
    """(before, behind) of every axis; negative ones cut off."""
    at = range(rank) if axes is None else [axis_in(axis, rank) for axis in integers(axes)]
    numbers = integers(stated)
    pads = [(0, 0)] * rank
    half = len(numbers) // 2
    for axis, before, behind in zip(at, numbers[:half], numbers[half:], strict=True):
        pads[axis] = before, behind
    return pads


def _infer_pad(node: Node, inputs: Inputs) -> list[Value]:
    x, axes = inputs[0], given(inputs, 3)
    pads = _pads(node, len(x.shape), inputs[1].array, axes and axes.array)
    return [Value(tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True)), x.dtype)]


def pad(node: Node, arrays: Arrays) -> np.ndarray:
    """Elements around the input: a constant, the edge, or the input mirrored or repeated; negative pads cut off."""
    x, stated, constant, axes = arrays[0], arrays[1], given(arrays, 2), given(arrays, 3)
    pads = _pads(node, x.ndim, stated, axes)
    cut = tuple(slice(max(0, -a), size - max(0, -b)) for size, (a, b) in zip(x.shape, pads, strict=True))
    added = [(max(0, a), max(0, b)) for a, b in pads]
    if node["mode"] == "constant":
        return np.pad(x[cut], added, constant_values=0 if constant is None or not constant.size else constant.item())
    return np.pad(x[cut], added, mode=node["mode"])


def _infer_tile(node: Node, inputs: Inputs) -> list[Value]:
    x, repeats = inputs[0], integers(inputs[1].array)
    return [Value(tuple(size * times for size, times in zip(x.shape, repeats, strict=True)), x.dtype)]


def tile(node: Node, arrays: Arrays) -> np.ndarray:
    """The input repeated along every axis."""
    return np.tile(arrays[0], integers(arrays[1]))


# --- parts of a tensor ----------------------------------------------------------------------------------------------


def _split_boxes(node: Node, inputs: Inputs) -> list[Box]:
    """Where each output lies in the input."""
    x, stated = inputs[0], given(inputs, 1)
    axis = axis_in(node["axis"], len(x.shape))
    sizes = _parts(node, x.shape[axis], stated and stated.array)
    return [whole(x.shape, axis, Cut(end - size, size)) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _slice_boxes(node: Node, inputs: Inputs) -> list[Box]:
    """Where the output lies in the input."""
    taken = slice_(node, [_Taken(inputs[0].shape), *(value and value.array for value in inputs[1:])])
    return [[Cut(part.start, len(part), part.step) for part in taken]]


class _Taken:
    """In the place of an array: its index gives the range of elements of every axis."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape, self.ndim = shape, len(shape)

    def __getitem__(self, index: tuple[slice, ...]) -> list[range]:
        return [range(size)[part] for size, part in zip(self.shape, index, strict=True)]


def _cuts(boxes: Callable[[Node, Inputs], list[Box]]) -> dict[str, Any]:
    """How an operator is run whose outputs are these parts of its first input: as views or, of channel blocks, copies.

    Copies of blocks are needed where a part does not have whole planes or whole blocks.
    """

    def offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
        x, parts = inputs[0], boxes(node, inputs)
        if any(each.count == 0 for box in parts for each in box):
            return []
        dense = all(stays_dense(x.shape, box) for box in parts)
        ways = [(STRIDED, STRIDED), *([(DENSE, DENSE)] if dense else [])]
        if not blockable(x):
            return view_offers(inputs, ways, len(parts))
        blocks = all(whole_blocks(x.shape[1], box[1], target.isa.lanes) for box in parts)
        if blocks and all(whole_planes(x.shape, box) for box in parts):
            return view_offers(inputs, [*ways, (BLOCKED, BLOCKED)], len(parts))
        made = view_offers(inputs, ways, len(parts))
        if blocks:
            seconds = target.moving(2 * nbytes(x))
            made.append(Offer((BLOCKED, *[""] * (len(inputs) - 1)), (BLOCKED,) * len(parts), seconds))
        return made

    def view(node: Node, places: Sequence[Any], values: Sequence[Value]) -> list[Place]:
        return [cut(places[0], box) for box in boxes(node, places)]

    def lower(call: Call) -> list[Step]:
        x = call.given(0)
        assert x is not None
        steps = []
        for box, y in zip(boxes(call.node, call.inputs), call.outputs, strict=True):
            steps += copy_steps(call.target, call.space, cut(x, box), y)
        return steps

    return {"offers": offers, "lower": lower, "view": view}


# --- one behind the other -------------------------------------------------------------------------------------------


def _concat_boxes(node: Node, inputs: Inputs) -> list[Box]:
    """Where each input lies in the output."""
    axis = axis_in(node["axis"], len(inputs[0].shape))
    sizes = [value.shape[axis] for value in inputs]
    starts = [end - size for size, end in zip(sizes, accumulate(sizes), strict=True)]
    return [
        whole(value.shape, axis, Cut(start, size)) for value, start, size in zip(inputs, starts, sizes, strict=True)
    ]


def _offer_concat(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    if any(0 in value.shape for value in inputs):
        return []
    count, seconds = len(inputs), target.moving(2 * sum(map(nbytes, inputs)))
    offers = [Offer((STRIDED,) * count, (DENSE,), seconds)]
    if blockable(inputs[0]) and _joins_blocks(node, inputs, target.isa.lanes):
        offers.append(Offer((BLOCKED,) * count, (BLOCKED,), seconds))
    return offers


def _joins_blocks(node: Node, inputs: Inputs, lanes: int) -> bool:
    """Whether inputs are whole blocks of the output's channels."""
    return axis_in(node["axis"], len(inputs[0].shape)) != 1 or all(value.shape[1] % lanes == 0 for value in inputs[:-1])


def _concat_parts(node: Node, inputs: Sequence[Value], output: Place) -> list[Place]:
    """Where inputs lie in the output, if that is legal for an output of an operator: none, or all.

    Plain: contiguous but for the first axis. Blocked: whole blocks of channels, or images.
    """
    axis = axis_in(node["axis"], len(output.shape))
    if output.block > 1:
        legal = axis == 0 or (axis == 1 and _joins_blocks(node, inputs, output.block))
    else:
        legal = math.prod(output.shape[1:axis]) == 1
    return [cut(output, box) for box in _concat_boxes(node, inputs)] if legal else []


def _lower_concat(call: Call) -> list[Step]:
    """Copies of the inputs that do not lie in the output already."""
    steps = []
    for x, box in zip(call.inputs, _concat_boxes(call.node, call.inputs), strict=True):
        part = cut(call.outputs[0], box)
        if (x.ref, x.strides) != (part.ref, part.strides):  # type: ignore[union-attr]
            steps += copy_steps(call.target, call.space, x, part)  # type: ignore[arg-type]
    return steps


OPS = (
    Op(
        "Concat",
        _infer_concat,
        concat,
        {"axis": REQUIRED},
        offers=_offer_concat,
        lower=_lower_concat,
        parts=_concat_parts,
    ),
    Op("Split", as_reference(split), split, {"axis": 0, "num_outputs": None}, parameters=(1,), **_cuts(_split_boxes)),
    Op("Slice", as_reference(slice_), slice_, parameters=(1, 2, 3, 4), **_cuts(_slice_boxes)),
    Op("Pad", _infer_pad, pad, {"mode": "constant"}, parameters=(1, 3), mixed=True),
    Op("Tile", _infer_tile, tile, parameters=(1,)),
)
