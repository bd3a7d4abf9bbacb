"""Resize in all its modes, DepthToSpace and SpaceToDepth.

Source: ONNX operators Resize, DepthToSpace and SpaceToDepth. Resize processes the axes one by one: each output has a
coordinate in the input and is a weighted mean of the inputs around it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.elements import OF_DTYPE
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Op, axis_in, given, integers, known
from cpuconv.graph.ops.planes import blocked_offer, blocked_size, dense_offers, is_image
from cpuconv.graph.ops.quantised_variants import affine_map, quantised_variant
from cpuconv.graph.ops.traits import Int8, Movement
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import DENSE, STRIDED, image_shape, stored_as
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.copies.tensor_views import depth_and_space
from cpuconv.kernels.windows.resizing import Sources, resize_step
from cpuconv.problem.resizing import Axis, resize, resized_axes, sources
from cpuconv.symbolic.sizes import SIZES, applied

# --- axes and sizes -------------------------------------------------------------------------------------------------


def _resized(node: Node, shape: Sequence[int], *parameters: np.ndarray | None) -> list[Axis]:
    """Parameters of every axis that the node resizes."""
    axes = [axis_in(axis, len(shape)) for axis in (range(len(shape)) if node["axes"] is None else node["axes"])]
    region, scales, sizes = parameters
    return resized_axes(node.attributes, shape, axes, region, scales, None if sizes is None else integers(sizes))


def _parameters(inputs: Inputs) -> list[np.ndarray | None]:
    """Region, scales and sizes; `inputs` are values or places."""
    return [known(inputs, at) for at in (1, 2, 3)]


def _infer_resize(node: Node, inputs: Inputs) -> list[Value]:
    x = inputs[0]
    shape = list(x.shape)
    for one in _resized(node, x.shape, *_parameters(inputs)):
        shape[one.axis] = one.outputs
    return [Value(tuple(shape), x.dtype)]


def _resize(node: Node, arrays: Arrays) -> np.ndarray:
    axes = _resized(node, arrays[0].shape, *(given(arrays, at) for at in (1, 2, 3)))
    return resize(node.attributes, arrays[0], axes)


# --- kernels --------------------------------------------------------------------------------------------------------

_TAPS = {"nearest": 1, "linear": 2}  # inputs per output along an axis
_OPERATIONS = {"nearest": 1, "linear": 10}  # per output: arithmetic and loads


def _axis_sources(node: Node, one: Axis | None, size: int, taps: int) -> Sources | None:
    """Inputs of an axis of the plane, `taps` per output; None if there are more."""
    if one is None:  # unchanged axis: a copy, or 0.5·x + 0.5·x, which is exact
        return np.arange(size)[:, None].repeat(taps, 1), np.full((size, taps), 1 / taps)
    inputs, weights, _ = sources(node.attributes, one)
    return (inputs, np.ones(inputs.shape) if weights is None else weights) if inputs.shape[1] == taps else None


def _plane_sources(
    node: Node, shape: Sequence[int], parameters: Sequence[np.ndarray | None]
) -> tuple[Sources, Sources] | None:
    """Inputs of rows and of columns; None if kernels do not support the node."""
    axes = {one.axis: one for one in _resized(node, shape, *parameters) if not one.unchanged}
    cropped = node["coordinate_transformation_mode"] == "tf_crop_and_resize"
    if cropped or node["mode"] not in _TAPS or axes.keys() & {0, 1}:
        return None
    *_, h, w = image_shape(shape)
    rows, columns = (
        _axis_sources(node, axes.get(len(shape) - back), size, _TAPS[node["mode"]]) for back, size in ((2, h), (1, w))
    )
    return rows and columns and (rows, columns)


def _has_plane_sources(node: Node, shape: Sequence[int], parameters: Sequence[np.ndarray | None]) -> bool:
    return _plane_sources(node, shape, parameters) is not None


def _for_traced_sizes(
    function: Callable[..., Any], node: Node, shape: Sequence[int], parameters: Sequence[np.ndarray | None]
) -> Any:
    """Compute `function(node, shape, parameters)`; in a trace, it is recomputed for other sizes."""
    counts = [array.size if array is not None and array.dtype == SIZES else 0 for array in parameters]
    plain = [None if count else array for array, count in zip(parameters, counts, strict=True)]
    sizes = [
        each
        for array, count in zip(parameters, counts, strict=True)
        if array is not None and count
        for each in array.ravel().tolist()
    ]
    return applied(partial(_rebuilt, function, node, len(shape), plain, counts), *shape, *sizes)


def _rebuilt(
    function: Callable[..., Any],
    node: Node,
    rank: int,
    plain: Sequence[np.ndarray | None],
    counts: Sequence[int],
    *numbers: int,
) -> Any:
    left = iter(numbers[rank:])
    parameters = [
        np.array([*itertools.islice(left, count)], np.int64) if count else array
        for array, count in zip(plain, counts, strict=True)
    ]
    return function(node, numbers[:rank], parameters)


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer in channel blocks, and dense for copies, if an output is one pixel of its plane or a mean of two by two."""
    x = inputs[0]
    if not is_image(x, True) or any(value is not None and value.array is None for value in inputs[1:]):
        return []
    (y,) = _infer_resize(node, inputs)
    if not is_image(y, True) or not _for_traced_sizes(_has_plane_sources, node, x.shape, _parameters(inputs)):
        return []
    dense = dense_offers(node, x, y, target, 1) if node["mode"] == "nearest" else []
    return dense + blocked_offer(node, x, y, target, _OPERATIONS[node["mode"]] * blocked_size(y, target), narrow=True)


def _lower(call: Call) -> list[Step]:
    x, y = call.x, call.y
    tables = _for_traced_sizes(_plane_sources, call.node, x.shape, _parameters(call.inputs))
    assert tables is not None
    return [resize_step(call.target.isa, x, y, tables, _TAPS[call.node["mode"]], call.target.parts(x.size + y.size))]


def of_planes(node: Node, inputs: Inputs) -> bool:
    """Whether the node only computes means of two by two pixels, with other inputs constant."""
    x, (y,) = inputs[0], _infer_resize(node, inputs)
    known = all(value is None or value.array is not None for value in inputs[1:])
    image = known and node["mode"] == "linear" and is_image(x, True) and is_image(y, True)
    return image and _plane_sources(node, x.shape, _parameters(inputs)) is not None


def _offers_int8(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer in channel blocks."""
    x, (y,) = inputs[0], _infer_resize(node, inputs)
    if not of_planes(node, inputs) or node["y"] != x.dtype:
        return []
    return blocked_offer(node, x, y, target, _OPERATIONS["linear"] * blocked_size(y, target))


def _lower_int8(call: Call) -> list[Step]:
    """Compute means of integers in the scale of the output."""
    x, y, (factor, added) = call.x, call.y, affine_map(call.node)
    tables = _plane_sources(call.node, x.shape, _parameters(call.inputs))
    assert tables is not None
    (inputs, weights), columns = tables
    parts = call.target.parts(x.size + y.size)
    return [resize_step(call.target.isa, x, y, ((inputs, weights * factor), columns), _TAPS["linear"], parts, added)]


# --- DepthToSpace and SpaceToDepth ----------------------------------------------------------------------------------


def _infer_to_space(node: Node, inputs: Inputs) -> list[Value]:
    (n, c, h, w), b = inputs[0].shape, node["blocksize"]
    if c % (b * b):
        raise ValueError(f"{c} channels are no multiple of {b}x{b}")
    return [Value((n, c // (b * b), h * b, w * b), inputs[0].dtype)]


def depth_to_space(node: Node, arrays: Arrays) -> np.ndarray:
    """Rearrange b*b channels to b x b pixels; these channels have stride C/(b*b) (DCR) or are adjacent (CRD)."""
    (x,), b = arrays, node["blocksize"]
    n, c, h, w = x.shape
    if node["mode"] == "DCR":
        blocks = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c // (b * b), h * b, w * b)


def _infer_to_depth(node: Node, inputs: Inputs) -> list[Value]:
    (n, c, h, w), b = inputs[0].shape, node["blocksize"]
    if h % b or w % b:
        raise ValueError(f"a plane of {h}x{w} has no whole blocks of {b}x{b}")
    return [Value((n, c * b * b, h // b, w // b), inputs[0].dtype)]


def space_to_depth(node: Node, arrays: Arrays) -> np.ndarray:
    """Rearrange b x b pixels to channels: the inverse of DepthToSpace."""
    (x,), b = arrays, node["blocksize"]
    n, c, h, w = x.shape
    order = (0, 3, 5, 1, 2, 4) if node["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.reshape(n, c, h // b, b, w // b, b).transpose(order).reshape(n, c * b * b, h // b, w // b)


def _shuffle_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer in channel blocks if these stay whole, else from any strides: one copy."""
    (x,), b = inputs, node["blocksize"]
    if not is_image(x, whole=True):
        return []
    to_space = node.op == "DepthToSpace"
    kept = x.shape[1] // (b * b) if to_space else x.shape[1]
    together = node.attributes.get("mode", "DCR") == "DCR"
    forms = {form: stored_as(form, x.dtype) for form in target.blocks(x.dtype) if together}
    whole = {form: dtype for form, dtype in forms.items() if kept % target.isa.block(OF_DTYPE[dtype]) == 0}
    ways = [((form,), (form,), dtype.itemsize) for form, dtype in whole.items()]
    ways.append(((STRIDED,), (DENSE,), x.dtype.itemsize))
    return [Offer(first, second, target.moving(2 * size * math.prod(x.shape))) for first, second, size in ways]


def _lower_shuffle(call: Call) -> list[Step]:
    x, y, node = call.x, call.y, call.node
    together = node.attributes.get("mode", "DCR") == "CRD"
    if node.op == "DepthToSpace":
        return move_tensor(call.target, call.space, *depth_and_space(x, y, node["blocksize"], together))
    deep, flat = depth_and_space(y, x, node["blocksize"], together)
    return move_tensor(call.target, call.space, flat, deep)


_RESIZE = {
    "antialias": 0,
    "axes": None,
    "coordinate_transformation_mode": "half_pixel",
    "cubic_coeff_a": -0.75,
    "exclude_outside": 0,
    "extrapolation_value": 0.0,
    "keep_aspect_ratio_policy": "stretch",
    "mode": "nearest",
    "nearest_mode": "round_prefer_floor",
}
_SHUFFLE = {"blocksize": REQUIRED, "mode": "DCR"}
_SHUFFLED: dict[str, Any] = {"widened": False, "offers": _shuffle_offers, "lower": _lower_shuffle}
_SHUFFLED["signature"] = "x: uint8|int8|float32 (N C H W) -> y: =x (N D I J)"
_SHUFFLED |= {"movement": Movement.ALL, "int8": Int8.MOVED}
_STATED = "region?: known, scales?: known, sizes?: known -> y: =x (N C Q...)"
_PLANES: dict[str, Any] = {"offers": _offers, "lower": _lower, "window": True, "int8": Int8.SAME_SCALE}
_PLANES["signature"] = f"x: uint8|int8|float32 (N C P...), {_STATED}"

_RESIZING = Op("Resize", _infer_resize, _resize, _RESIZE, parameters=(1, 2, 3), **_PLANES)

OPS = (
    _RESIZING,
    quantised_variant(_RESIZING, _offers_int8, _lower_int8, f"x: uint8|int8 (N C P...), {_STATED}"),
    Op("DepthToSpace", _infer_to_space, depth_to_space, _SHUFFLE, **_SHUFFLED),
    Op("SpaceToDepth", _infer_to_depth, space_to_depth, _SHUFFLE, **_SHUFFLED),
)
