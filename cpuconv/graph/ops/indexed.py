"""Reading and writing elements and slices at indices that are known at run time.

Source: ONNX operators of these names. Negative indices count from the end. Of several updates of one element without a
reduction, the last one counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import (
    EXACT,
    Arrays,
    Infer,
    Inputs,
    Offers,
    Op,
    Reference,
    axis_in,
    given,
    is_float,
    like_first,
)
from cpuconv.graph.ops.traits import Int8
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import DENSE, STRIDED, TensorView
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.indexing import moves
from cpuconv.kernels.indexing.combining import NUMBERS

# --- shapes ---------------------------------------------------------------------------------------------------------


def check_places(indices: Value, sizes: Sequence[int]) -> None:
    """Check constant indices against one axis, or each column against its own axis; kernels check others."""
    if indices.array is None or not indices.array.size:
        return
    rows = indices.array.reshape(-1, len(sizes))
    for size, least, most in zip(sizes, rows.min(axis=0), rows.max(axis=0), strict=True):
        wrong = least if least < -size else most
        if not -size <= wrong < size:
            raise ValueError(f"index {wrong} is out of bounds for an axis of size {size}")


def _check_rows(indices: Value, sizes: Sequence[int]) -> None:
    """Check that the last axis of indices has one index for each of some axes."""
    if indices.shape is None or indices.shape[-1] != len(sizes):
        raise ValueError(f"{indices.shape and indices.shape[-1]} indices are more than there are axes")
    check_places(indices, sizes)


def _infer_gather_elements(node: Node, inputs: Inputs) -> list[Value]:
    shape, indices = inputs[0].shape, inputs[1].shape
    axis = axis_in(node["axis"], len(shape))
    others = (pair for at, pair in enumerate(zip(indices, shape, strict=True)) if at != axis)
    if any(size > most for size, most in others):
        raise ValueError(f"only axis {axis} of the indices may be larger than that of the data")
    check_places(inputs[1], [shape[axis]])
    return [Value(indices, inputs[0].dtype)]


def gather_elements(node: Node, arrays: Arrays) -> np.ndarray:
    """Take elements whose index along one axis is in `indices`; other indices are their own position."""
    data, indices = arrays
    return data[_places(data, indices, node["axis"])]


def _infer_gather_nd(node: Node, inputs: Inputs) -> list[Value]:
    data, indices = inputs
    first, last = node["batch_dims"], node["batch_dims"] + indices.shape[-1]
    if not 0 <= first < len(indices.shape):
        raise ValueError(f"there are no {first} axes before the last one of the indices")
    if data.shape[:first] != indices.shape[:first]:
        raise ValueError(f"the first {first} axes, of {data.shape[:first]} and {indices.shape[:first]}, are not equal")
    _check_rows(indices, data.shape[first:last])
    kept = data.shape[last:]
    return [Value((*indices.shape[:-1], *kept), data.dtype)]


def gather_nd(node: Node, arrays: Arrays) -> np.ndarray:
    """Take slices whose leading indices are the last axis of `indices`; leading batch axes correspond."""
    data, indices = arrays
    batch = data.shape[: node["batch_dims"]]
    grids = np.indices(batch).reshape(len(batch), *batch, *[1] * (indices.ndim - 1 - len(batch)))
    places = (*grids, *np.moveaxis(indices, -1, 0))
    return data[places]


# --- scatter --------------------------------------------------------------------------------------------------------

_PUT: dict[str, Callable[[np.ndarray, Any, np.ndarray], None]] = {
    "none": lambda data, places, updates: data.__setitem__(places, updates),
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _places(data: np.ndarray, indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """Index of `data` in the shape of `indices`: along `axis` as stated, elsewhere the own position."""
    places: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
    places[axis_in(axis, data.ndim)] = indices
    return tuple(places)


def _put(node: Node, data: np.ndarray, places: tuple[np.ndarray, ...], updates: np.ndarray) -> np.ndarray:
    """Copy the data and assign or reduce updates at these indices; floating-point reductions are in float64."""
    reduction = node["reduction"]
    widened = reduction != "none" and is_float(data.dtype)
    data = data.astype(np.float64 if widened else np.result_type(data, updates))
    _PUT[reduction](data, places, updates)
    return data


def _infer_scatter_elements(node: Node, inputs: Inputs) -> list[Value]:
    (places,) = _infer_gather_elements(node, inputs)
    if inputs[2].shape != places.shape:
        raise ValueError("there must be an update for each index")
    return like_first(node, inputs)


def _infer_scatter_nd(node: Node, inputs: Inputs) -> list[Value]:
    data, indices, updates = (each.shape for each in inputs)
    _check_rows(inputs[1], data[: indices[-1]])
    if updates != (wanted := (*indices[:-1], *data[indices[-1] :])):
        raise ValueError(f"updates must be of shape {wanted}")
    return like_first(node, inputs)


def scatter_elements(node: Node, arrays: Arrays) -> np.ndarray:
    """Write updates to the elements that `gather_elements` would take."""
    data, indices, updates = arrays
    return _put(node, data, _places(data, indices, node["axis"]), updates)


def scatter_nd(node: Node, arrays: Arrays) -> np.ndarray:
    """Write updates to the slices that `gather_nd` would take."""
    data, indices, updates = arrays
    return _put(node, data, tuple(np.moveaxis(indices, -1, 0)), updates)


def _infer_tensor_scatter(node: Node, inputs: Inputs) -> list[Value]:
    (batch, *_), updates, starts = inputs[0].shape, inputs[1].shape, given(inputs, 2)
    axis, shape = axis_in(node["axis"], len(inputs[0].shape)), list(inputs[0].shape)
    length, shape[axis] = shape[axis], updates[axis] if len(updates) == len(shape) else -1
    if axis == 0 or tuple(shape) != tuple(updates) or shape[axis] > length:
        raise ValueError(
            f"updates must be as the data except along an axis behind the first one, and no more than {length}"
        )
    if node["mode"] not in ("linear", "circular"):
        raise ValueError(f"the mode is {node['mode']!r}")
    if starts is not None and tuple(starts.shape) != (batch,):
        raise ValueError(f"there must be {batch} indices")
    return like_first(node, inputs)


def tensor_scatter(node: Node, arrays: Arrays) -> np.ndarray:
    """Write updates from an index along an axis on, with an index for each of the batch."""
    data, updates, starts = arrays[0].copy(), arrays[1], given(arrays, 2)
    axis = axis_in(node["axis"], data.ndim)
    size, length = data.shape[axis], updates.shape[axis]
    for image, start in enumerate(np.zeros(len(data), np.int64) if starts is None else starts):
        if node["mode"] == "linear" and not 0 <= start <= size - length:
            raise ValueError(f"index {start} is out of bounds for an axis of size {size - length + 1}")
        places = (start + np.arange(length)) % max(size, 1)
        data[image][(slice(None),) * (axis - 1) + (places,)] = updates[image]
    return data


# --- kernels --------------------------------------------------------------------------------------------------------

_INDICES = (np.dtype(np.int32), np.dtype(np.int64))
_FORMS = {"GatherElements": (STRIDED, STRIDED)}  # the others read dense tensors; updates and their indices are copied
_PUT_FORMS = (DENSE, STRIDED, STRIDED)  # only the data is read as it is written, so that it may be overwritten


def indexed_offers(node: Node, inputs: Inputs, target: Target, moved: Any) -> list[Offer]:
    """Offer a kernel that moves the tensor `moved` to or from indices; reductions of numbers alone."""
    data, indices, *updates = inputs
    if indices.dtype not in _INDICES or 0 in (*data.shape, *moved.shape, *indices.shape) or data.dtype.hasobject:
        return []
    if node.attributes.get("reduction", "none") != "none" and data.dtype.name not in NUMBERS:
        return []
    count = indices.shape[-1] if node.op.endswith("ND") else 1
    points = math.prod(indices.shape) // count
    copied = target.moving(2 * data.nbytes if updates else 0)
    time = moves.seconds(target, points, count, moved.nbytes // points) + copied
    return [Offer(_PUT_FORMS if updates else _FORMS.get(node.op, (DENSE, DENSE)), (DENSE,), time)]


def _gathers(rule: Infer) -> Offers:
    """Make offers of kernels for outputs inferred by `rule`."""
    return lambda node, inputs, target: indexed_offers(node, inputs, target, rule(node, inputs)[0])


def _offer_scatter(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    return indexed_offers(node, inputs, target, inputs[2])


def _offers_tensor_scatter(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    data, updates, starts = *inputs[:2], given(inputs, 2)
    if 0 in data.shape + updates.shape or data.dtype.hasobject or (starts and starts.dtype not in _INDICES):
        return []
    forms = (DENSE, STRIDED, *([] if len(inputs) < 3 else ["" if starts is None else DENSE]))
    return [Offer(forms, (DENSE,), target.moving(2 * (data.nbytes + updates.nbytes)))]


def _operands(call: Call) -> list[TensorView]:
    return [place for place in call.inputs if place is not None]


def lower_indexed(call: Call) -> list[Step]:
    """Make the kernel call of a gather, or those of a scatter."""
    data, indices, *updates = _operands(call)
    attributes = call.node.attributes
    number = axis_in(attributes["axis"], len(data.shape)) if "axis" in attributes else attributes.get("batch_dims", 0)
    if not updates:
        return [moves.gather_step(call.target, call.node.op, data, indices, call.y, number, call.node.label)]
    operands = data, indices, updates[0], call.y, number, call.node.label, call.node["reduction"]
    return moves.scatter_steps(call.target, call.space, call.node.op, *operands)


def _lower_tensor_scatter(call: Call) -> list[Step]:
    data, updates, *starts = _operands(call)
    axis = axis_in(call.node["axis"], len(data.shape))
    made, updates = moves.dense(call.target, call.space, updates)
    if not starts:
        copies = [] if data.ref == call.y.ref else move_tensor(call.target, call.space, data, call.y)
        return made + copies + move_tensor(call.target, call.space, updates, call.y.at(0, updates.shape))
    rows = moves.slices_from(call.y, starts[0], updates, axis, call.node["mode"] == "circular")
    return made + moves.put_steps(call.target, call.space, rows, data, starts[0], updates, call.y, call.node.label)


def _gathering(name: str, rule: Infer, reference: Reference, attributes: Mapping[str, object]) -> Op:
    """Row of an operator that reads at indices."""
    signature = "data: any, indices: any -> y: =data"
    return Op(
        name,
        rule,
        reference,
        attributes,
        **EXACT,
        offers=_gathers(rule),
        lower=lower_indexed,
        signature=signature,
        int8=Int8.MOVED,
    )


_SCATTER: dict[str, Any] = {"offers": _offer_scatter, "lower": lower_indexed, "in_place": True}
_SCATTER |= {"signature": "data: any, indices: any, updates: =data -> y: =data"}
_CACHE: dict[str, Any] = {"offers": _offers_tensor_scatter, "lower": _lower_tensor_scatter, "in_place": True}
_CACHE |= {"signature": "data: any, updates: =data, starts?: any -> y: =data"}
_ALONG = {"axis": 0, "reduction": "none"}

OPS = (
    _gathering("GatherElements", _infer_gather_elements, gather_elements, {"axis": 0}),
    _gathering("GatherND", _infer_gather_nd, gather_nd, {"batch_dims": 0}),
    Op("ScatterElements", _infer_scatter_elements, scatter_elements, _ALONG, **EXACT, **_SCATTER),
    Op("ScatterND", _infer_scatter_nd, scatter_nd, {"reduction": "none"}, **EXACT, **_SCATTER),
    Op("TensorScatter", _infer_tensor_scatter, tensor_scatter, {"axis": -2, "mode": "linear"}, **EXACT, **_CACHE),
)
