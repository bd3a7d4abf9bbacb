"""Reading and writing elements by index or by a condition.

Source: ONNX operators of these names. Negative indices count from the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import EXACT, Arrays, Inputs, Op, axis_in, given, integers, is_float, like_first
from cpuconv.graph.ops.indexed import check_places, indexed_offers, lower_indexed
from cpuconv.graph.ops.traits import Int8
from cpuconv.graph.ops.views import blockable, view_offers
from cpuconv.kernels.axis.gathering import gather_steps
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import DENSE, STRIDED, TensorView, stored_as
from cpuconv.kernels.copies.lane_pick import pick_step, picks
from cpuconv.kernels.copies.tensor_views import Box, Cut, cut, stays_dense, whole
from cpuconv.kernels.indexing.moves import gather_step

_INT64 = np.dtype(np.int64)

_SHORT_ROW = 64  # bytes from which a copy by a table of offsets is as fast as the kernel for indices
_MAX_PERMUTATION_TILES = 16  # maximum number of micro-kernels to compile for a permutation of channels

# --- gather ---------------------------------------------------------------------------------------------------------


def _from_start(indices: np.ndarray, size: int) -> np.ndarray:
    """Normalise indices to non-negative int64 ones: byte offsets are multiples of them."""
    return indices.astype(np.int64) % size


def _infer_gather(node: Node, inputs: Inputs) -> list[Value]:
    data, indices = inputs
    axis = axis_in(node["axis"], len(data.shape))
    check_places(indices, data.shape[axis : axis + 1])
    return [Value((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), data.dtype)]


def gather(node: Node, arrays: Arrays) -> np.ndarray:
    """Take the slices along an axis at `indices`."""
    data, indices = arrays
    if data.flags.c_contiguous and data.flags.aligned:  # for other data, `take` would copy everything
        return np.take(data, indices, node["axis"])
    return data[(slice(None),) * axis_in(node["axis"], data.ndim) + (indices,)]


def _evenly(node: Node, inputs: Inputs) -> Box | None:
    """Box of the data at constant indices if these are one number or equidistant; else None."""
    data, indices = inputs[0], inputs[1].array
    axis = axis_in(node["axis"], len(data.shape))
    if indices is None or indices.ndim > 1 or not indices.size:
        return None
    places = _from_start(indices.ravel(), data.shape[axis])
    step = int(places[1] - places[0]) if places.size > 1 else 1
    if step == 0 or (np.diff(places) != step).any():
        return None
    return whole(data.shape, axis, Cut(int(places[0]), places.size, step))


def _offer_gather(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer a view for equidistant constant indices, else a copy, also in channel blocks; for others, a kernel."""
    data, indices = inputs
    if indices.array is None or indices.array.ndim > 1 or 0 in (*data.shape, indices.array.size):
        return indexed_offers(node, inputs, target, _infer_gather(node, inputs)[0])
    size = _infer_gather(node, inputs)[0].nbytes
    seconds, copies = target.moving(2 * size), []
    for form in target.blocks(data.dtype) if blockable(data) else ():
        dtype = stored_as(form, data.dtype)
        if reads := _block_reads(node, inputs, target.block(dtype)):
            moved = size * dtype.itemsize / data.dtype.itemsize
            copies.append(Offer((form, ""), (form,), target.moving((reads + 1) * moved)))
    box = _evenly(node, inputs)
    if box is None:
        return [Offer((STRIDED, ""), (DENSE,), seconds), *copies]
    kept = (STRIDED, DENSE) if stays_dense(data.shape, box) else (STRIDED,)
    return view_offers(inputs, [(form, form) for plain in kept for form in target.forms(plain, data.dtype)]) + copies


def _block_reads(node: Node, inputs: Inputs, block: int) -> float:
    """Blocks read per block written for a gather of channels; 0 if it is none or needs too many kernels."""
    data, indices = inputs
    if indices.array.ndim == 0 or axis_in(node["axis"], len(data.shape)) != 1:
        return 0
    tiles = [tile for tile, _ in picks(_channels(data, indices), block)]
    return sum(tile.blocks for tile in tiles) / len(tiles) if len({*tiles}) <= _MAX_PERMUTATION_TILES else 0


def _channels(data: Any, indices: Any) -> list[int]:
    """Channels at constant indices."""
    return integers(_from_start(indices.array, data.shape[1]))


def _view_gathered(node: Node, places: Sequence[Any], values: Sequence[Any]) -> list[TensorView]:
    box = _evenly(node, places)
    assert box is not None
    part = cut(places[0], box)
    if places[1].array.ndim:
        return [part]
    kept = [axis for axis in range(len(part.shape)) if axis != axis_in(node["axis"], len(part.shape))]
    return [part.at(0, [part.shape[axis] for axis in kept], [part.strides[axis] for axis in kept])]


def _lower_gather(call: Call) -> list[Step]:
    (data, indices), y = call.inputs, call.outputs[0]
    if call.offer.inputs[1]:
        return lower_indexed(call)
    assert data is not None and indices is not None and indices.array is not None
    if y.block > 1:
        return [pick_step(call.target, data, y, _channels(data, indices))]
    axis = axis_in(call.node["axis"], len(data.shape))
    if data.format == DENSE and math.prod(data.shape[axis + 1 :]) * data.dtype.itemsize < _SHORT_ROW:
        places = np.ascontiguousarray(indices.array, np.int64)
        at = TensorView.plain(call.constants.keep(places), places.shape, _INT64)
        return [gather_step(call.target, call.node.op, data, at, y, axis, call.node.label)]
    return gather_steps(call.target, call.space, data, y, axis, _from_start(indices.array, data.shape[axis]))


def _infer_one_hot(node: Node, inputs: Inputs) -> list[Value]:
    indices, (depth,) = inputs[0], integers(inputs[1].array)
    axis = axis_in(node["axis"], len(indices.shape) + 1)
    return [Value((*indices.shape[:axis], depth, *indices.shape[axis:]), inputs[2].dtype)]


def one_hot(node: Node, arrays: Arrays) -> np.ndarray:
    """Add an axis with the second value at the index and the first elsewhere, also if the index is out of range."""
    indices, depth, (off, on) = arrays
    (depth,) = integers(depth)
    axis = axis_in(node["axis"], indices.ndim + 1)
    if indices.dtype.kind == "u":
        indices = np.minimum(indices, np.uint64(max(0, depth)))
    if not is_float(indices.dtype):  # int8 may not represent the depth
        indices = indices.astype(np.int64)
    indices = np.where((indices < -depth) | (indices >= depth), depth, np.where(indices < 0, indices + depth, indices))
    places = np.arange(depth).reshape(-1, *[1] * (indices.ndim - axis))
    return np.where(np.expand_dims(indices, axis) == places, on, off)


def trilu(node: Node, arrays: Arrays) -> np.ndarray:
    """Select the triangle above (or below) the k-th diagonal of each matrix; zeros elsewhere."""
    x, k = arrays[0], given(arrays, 1)
    return (np.triu if node["upper"] else np.tril)(x, 0 if k is None else int(k.item()))


# --- selection by a condition ---------------------------------------------------------------------------------------


def _infer_compress(node: Node, inputs: Inputs) -> list[Value]:
    shape = list(inputs[0].shape) if node["axis"] is not None else [None]
    shape[0 if node["axis"] is None else axis_in(node["axis"], len(shape))] = None
    return [Value(tuple(shape), inputs[0].dtype)]


def compress(node: Node, arrays: Arrays) -> np.ndarray:
    """Select the slices along an axis (or of the flattened input) where the condition holds."""
    return np.compress(arrays[1], arrays[0], node["axis"])


def _infer_leading(node: Node, inputs: Inputs) -> list[Value]:
    shape = list(inputs[0].shape)
    shape[node["axis"]] = None
    return [Value(tuple(shape), inputs[0].dtype)]


def leading(node: Node, arrays: Arrays) -> np.ndarray:
    """The first `arrays[1]` slices along an axis."""
    return arrays[0][(slice(None),) * node["axis"] + (slice(int(arrays[1].item())),)]


_TAKEN: dict[str, Any] = {"offers": _offer_gather, "lower": _lower_gather, "view": _view_gathered}
_TAKEN |= {"signature": "x: any, indices: any -> y: =x", "int8": Int8.MOVED, "follows_sizes": True}

OPS = (
    Op("Gather", _infer_gather, gather, {"axis": 0}, **EXACT, **_TAKEN),
    Op("OneHot", _infer_one_hot, one_hot, {"axis": -1}, parameters=(1,), **EXACT),
    Op("Trilu", like_first, trilu, {"upper": 1}, **EXACT),
    Op("Compress", _infer_compress, compress, {"axis": None}, **EXACT),
    Op("Leading", _infer_leading, leading, {"axis": 0}, **EXACT, signature="x: any, count: any -> y: =x", own=True),
)
