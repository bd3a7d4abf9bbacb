"""What joins tensors, takes parts of them, or puts something around them.

Source: ONNX operators Concat, Split, Slice, Pad and Tile.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Op, as_reference, axis_in, given, integers


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


OPS = (
    Op("Concat", _infer_concat, concat, {"axis": REQUIRED}),
    Op("Split", as_reference(split), split, {"axis": 0, "num_outputs": None}, parameters=(1,)),
    Op("Slice", as_reference(slice_), slice_, parameters=(1, 2, 3, 4)),
    Op("Pad", _infer_pad, pad, {"mode": "constant"}, parameters=(1, 3), mixed=True),
    Op("Tile", _infer_tile, tile, parameters=(1,)),
)
