"""Reductions over axes.

Source: ONNX operators Reduce*. The axes are the second input; without them all, or none if the node says so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cpuconv.graph.ir import Node, Value
from cpuconv.graph.kernels.lines import WORKS
from cpuconv.graph.kernels.walks import full, line_offers, line_steps, together
from cpuconv.graph.lowering import Call, Offer, Target
from cpuconv.graph.ops.base import Arrays, Inputs, Op, axis_in, given, integers
from cpuconv.solvers.shared.base import Step

Function = Callable[..., np.ndarray]
_OPERATIONS = 2  # an element


def _axes(node: Node, rank: int, stated: np.ndarray | None) -> tuple[int, ...]:
    if stated is None or not stated.size:
        return () if node["noop_with_empty_axes"] else tuple(range(rank))
    return tuple(axis_in(axis, rank) for axis in integers(stated))


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    x, stated = inputs[0], given(inputs, 1)
    axes = _axes(node, len(x.shape), stated and stated.array)
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    shape = kept if node["keepdims"] else [size for axis, size in enumerate(x.shape) if axis not in axes]
    return [Value(tuple(shape), x.dtype)]


def row_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Plain tensors, of which the reduced axes are neighbours."""
    x, stated = inputs[0], given(inputs, 1)
    axes = _axes(node, len(x.shape), stated and stated.array)
    return line_offers([x], _OPERATIONS, target, len(inputs) - 1) if together(x.shape, axes) else []


def lower_rows(call: Call) -> list[Step]:
    """One step along the lines of the reduced axes."""
    x, stated = call.inputs[0], call.given(1)
    assert x is not None
    chosen = _axes(call.node, len(x.shape), stated and stated.array)
    axes = together(x.shape, chosen)
    assert axes is not None
    return line_steps(call, axes, full(call.outputs[0], x.shape, chosen))


def _op(name: str, function: Function) -> Op:
    """A row from a function of an array and the keywords axis and keepdims."""

    def reference(node: Node, arrays: Arrays) -> np.ndarray:
        x = arrays[0]
        return function(x, axis=_axes(node, x.ndim, given(arrays, 1)), keepdims=bool(node["keepdims"]))

    native = {"offers": row_offers, "lower": lower_rows} if name in WORKS else {}
    return Op(name, _infer, reference, {"keepdims": 1, "noop_with_empty_axes": 0}, parameters=(1,), **native)


def _least(dtype: np.dtype) -> float | int | bool:
    """What the largest of nothing is."""
    return {"f": -np.inf, "b": False}.get(dtype.kind, np.iinfo(dtype).min if dtype.kind in "iu" else None)


def _most(dtype: np.dtype) -> float | int | bool:
    """What the smallest of nothing is."""
    return {"f": np.inf, "b": True}.get(dtype.kind, np.iinfo(dtype).max if dtype.kind in "iu" else None)


def _sum(x: np.ndarray, **axes: object) -> np.ndarray:
    return np.sum(x, dtype=x.dtype, **axes)


def _log_sum_exp(x: np.ndarray, **axes: object) -> np.ndarray:
    return np.logaddexp.reduce(x.astype(np.float64), **axes) if axes["axis"] != () else x


OPS = (
    _op("ReduceSum", _sum),
    _op("ReduceMean", np.mean),
    _op("ReduceMax", lambda x, **axes: np.max(x, initial=_least(x.dtype), **axes)),
    _op("ReduceMin", lambda x, **axes: np.min(x, initial=_most(x.dtype), **axes)),
    _op("ReduceProd", lambda x, **axes: np.prod(x, dtype=x.dtype, **axes)),
    _op("ReduceL1", lambda x, **axes: _sum(np.abs(x), **axes)),
    _op("ReduceL2", lambda x, **axes: np.sqrt(_sum(x * x, **axes))),
    _op("ReduceSumSquare", lambda x, **axes: _sum(x * x, **axes)),
    _op("ReduceLogSum", lambda x, **axes: np.log(_sum(x, **axes))),
    _op("ReduceLogSumExp", _log_sum_exp),
)
