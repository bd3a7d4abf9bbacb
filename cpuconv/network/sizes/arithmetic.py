"""Evaluate the shape arithmetic of networks on symbolic sizes (`cpuconv.symbolic.sizes`).

Shape, Reshape, and some operators that select and concatenate: their references accept arrays of objects. All other
operators get the numbers, and the trace records that sizes must equal these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpuconv.graph import ops
from cpuconv.graph.ir import Node, Value
from cpuconv.network.interpret import run
from cpuconv.symbolic.sizes import INT64, SIZES

_INTEGERS = (INT64, np.dtype(np.int32))


def of_sizes(node: Node, inputs: Sequence[Value | None], values: Sequence[Value]) -> list[Value]:
    """Compute the outputs of a node that reads symbolic sizes; `values` are its inferred shapes and dtypes.

    Parameters
    ----------
    node : Node
    inputs : sequence of Value or None
        Inputs with known elements.
    values : sequence of Value
    """
    arrays = [None if value is None else value.array for value in inputs]
    dtypes = [value.dtype for value in values]
    if node.semantics is None and len(values) == 1 and dtypes[0] in _INTEGERS:
        if node.op == "Cast" and inputs[0] is not None and inputs[0].dtype in _INTEGERS and arrays[0] is not None:
            return [_within(arrays[0], dtypes[0])]
        if node.op == "Div" and _are_counts(arrays):
            return [_within(np.floor_divide(*(np.asarray(array, SIZES) for array in arrays)), dtypes[0])]
        if ops.TABLE[node.op].follows_sizes:
            (result,) = _results(node, arrays)
            return [_within(result, dtypes[0])]
    exact = [None if value is None else as_constant(value, exact=True) for value in inputs]
    return [Value.of(array) for array in run(node, exact, dtypes)]


def _are_counts(arrays: Sequence[np.ndarray | None]) -> bool:
    """Whether quotients are non-negative, so that rounding down equals truncation."""
    dividend, divisor = (array.ravel() for array in arrays if array is not None)
    return all(size >= 0 for size in dividend) and all(size > 0 for size in divisor)


def _results(node: Node, arrays: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    made = ops.TABLE[node.op].reference(node, arrays)
    return made if isinstance(made, tuple) else (made,)


def _within(array: np.ndarray, dtype: np.dtype | None) -> Value:
    """Make a value of sizes with a dtype, after a check of its range."""
    assert dtype is not None
    array, limits = np.asarray(array, SIZES), np.iinfo(dtype)
    if not all(limits.min <= size <= limits.max for size in array.ravel()):
        raise OverflowError(f"sizes outside the range of {dtype}")
    return Value(array.shape, dtype, array)


def as_constant(value: Value, exact: bool = False) -> np.ndarray:
    """The known elements of a value. Sizes of dtype int64 stay symbolic; others become their numbers."""
    array = value.array
    assert array is not None
    if array.dtype == SIZES and (exact or value.dtype != INT64):
        array = array.astype(value.dtype)
    return array
