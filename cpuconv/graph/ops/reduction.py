"""Reductions over axes.

Source: ONNX operators Reduce*. The axes are the second input; by default all axes, or none by `noop_with_empty_axes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.elements import highest, lowest
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import Arrays, Inputs, Op, axis_in, given, integers, known
from cpuconv.graph.ops.planes import FOLDED, lower_planes, lower_rowwise, plane_offers, rowwise_offers
from cpuconv.graph.ops.quantised_variants import quantised_variant
from cpuconv.graph.ops.traits import Int8, Sign
from cpuconv.kernels.axis.axis_driver import OPERATIONS
from cpuconv.kernels.axis.lines import full, neighbouring
from cpuconv.kernels.binding.steps import Step

Function = Callable[..., np.ndarray]
_OPERATIONS = 2  # vector operations per element


def _axes(node: Node, rank: int, stated: np.ndarray | None) -> tuple[int, ...]:
    if stated is None or not stated.size:
        return () if node["noop_with_empty_axes"] else tuple(range(rank))
    axes = tuple(axis_in(axis, rank) for axis in integers(stated))
    if len({*axes}) < len(axes):
        raise ValueError(f"axes {list(axes)} are not distinct")
    return axes


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    x = inputs[0]
    axes = _axes(node, len(x.shape), known(inputs, 1))
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    shape = kept if node["keepdims"] else [size for axis, size in enumerate(x.shape) if axis not in axes]
    return [Value(tuple(shape), x.dtype)]


def _plane_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offers in channel blocks, for reductions over all axes of the planes with keepdims."""
    rank, stated = len(inputs[0].shape), given(inputs, 1)
    if node.op not in FOLDED or not node["keepdims"] or (stated is not None and stated.array is None):
        return []
    if set(_axes(node, rank, stated and stated.array)) != set(range(2, rank)):
        return []
    return plane_offers(node, inputs, _infer(node, inputs)[0], target)


def row_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offers for plain tensors with adjacent reduced axes."""
    x = inputs[0]
    axes = _axes(node, len(x.shape), known(inputs, 1))
    return rowwise_offers(node, [x], _OPERATIONS, target, len(inputs) - 1) if neighbouring(x.shape, axes) else []


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    return [*_plane_offers(node, inputs, target), *(row_offers(node, inputs, target) if node.op in OPERATIONS else ())]


def _lower(call: Call) -> list[Step]:
    return lower_planes(call, call.node.op) if call.y.block > 1 else lower_rows(call)


def lower_rows(call: Call) -> list[Step]:
    """Make the kernel calls along the reduced axes."""
    x = call.x
    chosen = _axes(call.node, len(x.shape), known(call.inputs, 1))
    axes = neighbouring(x.shape, chosen)
    assert axes is not None
    return lower_rowwise(call, axes, full(call.outputs[0], x.shape, chosen))


_SIGNATURE = "x: float32, axes?: known -> y: float32"
_QUANTISED = "x: uint8|int8|float32, axes?: known -> y: uint8|int8|float32"


def _op(name: str, function: Function, **traits: Any) -> Op:
    """Make a row from a function of an array with the keywords axis and keepdims."""

    def reference(node: Node, arrays: Arrays) -> np.ndarray:
        x = arrays[0]
        return function(x, axis=_axes(node, x.ndim, given(arrays, 1)), keepdims=bool(node["keepdims"]))

    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    native = name in OPERATIONS or name in FOLDED
    kernels: dict[str, Any] = {"offers": _offers, "lower": _lower, "signature": _SIGNATURE} if native else {}
    return Op(name, _infer, reference, attributes, parameters=(1,), **kernels, **traits)


def _sum(x: np.ndarray, **axes: Any) -> np.ndarray:
    return np.sum(x, dtype=x.dtype, **axes)


def _log_sum_exp(x: np.ndarray, **axes: Any) -> np.ndarray:
    return np.logaddexp.reduce(x.astype(np.float64), **axes) if axes["axis"] != () else x


_MEAN = _op("ReduceMean", np.mean, sign=Sign.KEPT, int8=Int8.RESCALED)

OPS = (
    _op("ReduceSum", _sum),
    _MEAN,
    quantised_variant(_MEAN, row_offers, lower_rows, _QUANTISED),
    _op("ReduceMax", lambda x, **axes: np.max(x, initial=lowest(x.dtype), **axes)),
    _op("ReduceMin", lambda x, **axes: np.min(x, initial=highest(x.dtype), **axes)),
    _op("ReduceProd", lambda x, **axes: np.prod(x, dtype=x.dtype, **axes)),
    _op("ReduceL1", lambda x, **axes: _sum(np.abs(x), **axes)),
    _op("ReduceL2", lambda x, **axes: np.sqrt(_sum(x * x, **axes))),
    _op("ReduceSumSquare", lambda x, **axes: _sum(x * x, **axes)),
    _op("ReduceLogSum", lambda x, **axes: np.log(_sum(x, **axes))),
    _op("ReduceLogSumExp", _log_sum_exp),
)
