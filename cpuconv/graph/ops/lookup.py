"""Table look-up for functions of one int8 element; not an ONNX operator, the rewrite `tables` makes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import EXACT, Arrays, Inputs, Op
from cpuconv.graph.ops.planes import is_image
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import BLOCKED, DENSE, blocked_shape
from cpuconv.kernels.elementwise.lookup import VALUES, lookup_steps


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    x, table = inputs
    if x.dtype.itemsize != 1 or table.shape != (VALUES,):
        raise ValueError(f"{x} and a table {table}")
    return [Value(x.shape, table.dtype)]


def look_up(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute table[x], with x read as unsigned."""
    return arrays[1][arrays[0].view(np.uint8)]


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offers from 8-bit to 8-bit tensors of the same form."""
    x, table = inputs
    if table.array is None or 0 in x.shape or not x.shape:
        return []
    sizes = {DENSE: x.shape}
    if is_image(x, whole=True):
        sizes[BLOCKED] = blocked_shape(x.shape, target.block(x.dtype))
    return [
        Offer((form, ""), (form,), target.moving(2 * float(np.prod(size, dtype=np.int64))))
        for form, size in sizes.items()
    ]


def _lower(call: Call) -> list[Step]:
    x, table = call.inputs
    assert x is not None and table is not None and table.array is not None
    kept = call.constants.keep(np.ascontiguousarray(table.array))
    return lookup_steps(call.target, x, call.y, kept, int(table.array[0]))


_SIGNATURE = "x: uint8|int8 (S...), table: uint8|int8 (256) -> y: =table (S...)"
_KERNELS: dict[str, Any] = {"offers": _offers, "lower": _lower, "signature": _SIGNATURE, "in_place": True}
OPS = (Op("Lookup", _infer, look_up, **EXACT, **_KERNELS, own=True),)
