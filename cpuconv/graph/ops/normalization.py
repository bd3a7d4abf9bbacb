"""Normalisation by stored statistics, by statistics of the input and across channels; Softmax.

Source: ONNX operators of these names, as at inference.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.elements import F32
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import (
    FLOATS,
    REQUIRED,
    Arrays,
    Inputs,
    Op,
    Reference,
    axis_in,
    broadcast_shapes,
    defined,
    given,
    like_first,
)
from cpuconv.graph.ops.planes import is_image, lower_rowwise, rowwise_offers, stored
from cpuconv.graph.ops.quantised_variants import quantised_variant
from cpuconv.graph.ops.traits import Int8, Sign
from cpuconv.kernels.axis.lines import Axes
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import BLOCKED, DENSE, FLOAT32, blocked_shape, stored_as, unrounded
from cpuconv.kernels.channels.instance_norm import normalise_steps
from cpuconv.kernels.channels.local_response_norm import norm_step
from cpuconv.problem import normalization as definition


def _infer_volumes(node: Node, inputs: Inputs) -> list[Value]:
    if node["volumes"] < 1 or inputs[0].shape[0] % node["volumes"]:
        raise ValueError(f"{inputs[0].shape[0]} slices of {node['volumes']} volumes")
    return _infer_channels(node, inputs[:3])


def _infer_layer(node: Node, inputs: Inputs) -> list[Value]:
    x = inputs[0]
    axis = axis_in(node["axis"], len(x.shape))
    for vector in filter(None, inputs[1:]):
        if broadcast_shapes(x.shape, vector.shape) != x.shape:
            raise ValueError(f"a scale or bias of shape {vector.shape} does not broadcast to the input")
    kept = Value((*x.shape[:axis], *[1] * (len(x.shape) - axis)), np.dtype(np.float32))
    return [Value(x.shape, x.dtype), kept, kept][: len(node.outputs)]


def layer_normalization(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Normalise over the last axes, apply scale and bias; also return mean and inverse standard deviation."""
    x, scale, bias = *arrays[:2], given(arrays, 2)
    y, mean, inverse = definition.standard(x, tuple(range(axis_in(node["axis"], x.ndim), x.ndim)), node["epsilon"])
    y = y * scale
    return y if bias is None else y + bias, mean, inverse


def _infer_lrn(node: Node, inputs: Inputs) -> list[Value]:
    if node["size"] < 1:
        raise ValueError(f"'size' must be at least 1, not {node['size']}")
    if len(inputs[0].shape) < 2:
        raise ValueError("there are no channels")
    return like_first(node, inputs)


def _infer_along(node: Node, inputs: Inputs) -> list[Value]:
    axis_in(node["axis"], len(inputs[0].shape))
    return like_first(node, inputs)


def _infer_channels(node: Node, inputs: Inputs) -> list[Value]:
    for vector in inputs[1:]:
        if vector.shape != inputs[0].shape[1:2]:
            raise ValueError("there must be one number a channel")
    return like_first(node, inputs)


def _infer_batch(node: Node, inputs: Inputs) -> list[Value]:
    return _infer_channels(node, inputs) if len(inputs[0].shape) > 1 else like_first(node, inputs)


def _infer_groups(node: Node, inputs: Inputs) -> list[Value]:
    groups, channels = node["num_groups"], inputs[0].shape[1]
    if groups < 1 or channels % groups:
        raise ValueError(f"{channels} channels cannot be {groups} groups")
    return _infer_channels(node, inputs)


_SOFTMAX_OPERATIONS, _STANDARD_OPERATIONS, _LRN_OPERATIONS = 17, 8, 12  # vector operations per element


def _offers_softmax(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    return rowwise_offers(node, inputs, _SOFTMAX_OPERATIONS, target)


def _lower_softmax(call: Call) -> list[Step]:
    axis = axis_in(call.node["axis"], len(call.outputs[0].shape))
    return lower_rowwise(call, Axes(axis, axis + 1), call.outputs[0])


def _softmax_op(name: str, reference: Reference, **traits: Any) -> Op:
    kernels: dict[str, Any] = {"offers": _offers_softmax, "lower": _lower_softmax, "signature": FLOATS}
    return Op(name, _infer_along, reference, {"axis": -1}, **kernels, in_place=True, rowwise=True, **traits)


def _offers_layer(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer for the first output only, with scale and bias of whole rows."""
    x, *affine = (value for value in inputs if value is not None)
    line = x.shape[axis_in(node["axis"], len(x.shape)) :]
    if any(node.outputs[1:]) or any(value.shape != line for value in affine):
        return []
    return rowwise_offers(node, inputs, _STANDARD_OPERATIONS, target)


def _lower_layer(call: Call) -> list[Step]:
    rank = len(call.outputs[0].shape)
    affine = [place for place in call.inputs[1:] if place is not None]
    axes = Axes(axis_in(call.node["axis"], rank), rank)
    return lower_rowwise(call, axes, call.outputs[0], affine, epsilon=call.node["epsilon"], shift=len(affine) > 1)


def _offers_instance(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer in plain layout, one row per plane; or in channel blocks."""
    made = rowwise_offers(node, inputs, _STANDARD_OPERATIONS, target) if len(inputs[0].shape) > 2 else []
    return made + _offers_volume(node, inputs, target)


def _offers_volume(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer in channel blocks, with constant scale and bias; the residual has the form of the output."""
    x, *vectors = inputs[:3]
    if not is_image(x) or any(vector.array is None for vector in vectors) or node["epsilon"] <= 0:
        return []
    offers = []
    for read, written in itertools.product(target.blocks(), repeat=2):
        sizes = [math.prod(blocked_shape(x.shape, target.block(stored_as(f, FLOAT32)))) for f in (read, written)]
        if sizes[1] <= sizes[0]:
            seconds = target.moving(2 * sizes[0] * stored(read) + sizes[1] * stored(written))
            seconds = max(seconds, target.computing(_STANDARD_OPERATIONS * sizes[0]))
            offers.append(Offer((read, "", "", *[written] * len(inputs[3:])), (written,), seconds))
    return offers


def _lower_instance(call: Call) -> list[Step]:
    x, y, scale, bias = call.x, call.y, *call.inputs[1:3]
    assert scale is not None and bias is not None
    node = call.node
    if unrounded(call.offer.outputs[0]) == BLOCKED:
        assert scale.array is not None and bias.array is not None
        ending = node.attributes.get("volumes", 0), call.given(3), node.attributes.get("activation")
        affine = scale.array, bias.array
        return normalise_steps(call.target, call.space, x, y, affine, node["epsilon"], *ending)
    axes = Axes(2, len(y.shape))
    return lower_rowwise(call, axes, y, (scale, bias), channels=y.shape[1], epsilon=node["epsilon"])


def _offers_lrn(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer in planes; also in channel blocks if the window only reaches adjacent blocks."""
    (x,) = inputs
    if x.dtype != FLOAT32 or len(x.shape) not in (3, 4) or 0 in x.shape or node["bias"] <= 0 or node["alpha"] < 0:
        return []
    size = F32.bytes * math.prod(x.shape)
    ways = (DENSE, BLOCKED) if node["size"] <= 2 * target.isa.lanes + 1 else (DENSE,)
    seconds = target.moving(2 * size) + target.computing((node["size"] + _LRN_OPERATIONS) * size / F32.bytes)
    return [Offer((way,), (way,), seconds) for way in ways]


def _lower_lrn(call: Call) -> list[Step]:
    return [norm_step(call.target, call.x, call.y, *(call.node[name] for name in ("size", "alpha", "beta", "bias")))]


_STATED = {"epsilon": 1e-5, "momentum": 0.9, "training_mode": 0}
_GROUPS = {"epsilon": 1e-5, "num_groups": REQUIRED, "stash_type": 1}
_LAYER = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
_LRN = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0, "size": REQUIRED}
_BY_PLANES: dict[str, Any] = {"offers": _offers_instance, "lower": _lower_instance, "in_place": True}
_ROWWISE_KERNELS: dict[str, Any] = {"offers": _offers_layer, "lower": _lower_layer, "in_place": True, "rowwise": True}
_CHANNELS = "x: float32 (N C P...), scale: float32 (C), bias: float32 (C) -> y: float32 (N C P...)"
_AFFINE = "scale: float32 ~(S...), bias?: float32 ~(S...)"
_ROWS_SIGNATURE = f"x: float32 (S...), {_AFFINE} -> y: float32 (S...)"
_ROWWISE_KERNELS["signature"] = _ROWS_SIGNATURE
_QUANTISED_ROWS = f"x: uint8|int8|float32 (S...), {_AFFINE} -> y: uint8|int8|float32 (S...)"

_SOFTMAX = _softmax_op("Softmax", defined(definition.softmax), int8=Int8.RESCALED, sign=Sign.NONNEGATIVE)
_NORMALISED = Op("LayerNormalization", _infer_layer, layer_normalization, _LAYER, **_ROWWISE_KERNELS)

OPS = (
    Op("BatchNormalization", _infer_batch, defined(definition.batch_normalization), _STATED, mixed=True),
    Op(
        "InstanceNormalization",
        _infer_channels,
        defined(definition.instance_normalization),
        {"epsilon": 1e-5},
        **_BY_PLANES,
        signature=_CHANNELS,
    ),
    Op(
        "VolumeNormalization",
        _infer_volumes,
        defined(definition.volume_normalization),
        {"epsilon": 1e-5, "volumes": 1, "activation": None},
        **{**_BY_PLANES, "offers": _offers_volume},
        signature=_CHANNELS.replace(" ->", ", added?: float32 (N C P...) ->"),
        own=True,
    ),
    Op("GroupNormalization", _infer_groups, defined(definition.group_normalization), _GROUPS),
    _NORMALISED,
    quantised_variant(_NORMALISED, _offers_layer, _lower_layer, _QUANTISED_ROWS),
    Op("LpNormalization", _infer_along, defined(definition.lp_normalization), {"axis": -1, "p": 2}),
    Op("MeanVarianceNormalization", like_first, defined(definition.mean_variance_normalization), {"axes": [0, 2, 3]}),
    Op("LRN", _infer_lrn, defined(definition.lrn), _LRN, offers=_offers_lrn, lower=_lower_lrn, signature=FLOATS),
    _SOFTMAX,
    quantised_variant(
        _SOFTMAX, _offers_softmax, _lower_softmax, "x: uint8|int8|float32 (S...) -> y: uint8|int8|float32 (S...)"
    ),
    _softmax_op("LogSoftmax", defined(definition.log_softmax)),
)
