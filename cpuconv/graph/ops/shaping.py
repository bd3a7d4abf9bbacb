"""What changes only the shape, the order of the axes or the type; and tensors made from shapes.

Source: ONNX operators of these names.
"""

from __future__ import annotations

import math

import numpy as np

from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Op, as_reference, axis_in, given, integers, like_first

# --- the same elements ----------------------------------------------------------------------------------------------


def transpose(node: Node, arrays: Arrays) -> np.ndarray:
    """Axes in another order; reversed where none is given."""
    return arrays[0].transpose(node["perm"])


def reshape(node: Node, arrays: Arrays) -> np.ndarray:
    """Another shape: -1 is what is left, 0 the input's size (unless zeros are allowed)."""
    x, sizes = arrays[0], integers(arrays[1])
    if not node["allowzero"]:
        sizes = [size or x.shape[axis] for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def flatten(node: Node, arrays: Arrays) -> np.ndarray:
    """A matrix: the axes before `axis` in one, the others in the other."""
    x, axis = arrays[0], node["axis"]
    axis = axis if axis == arrays[0].ndim else axis_in(axis, max(1, x.ndim))
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def squeeze(node: Node, arrays: Arrays) -> np.ndarray:
    """Without axes of size 1: those given, or all."""
    axes = given(arrays, 1)
    return arrays[0].squeeze(None if axes is None else tuple(integers(axes)))


def unsqueeze(node: Node, arrays: Arrays) -> np.ndarray:
    """With axes of size 1, at these places of the output."""
    return np.expand_dims(arrays[0], tuple(integers(arrays[1])))


def identity(node: Node, arrays: Arrays) -> np.ndarray:
    """The input."""
    return arrays[0]


def expand(node: Node, arrays: Arrays) -> np.ndarray:
    """Broadcast with a shape, either way."""
    x, sizes = arrays[0], integers(arrays[1])
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(sizes)))


def _infer_cast(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(inputs[0].shape, node["to"])]


def _infer_cast_like(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(inputs[0].shape, inputs[1].dtype)]


# --- from shapes ----------------------------------------------------------------------------------------------------


def shape(node: Node, arrays: Arrays) -> np.ndarray:
    """The sizes of the axes from `start` to `end`."""
    return np.array(arrays[0].shape[node["start"] : node["end"]], np.int64)


def size(node: Node, arrays: Arrays) -> np.ndarray:
    """The number of elements."""
    return np.array(arrays[0].size, np.int64)


def _infer_shape(node: Node, inputs: Inputs) -> list[Value]:
    return [Value.of(np.array(inputs[0].shape[node["start"] : node["end"]], np.int64))]


def _infer_size(node: Node, inputs: Inputs) -> list[Value]:
    return [Value.of(np.array(math.prod(inputs[0].shape), np.int64))]


def constant_of_shape(node: Node, arrays: Arrays) -> np.ndarray:
    """One value everywhere; float32 zero where none is given."""
    value = np.zeros(1, np.float32) if node["value"] is None else node["value"]
    return np.broadcast_to(value.reshape(()), integers(arrays[0]))


def range_(node: Node, arrays: Arrays) -> np.ndarray:
    """start, start + delta, ... below the limit."""
    start, limit, delta = (array.item() for array in arrays)
    return (np.arange(max(0, math.ceil((limit - start) / delta))) * delta + start).astype(arrays[0].dtype)


def _infer_range(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(range_(node, [value.array for value in inputs]).shape, inputs[0].dtype)]


OPS = (
    Op("Transpose", as_reference(transpose), transpose, {"perm": None}),
    Op("Reshape", as_reference(reshape), reshape, {"allowzero": 0}, parameters=(1,)),
    Op("Flatten", as_reference(flatten), flatten, {"axis": 1}),
    Op("Squeeze", as_reference(squeeze), squeeze, parameters=(1,)),
    Op("Unsqueeze", as_reference(unsqueeze), unsqueeze, parameters=(1,)),
    Op("Identity", like_first, identity),
    Op("Cast", _infer_cast, identity, {"to": REQUIRED, "saturate": 1, "round_mode": "up"}),
    Op("CastLike", _infer_cast_like, identity, {"saturate": 1, "round_mode": "up"}, mixed=True),
    Op("Expand", as_reference(expand), expand, parameters=(1,)),
    Op("Shape", _infer_shape, shape, {"start": 0, "end": None}),
    Op("Size", _infer_size, size),
    Op("ConstantOfShape", as_reference(constant_of_shape), constant_of_shape, {"value": None}, parameters=(0,)),
    Op("Range", _infer_range, range_, {"stash_type": 1}, parameters=(0, 1, 2)),
)
