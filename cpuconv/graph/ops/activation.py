"""Activations: elementwise functions, with scalars as attributes or as a second operand.

Source: ONNX operators of these names. Their expressions (`cpuconv.graph.ops.elementwise`) define them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import Arrays, Inputs, Op, broadcast, given, like_first
from cpuconv.graph.ops.elementwise import native
from cpuconv.graph.ops.elementwise_forms import FORMS
from cpuconv.graph.ops.traits import Int8, Sign
from cpuconv.kernels.elementwise.expression import Operand


def _formula(node: Node, arrays: Arrays) -> np.ndarray:
    """Evaluate the operator's expression, in floating point; operators that support integers do not use it."""
    return FORMS[node.op](node, *map(Operand, range(len(arrays)))).evaluate(arrays)


def _relu(node: Node, arrays: Arrays) -> np.ndarray:
    return np.maximum(arrays[0], 0)


def _clip(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute min(max(x, lo), hi): hi where lo is greater."""
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


def _infer_clip(node: Node, inputs: Inputs) -> list[Value]:
    for end in inputs[1:]:
        if end is not None and math.prod(end.shape) != 1:
            raise ValueError("each limit must be one number")
    return like_first(node, inputs)


_BETWEEN: dict[str, Any] = {"int8": Int8.RESCALED}
_POSITIVE: dict[str, Any] = {"sign": Sign.NONNEGATIVE, **_BETWEEN}

OPS = native(
    Op("Relu", like_first, _relu, **_POSITIVE),
    Op("Clip", _infer_clip, _clip, mixed=True, **_BETWEEN),  # before opset 11 the bounds are float32
    Op("LeakyRelu", like_first, _formula, {"alpha": 0.01}, **_BETWEEN),
    Op("PRelu", _infer_prelu, _prelu, **_BETWEEN),
    Op("ThresholdedRelu", like_first, _formula, {"alpha": 1.0}),
    Op("Elu", like_first, _formula, {"alpha": 1.0}, **_BETWEEN),
    Op("Selu", like_first, _formula, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    Op("Celu", like_first, _formula, {"alpha": 1.0}),
    Op("Sigmoid", like_first, _formula, **_POSITIVE),
    Op("HardSigmoid", like_first, _formula, {"alpha": 0.2, "beta": 0.5}, **_POSITIVE),
    Op("HardSwish", like_first, _formula, **_BETWEEN),
    Op("Tanh", like_first, _formula, **_BETWEEN),
    Op("Softplus", like_first, _formula, sign=Sign.NONNEGATIVE),
    Op("Softsign", like_first, _formula),
    Op("Mish", like_first, _formula, **_BETWEEN),
    Op("Swish", like_first, _formula, {"alpha": 1.0}),
    Op("Gelu", like_first, _formula, {"approximate": "none"}, **_BETWEEN),
)
