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
from cpuconv.problem import activation as activations


def _per_channel(vector: np.ndarray, rank: int) -> np.ndarray:
    """Reshape a per-channel vector to broadcast over (N, C, ...)."""
    return vector.reshape(-1, *[1] * (rank - 2))


def _standard(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normalise x to mean 0 and variance 1 over `axes`; return it, the mean and the inverse standard deviation."""
    mean = x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


def batch_normalization(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute (x - mean) / sqrt(var + epsilon) * scale + bias per channel."""
    x = arrays[0]
    scale, bias, mean, var = (_per_channel(vector, max(2, x.ndim)) for vector in arrays[1:])
    return (x - mean) / np.sqrt(var + node["epsilon"]) * scale + bias


def instance_normalization(node: Node, arrays: Arrays) -> np.ndarray:
    """Normalise each plane to mean 0 and variance 1, then apply scale and bias per channel."""
    x = arrays[0]
    scale, bias = (_per_channel(vector, x.ndim) for vector in arrays[1:])
    return _standard(x, tuple(range(2, x.ndim)), node["epsilon"])[0] * scale + bias


def volume_normalization(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute activation(instance normalisation + residual) of volumes, whose depth slices are the images of x.

    Image i is a slice of volume i modulo `volumes`. The residual is the optional fourth input.
    """
    x, scale, bias, residual = *arrays[:3], given(arrays, 3)
    slices = x.reshape(-1, node["volumes"], *x.shape[1:])
    y = _standard(slices, (0, *range(3, slices.ndim)), node["epsilon"])[0].reshape(x.shape)
    y = y * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)
    return activations.apply(y if residual is None else y + residual, node["activation"])


def group_normalization(node: Node, arrays: Arrays) -> np.ndarray:
    """Normalise each group of channels to mean 0 and variance 1, then apply scale and bias per channel."""
    x = arrays[0]
    scale, bias = (_per_channel(vector, x.ndim) for vector in arrays[1:])
    grouped = x.reshape(len(x), node["num_groups"], math.prod(x.shape[1:]) // node["num_groups"])
    return _standard(grouped, (2,), node["epsilon"])[0].reshape(x.shape) * scale + bias


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
    y, mean, inverse = _standard(x, tuple(range(axis_in(node["axis"], x.ndim), x.ndim)), node["epsilon"])
    y = y * scale
    return y if bias is None else y + bias, mean, inverse


def lp_normalization(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute x / (sum of |x|^p)^(1/p) along an axis; 0 where all elements are 0."""
    (x,) = arrays
    norm = (np.abs(x) ** node["p"]).sum(node["axis"], keepdims=True) ** (1 / node["p"])
    return np.where(norm == 0, 0, x / norm)


def mean_variance_normalization(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute (x - mean) / (standard deviation + 1e-9) over axes."""
    (x,) = arrays
    axes = tuple(node["axes"])
    return (x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9)


def _infer_lrn(node: Node, inputs: Inputs) -> list[Value]:
    if node["size"] < 1:
        raise ValueError(f"'size' must be at least 1, not {node['size']}")
    if len(inputs[0].shape) < 2:
        raise ValueError("there are no channels")
    return like_first(node, inputs)


def lrn(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute x / (bias + alpha / size * sum of squares over `size` neighbouring channels)^beta."""
    (x,) = arrays
    size, channels = node["size"], x.shape[1]
    squares = np.zeros_like(x)
    for c in range(channels):
        first, last = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
        squares[:, c] = (x[:, first:last] ** 2).sum(1)
    return x / (node["bias"] + node["alpha"] / size * squares) ** node["beta"]


def log_softmax(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute log(exp(x) / sum of exp(x)) along an axis."""
    (x,) = arrays
    shifted = x - x.max(node["axis"], keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(node["axis"], keepdims=True))


def softmax(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute exp(x) / sum of exp(x) along an axis."""
    return np.exp(log_softmax(node, arrays))


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

_SOFTMAX = _softmax_op("Softmax", softmax, int8=Int8.RESCALED, sign=Sign.NONNEGATIVE)
_NORMALISED = Op("LayerNormalization", _infer_layer, layer_normalization, _LAYER, **_ROWWISE_KERNELS)

OPS = (
    Op("BatchNormalization", _infer_batch, batch_normalization, _STATED, mixed=True),
    Op(
        "InstanceNormalization",
        _infer_channels,
        instance_normalization,
        {"epsilon": 1e-5},
        **_BY_PLANES,
        signature=_CHANNELS,
    ),
    Op(
        "VolumeNormalization",
        lambda node, inputs: _infer_channels(node, inputs[:3]),
        volume_normalization,
        {"epsilon": 1e-5, "volumes": 1, "activation": None},
        **{**_BY_PLANES, "offers": _offers_volume},
        signature=_CHANNELS.replace(" ->", ", added?: float32 (N C P...) ->"),
        own=True,
    ),
    Op("GroupNormalization", _infer_groups, group_normalization, _GROUPS),
    _NORMALISED,
    quantised_variant(_NORMALISED, _offers_layer, _lower_layer, _QUANTISED_ROWS),
    Op("LpNormalization", _infer_along, lp_normalization, {"axis": -1, "p": 2}),
    Op("MeanVarianceNormalization", like_first, mean_variance_normalization, {"axes": [0, 2, 3]}),
    Op("LRN", _infer_lrn, lrn, _LRN, offers=_offers_lrn, lower=_lower_lrn, signature=FLOATS),
    _SOFTMAX,
    quantised_variant(
        _SOFTMAX, _offers_softmax, _lower_softmax, "x: uint8|int8|float32 (S...) -> y: uint8|int8|float32 (S...)"
    ),
    _softmax_op("LogSoftmax", log_softmax),
)
