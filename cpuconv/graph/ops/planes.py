"""Supported layouts and kernel calls for channel planes, and for rows of plain tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.elements import S8, U8
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import Inputs
from cpuconv.kernels.axis.lines import Axes, line_steps
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import BLOCKED, DENSE, FLOAT32, TensorView, blocked_shape, stored_as
from cpuconv.kernels.windows.spatial import planes_step


def is_image(value: Value | None, whole: bool = False) -> bool:
    """Whether a tensor can have channel blocks: (N, C, H, W) or (N, C, W), not empty; float32, or 8-bit if `whole`."""
    shape, types = (value and value.shape) or (), (FLOAT32, U8.dtype, S8.dtype) if whole else (FLOAT32,)
    return value is not None and value.dtype in types and len(shape) in (3, 4) and 0 not in shape


def blocked_size(value: Value, target: Target) -> int:
    """Number of elements of a tensor in channel blocks, including padding channels."""
    return math.prod(blocked_shape(value.shape, target.isa.lanes))  # type: ignore[arg-type]  # concrete


def blocked_offer(
    node: Node, x: Value, y: Value, target: Target, operations: float, narrow: bool = False
) -> list[Offer]:
    """Offer from channel blocks to channel blocks, with a number of float operations; other inputs are constant.

    `narrow`: kernels support bfloat16 and 8-bit blocks too.
    """
    size, dtype = blocked_size(x, target) + blocked_size(y, target), x.dtype or FLOAT32
    return _same_form_offers(node, target.blocks(dtype) if narrow else (BLOCKED,), size, dtype, target, operations)


def dense_offers(node: Node, x: Any, y: Any, target: Target, operations: float) -> list[Offer]:
    """Offers from dense planes to dense planes, with a number of float operations per output."""
    size, outputs = math.prod(x.shape), math.prod(y.shape)
    forms = target.forms(DENSE, x.dtype)
    return _same_form_offers(node, forms, size + outputs, x.dtype, target, operations * outputs)


def _same_form_offers(
    node: Node, forms: Sequence[str], size: int, dtype: np.dtype, target: Target, operations: float
) -> list[Offer]:
    """Offers from each form to the same one, that move `size` elements."""
    offers = []
    for form in forms:
        seconds = max(target.moving(min(stored(form), dtype.itemsize) * size), target.computing(operations))
        offers.append(Offer((form, *[""] * (len(node.inputs) - 1)), (form,), seconds))
    return offers


def stored(form: str) -> int:
    """Bytes per element of a float tensor in this form."""
    return stored_as(form, FLOAT32).itemsize


def plane_offers(node: Node, inputs: Inputs, y: Value, target: Target) -> list[Offer]:
    """Offers of a reduction of each plane of the first input to one pixel of `y`."""
    x = inputs[0]
    if not is_image(x):
        return []
    made = blocked_offer(node, x, y, target, blocked_size(x, target), narrow=True)
    return made + [replace(each, outputs=(BLOCKED,)) for each in made if each.outputs != (BLOCKED,)]


FOLDED = {
    "ReduceSum": ("sum", False),
    "ReduceMean": ("sum", True),
    "ReduceMax": ("max", False),
    "ReduceMin": ("min", False),
}
"""Reductions of whole planes in channel blocks: the operation, and whether to divide by the size."""


def lower_planes(call: Call, work: str) -> list[Step]:
    """Reduce each plane of the first input to one pixel; `work` is the name of the reduction."""
    x = call.x
    if call.y.block == 1:
        return line_steps(call.target, call.space, work, Axes(2, len(x.shape)), x, call.y)
    fold, mean = FOLDED[work]
    factor = 1 / math.prod(x.shape[2:]) if mean else None
    return [planes_step(call.target.isa, x, call.y, fold, factor, call.target.parts(x.size))]


def rowwise_offers(node: Node, operands: Inputs, operations: int, target: Target, parameters: int = 0) -> list[Offer]:
    """Offers of an operator along rows of the first operand, dense: float32, bfloat16, or 8-bit by the node's scales.

    `operations` is the number of vector operations per element, `parameters` the number of inputs after the operands.
    """
    x, *others = (value for value in operands if value is not None)
    quantised = "y_scale" in node.attributes
    if x.dtype != FLOAT32 and not (quantised and x.dtype in (U8.dtype, S8.dtype)):
        return []
    if any(value.dtype != FLOAT32 for value in others) or any(0 in v.shape or not v.shape for v in (x, *others)):
        return []
    size, ways = math.prod(x.shape), (DENSE,) if quantised else target.forms(DENSE)
    rest = tuple(DENSE if value is not None else "" for value in operands[1:]) + ("",) * parameters
    offers = []
    for read, written in itertools.product(ways, ways):
        moved = x.dtype.itemsize + node["y"].itemsize if quantised else stored(read) + stored(written)
        seconds = target.moving(size * moved) + target.computing(operations * size)
        offers.append(Offer((read, *rest), (written,), seconds))
    return offers


def lower_rowwise(
    call: Call, axes: Axes, y: TensorView, affine: Sequence[TensorView] = (), channels: int = 0, **tile: Any
) -> list[Step]:
    """Make the kernel calls along the rows of the first input; arguments are those of `line_steps`."""
    node = call.node
    if "y_scale" in node.attributes:
        tile["numbers"] = [node[name] for name in ("x_scale", "x_zero_point", "y_scale", "y_zero_point")]
    work = node.op.removeprefix("Quantized")
    return line_steps(call.target, call.space, work, axes, call.x, y, affine, channels, **tile)
