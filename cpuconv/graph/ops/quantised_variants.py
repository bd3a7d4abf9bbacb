"""Quantised versions of floating-point operators; the rewrite `quantised` makes them of ONNX's operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpuconv.elements import OF_DTYPE
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call
from cpuconv.graph.ops.base import EXACT, REQUIRED, Arrays, Inputs, Lower, Offers, Op, is_float
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.kernels.elementwise.driver import zero_tail_channels
from cpuconv.problem.quantization import bounds

SCALES = {"x_scale": REQUIRED, "x_zero_point": 0, "y": REQUIRED, "y_scale": REQUIRED, "y_zero_point": 0}
"""Scale and zero point of the first input and of the output, and the type of the output."""


def quantised_variant(op: Op, offers: Offers, lower: Lower, signature: str) -> Op:
    """Make the row of an operator on dequantised values, with the result quantised once; either may be float32 instead.

    `lower` may leave any values in padding channels; they are zeroed afterwards.
    """

    def infer(node: Node, inputs: Inputs) -> list[Value]:
        return [Value(op.rule(node, inputs)[0].shape, node["y"])]

    def reference(node: Node, arrays: Arrays) -> np.ndarray:
        x = arrays[0].astype(np.float64)
        if not is_float(arrays[0].dtype):
            x = (x - node["x_zero_point"]) * node["x_scale"]
        results = op.reference(node, [x, *arrays[1:]])
        y = results[0] if isinstance(results, tuple) else results
        if node["y"] == FLOAT32:
            return y
        return np.clip(np.rint(y / node["y_scale"]) + node["y_zero_point"], *bounds(OF_DTYPE[node["y"]]))

    def cleared(call: Call) -> list[Step]:
        tail = call.y.block > 1 and call.y.shape[1] % call.y.block
        return [*lower(call), *([zero_tail_channels(call.target, call.y)] if tail else [])]

    attributes = {**op.attributes, **SCALES}
    row: dict[str, Any] = {"offers": offers, "lower": cleared, "signature": signature, **EXACT, "own": True}
    return Op(f"Quantized{op.name}", infer, reference, attributes, op.parameters, **row)


def affine_map(node: Node) -> tuple[float, float]:
    """Coefficients (a, b): the input integer q corresponds to a q + b in the output's scale."""
    factor = node["x_scale"] / node["y_scale"]
    return factor, node["y_zero_point"] - node["x_zero_point"] * factor
