"""LSTM with int8 weights, whose state is quantised before each multiplication by them.

Source: com.microsoft's DynamicQuantizeLSTM. The operator is its part after the multiplication of the inputs, and is not
ONNX's. Inputs: gate sums of inputs and all biases (steps, batch, directions · 4 · hidden); weights of the state
(directions, hidden, 4 · hidden); their scales and zero points (directions, 4 · hidden), both float32; lengths; states;
peepholes. A state has one scale per sequence; in ONNX Runtime, all sequences share one.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.elements import F32, S8
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import Arrays, Inputs, Op, given
from cpuconv.graph.ops.recurrent import CELLS, COMMON, directions_of, order_of, recurrence, stages_of, stepped
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import DENSE, FLOAT32
from cpuconv.kernels.recurrent.recurrent import PEEPHOLES, Rows, tiles
from cpuconv.kernels.recurrent.recurrent_int8 import (
    packed_int8,
    packed_numbers,
    product_of_states,
    quantize_states_numpy,
)

_OP = "QuantizedLSTM"
_GATES = CELLS[_OP].gates


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    fed, r, scale = inputs[:3]
    directions, (steps, batch, columns), hidden = directions_of(node), fed.shape, r.shape[1]
    stages_of(node, False)
    rows, state = _GATES * hidden, (directions, batch, hidden)
    needed = [(directions, hidden, rows), *[(directions, rows)] * 2, (batch,), state, state, (directions, 3 * hidden)]
    if columns != directions * rows:
        raise ValueError(f"{columns} columns of {directions * rows}")
    for value, shape in zip(inputs[1:], needed, strict=False):
        if value is not None and value.shape != shape:
            raise ValueError(f"{value} must be of shape {shape}")
    return [Value((steps, directions, batch, hidden), fed.dtype), *[Value(state, fed.dtype)] * 2]


def layer(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Compute an LSTM with an int8 multiplication of the state."""
    fed, r, scale, points = arrays[:4]
    directions, (steps, batch, _), hidden = directions_of(node), fed.shape, r.shape[1]
    weights, lengths = r.astype(np.float64) - points[:, None], given(arrays, 4)
    states = tuple(
        np.zeros((directions, batch, hidden), fed.dtype) if state is None else state
        for state in (given(arrays, at) for at in (5, 6))
    )
    peepholes = [] if given(arrays, 7) is None else np.split(arrays[7][:, None], PEEPHOLES, -1)
    order = order_of(node, steps, np.full(batch, steps) if lengths is None else lengths)
    parts = fed.reshape(steps, batch, directions, -1)
    reordered = np.stack([parts[order[d], np.arange(batch), d] for d in range(directions)])

    def multiplied(vector: np.ndarray, part: slice) -> np.ndarray:
        whole, unit = quantize_states_numpy(vector)
        return ((whole @ weights[..., part]) * unit * scale[:, None, part]).astype(fed.dtype)

    return stepped(node, reordered, multiplied, states, peepholes, lengths)


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    (fed, r, scale, points), lengths, peepholes = inputs[:4], given(inputs, 4), given(inputs, 7)
    known = [value for value in (r, scale, points, peepholes) if value is not None]
    if any(value.array is None for value in known) or r.dtype != S8.dtype or fed.dtype != FLOAT32:
        return []
    if 0 in fed.shape + r.shape:
        return []
    steps, batch, _ = fed.shape
    whole = lengths is None or (lengths.array is not None and bool((lengths.array == steps).all()))
    count, _ = tiles(target.isa, stages_of(node, peepholes is not None), batch, not whole)
    states = [DENSE if given(inputs, at) is not None else "" for at in (5, 6)]
    forms = (DENSE, "", "", "", "" if whole else DENSE, *states, "")[: len(inputs)]
    return [Offer(forms, (DENSE,) * 3, target.moving(math.prod(r.shape)) * steps * count)]


def _lower(call: Call) -> list[Step]:
    fed, r, scale, points = call.inputs[:4]
    assert fed is not None and r is not None and scale is not None and points is not None
    assert r.array is not None and scale.array is not None and points.array is not None
    lanes, (length, batch, _), (directions, hidden, rows) = call.target.isa.lanes, fed.shape, r.shape
    lengths = bool(call.given(4) and call.offer.inputs[4])  # equal lengths are omitted from the offer
    _, sequences = tiles(call.target.isa, stages_of(call.node, call.given(7) is not None), batch, lengths)
    product, weights = product_of_states(call.target.isa, sequences), r.array.swapaxes(1, 2)
    packed = call.constants.packed(
        call.node.inputs[1], (_OP, lanes, product.name), partial(packed_int8, weights, _GATES, lanes, product)
    )
    numbers = call.constants.keep(packed_numbers(weights, scale.array, points.array, _GATES, lanes, product))
    over = Rows(fed.ref, fed.strides[0], rows * F32.bytes, fed.strides[1])
    return recurrence(call, (length, batch, directions, hidden), over, [packed], [numbers], product.name)


_ATTRIBUTES = {name: value for name, value in COMMON.items() if name != "layout"} | {"input_forget": 0}
_SIGNATURE = (
    "fed: float32 (S B 4DH), r: int8 (D H 4H), scale: float32 (D 4H), zero: float32 (D 4H), lengths?: int32 (B), "
    "h?: float32 (D B H), c?: float32 (D B H), peepholes?: float32 (D 3H) "
    "-> y: float32 (S D B H), last_h: float32 (D B H), last_c: float32 (D B H)"
)
_KERNELS: dict[str, Any] = {"offers": _offers, "lower": _lower, "signature": _SIGNATURE}
OPS = (Op(_OP, _infer, layer, _ATTRIBUTES, mixed=True, widened=False, **_KERNELS, own=True),)
