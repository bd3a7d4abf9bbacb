"""Means of bytes as bytes: operators of our own, which the rewrite `quantised` makes of ONNX's between scales."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpuconv.elements import OF_DTYPE
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Lower, Offers, Op
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.elementwise.driver import clear_channels
from cpuconv.problem.quantization import bounds

SCALES = {"x_scale": REQUIRED, "x_zero_point": 0, "y": REQUIRED, "y_scale": REQUIRED, "y_zero_point": 0}
"""What integers of the first input and of the output mean, and the type of the output."""


def of_bytes(op: Op, offers: Offers, lower: Lower) -> Op:
    """The row of an operator on what bytes mean, with the result rounded to bytes once.

    `lower` leaves what it likes in lanes that are no channels.
    """

    def infer(node: Node, inputs: Inputs) -> list[Value]:
        return [Value(op.rule(node, inputs)[0].shape, node["y"])]

    def reference(node: Node, arrays: Arrays) -> np.ndarray:
        x = (arrays[0].astype(np.float64) - node["x_zero_point"]) * node["x_scale"]
        y = np.rint(np.asarray(op.reference(node, [x, *arrays[1:]])) / node["y_scale"]) + node["y_zero_point"]
        return np.clip(y, *bounds(OF_DTYPE[node["y"]]))

    def cleared(call: Call) -> list[Step]:
        return [*lower(call), *([clear_channels(call.target, call.y)] if call.y.shape[1] % call.y.block else [])]

    attributes = {**op.attributes, **SCALES}
    row = replace(op, name=f"Quantized{op.name}", rule=infer, reference=reference, attributes=attributes)
    return replace(row, widened=False, mixed=True, offers=offers, lower=cleared)


def line(node: Node) -> tuple[float, float]:
    """(a, b): a number q of the input's stands for a q + b of the output's."""
    factor = node["x_scale"] / node["y_scale"]
    return factor, node["y_zero_point"] - node["x_zero_point"] * factor
