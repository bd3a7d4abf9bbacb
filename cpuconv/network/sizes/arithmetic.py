"""What networks compute from their own shapes, where the sizes are followed (`cpuconv.following.sizes`).

Shape, some picking and joining, and Reshape: arrays of objects go through the references of these operators as they
are. Any other operator gets the numbers, and it is noted that sizes must be these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpuconv.following.sizes import INT64, SIZES
from cpuconv.graph import ops
from cpuconv.graph.ir import Node, Value
from cpuconv.network.interpret import run

_FOLLOWED = frozenset({"Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})
_SUMS = frozenset({"Add", "Mul", "Sub"})
_INTEGERS = (INT64, np.dtype(np.int32))


def of_sizes(node: Node, inputs: Sequence[Value | None], values: Sequence[Value]) -> list[Value]:
    """The outputs of a node that reads sizes, their elements known; `values` are what its rule says of them.

    Parameters
    ----------
    node : Node
    inputs : sequence of Value or None
        Their elements are known.
    values : sequence of Value
    """
    arrays = [None if value is None else value.array for value in inputs]
    dtypes = [value.dtype for value in values]
    if node.meaning is None and len(values) == 1 and dtypes[0] in _INTEGERS:
        if node.op == "Cast" and inputs[0] is not None and inputs[0].dtype in _INTEGERS and arrays[0] is not None:
            return [_within(arrays[0], dtypes[0])]
        if node.op == "Div" and _are_counts(arrays):
            return [_within(np.floor_divide(*(np.asarray(array, SIZES) for array in arrays)), dtypes[0])]
        if node.op in _FOLLOWED or node.op in _SUMS:
            (result,) = _results(node, arrays)
            return [_within(result, dtypes[0])]
    exact = [None if value is None else as_constant(value, exact=True) for value in inputs]
    return [Value.of(array) for array in run(node, exact, dtypes)]


def _are_counts(arrays: Sequence[np.ndarray | None]) -> bool:
    """Whether quotients are not negative, so that they are rounded down."""
    dividend, divisor = (array.ravel() for array in arrays if array is not None)
    return all(size >= 0 for size in dividend) and all(size > 0 for size in divisor)


def _results(node: Node, arrays: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    made = ops.TABLE[node.op].reference(node, arrays)
    return made if isinstance(made, tuple) else (made,)


def _within(array: np.ndarray, dtype: np.dtype | None) -> Value:
    """Sizes as elements of a type, which all must fit into."""
    assert dtype is not None
    array, limits = np.asarray(array, SIZES), np.iinfo(dtype)
    if not all(limits.min <= size <= limits.max for size in array.ravel()):
        raise OverflowError(f"sizes that {dtype} does not hold")
    return Value(array.shape, dtype, array)


def as_constant(value: Value, exact: bool = False) -> np.ndarray:
    """The elements of a value that are known. Those that are sizes stay such as int64; else they must be these."""
    array = value.array
    assert array is not None
    if array.dtype == SIZES and (exact or value.dtype != INT64):
        array = array.astype(value.dtype)
    return array
