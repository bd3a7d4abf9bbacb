"""Activations: functions of one element, with scalars as attributes or as a second operand.

Source: ONNX operators of these names; those that the epilogues know are `cpuconv.problem.activation`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import Arrays, Inputs, Op, broadcast, given, like_first
from cpuconv.graph.ops.elementwise import native
from cpuconv.problem import activation


def _of(name: str, *scalars: str) -> Callable[[Node, Arrays], np.ndarray]:
    """The epilogues' activation `name`, its scalars from the node's attributes."""
    return lambda node, arrays: activation.TABLE[name].apply(arrays[0], *(node[scalar] for scalar in scalars))


def _relu(node: Node, arrays: Arrays) -> np.ndarray:
    return np.maximum(arrays[0], 0)


def _clip(node: Node, arrays: Arrays) -> np.ndarray:
    """min(max(x, lo), hi): hi where lo is greater."""
    x, lo, hi = arrays[0], given(arrays, 1), given(arrays, 2)
    x = x if lo is None else np.maximum(x, lo)
    return x if hi is None else np.minimum(x, hi)


def _prelu(node: Node, arrays: Arrays) -> np.ndarray:
    x, slope = arrays
    return np.where(x < 0, x * slope, x)


def _infer_prelu(node: Node, inputs: Inputs) -> list[Value]:
    (out,) = broadcast(node, inputs)
    if out.shape != inputs[0].shape:
        raise ValueError("the slope does not broadcast to the input")
    return [out]


def _elu(node: Node, arrays: Arrays) -> np.ndarray:
    return np.where(arrays[0] > 0, arrays[0], node["alpha"] * np.expm1(arrays[0]))


def _selu(node: Node, arrays: Arrays) -> np.ndarray:
    return node["gamma"] * _elu(node, arrays)


def _celu(node: Node, arrays: Arrays) -> np.ndarray:
    (x,) = arrays
    return np.maximum(x, 0) + np.minimum(0, node["alpha"] * np.expm1(x / node["alpha"]))


def _thresholded_relu(node: Node, arrays: Arrays) -> np.ndarray:
    return np.where(arrays[0] > node["alpha"], arrays[0], 0)


def _hard_sigmoid(node: Node, arrays: Arrays) -> np.ndarray:
    return np.clip(node["alpha"] * arrays[0] + node["beta"], 0, 1)


def _softplus(node: Node, arrays: Arrays) -> np.ndarray:
    return np.logaddexp(arrays[0], 0)


def _softsign(node: Node, arrays: Arrays) -> np.ndarray:
    return arrays[0] / (1 + np.abs(arrays[0]))


def _mish(node: Node, arrays: Arrays) -> np.ndarray:
    return arrays[0] * np.tanh(_softplus(node, arrays))


def _swish(node: Node, arrays: Arrays) -> np.ndarray:
    return arrays[0] / (1 + np.exp(-node["alpha"] * arrays[0]))


def _gelu(node: Node, arrays: Arrays) -> np.ndarray:
    return activation.TABLE["gelu_tanh" if node["approximate"] == "tanh" else "gelu"].apply(arrays[0])


def _infer_clip(node: Node, inputs: Inputs) -> list[Value]:
    for end in inputs[1:]:
        if end is not None and math.prod(end.shape) != 1:
            raise ValueError("each end must be one number")
    return like_first(node, inputs)


OPS = native(
    Op("Relu", like_first, _relu),
    Op("Clip", _infer_clip, _clip, mixed=True),  # before opset 11 the ends are float32
    Op("LeakyRelu", like_first, _of("leaky_relu", "alpha"), {"alpha": 0.01}),
    Op("PRelu", _infer_prelu, _prelu),
    Op("ThresholdedRelu", like_first, _thresholded_relu, {"alpha": 1.0}),
    Op("Elu", like_first, _elu, {"alpha": 1.0}),
    Op("Selu", like_first, _selu, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    Op("Celu", like_first, _celu, {"alpha": 1.0}),
    Op("Sigmoid", like_first, _of("sigmoid")),
    Op("HardSigmoid", like_first, _hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    Op("HardSwish", like_first, _of("hardswish")),
    Op("Tanh", like_first, _of("tanh")),
    Op("Softplus", like_first, _softplus),
    Op("Softsign", like_first, _softsign),
    Op("Mish", like_first, _mish),
    Op("Swish", like_first, _swish, {"alpha": 1.0}),
    Op("Gelu", like_first, _gelu, {"approximate": "none"}),
)
