"""Bounds on values that nodes make, and on what is computed of constants when a network is made ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.machine.memory import free_bytes
from cpuconv.errors import SourceError
from cpuconv.following.sizes import now
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.limits import check_rank
from cpuconv.memory.room import SMALL, check_bytes, check_room

MOST_STEPS = 40_000  # nodes within nodes that are computed of constants, counted each time: a second or two
MOST_OPERATIONS = 1 << 26  # on elements, of what is computed of constants: about a second of the references
PER_ELEMENT = 64  # more operations for each element of the constants that a model has
_FOLDED = 0.25  # of free memory for constants that are computed, which take as much again on the way
_CALL = 1000  # operations that a call of NumPy costs, whatever it computes
_EVALUATOR = 1000  # operations that an element costs in ONNX's evaluator


def check_values(node: Node, values: Sequence[Value]) -> None:
    """See that the outputs of a node may be tensors: no size is negative, axes are few, and each fits into memory.

    Raises
    ------
    SourceError
        One may not.
    """
    for value in values:
        if value.shape is not None:
            check_rank(len(value.shape), f"{node.label}: an output")
        if not value.concrete or value.shape is None:
            continue
        if any(isinstance(size, int) and size < 0 for size in value.shape):
            raise SourceError(f"{node.label}: an output of shape {value} has a negative size.")
        if now(value.nbytes) > SMALL and now(value.nbytes) > free_bytes():
            check_bytes(value.nbytes, f"{node.label}: an output of shape {value}")


def check_results(node: Node, shapes: Sequence[Sequence[Any] | None], results: Sequence[np.ndarray]) -> None:
    """See that what a node gives is of the shapes that its rule says, as far as it says any.

    Raises
    ------
    SourceError
        A result is not.
    """
    for shape, result in zip(shapes, results, strict=False):
        if isinstance(result, list):  # a sequence of tensors has none
            continue
        value = Value(None if shape is None else tuple(shape), result.dtype)
        if not value.fits(result.shape):
            raise SourceError(f"{node.label}: an output must be {value} by its inputs, and comes as {result.shape}.")


# --- operations -----------------------------------------------------------------------------------------------------


def _size(value: Any) -> int:
    """Elements of a value; 0 where it is left out or its sizes are open."""
    return math.prod(value.shape) if value is not None and value.concrete else 0


def _window(node: Any, inputs: Sequence[Any], y: int) -> int:
    """Of a convolution: a product for each output, input channel and tap; a call for each tap."""
    shape = inputs[1].shape
    return y * math.prod(shape[1:]) + _CALL * math.prod(shape[2:])


def _transposed(node: Any, inputs: Sequence[Any], y: int) -> int:
    shape = inputs[1].shape
    return _size(inputs[0]) * math.prod(shape[1:]) + y + _CALL * math.prod(shape[2:])


def _pool(node: Any, inputs: Sequence[Any], y: int) -> int:
    taps = math.prod(node["kernel_shape"])
    return (y + _CALL) * taps


def _neighbours(node: Any, inputs: Sequence[Any], y: int) -> int:
    channels = inputs[0].shape[1]
    return y * min(node["size"], channels) + _CALL * channels


def _matrices(node: Any, inputs: Sequence[Any], y: int) -> int:
    """A product for each output and place of the summed axis."""
    shape = inputs[0].shape
    return y * shape[0 if node.attributes.get("transA") else -1] if shape else y


def _einsum(node: Any, inputs: Sequence[Any], y: int) -> int:
    """Each combination of the letters' places; with an ellipsis at most each of the operands' elements."""
    terms = node["equation"].replace(" ", "").partition("->")[0].split(",")
    if "." in node["equation"]:
        return math.prod(map(_size, inputs))
    sizes = dict(zip("".join(terms), (size for value in inputs for size in value.shape), strict=False))
    return math.prod(sizes.values()) * len(inputs)


def _sampled(node: Any, inputs: Sequence[Any], y: int) -> int:
    taps = {"nearest": 1, "linear": 2, "cubic": 4}.get(node["mode"], 4)
    return (y + _CALL) * taps ** (len(inputs[0].shape) - 2)


def _recurrent(node: Any, inputs: Sequence[Any], y: int) -> int:
    """The weights for each step of each sequence."""
    steps, batch = inputs[0].shape[:2]
    return steps * batch * (_size(inputs[1]) + _size(inputs[2])) + 10 * _CALL * steps


def _suppressed(node: Any, inputs: Sequence[Any], y: int) -> int:
    """Each pair of boxes of each class."""
    return _size(inputs[1]) * inputs[0].shape[1]


def _sorted(node: Any, inputs: Sequence[Any], y: int) -> int:
    return _size(inputs[0]) * 20


def _resized(node: Any, inputs: Sequence[Any], y: int) -> int:
    return 32 * (_size(inputs[0]) + y)


_OPERATIONS: Mapping[str, Callable[[Any, Sequence[Any], int], int]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "QuantizedConv"), _window),
    "ConvTranspose": _transposed,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "QuantizedAveragePool"), _pool),
    "LRN": _neighbours,
    **dict.fromkeys(("Gemm", "Linear", "MatMul", "MatMulInteger", "QuantizedLinear", "QuantizedMatMul"), _matrices),
    "Einsum": _einsum,
    "GridSample": _sampled,
    **dict.fromkeys(("GRU", "LSTM", "QuantizedLSTM", "RNN"), _recurrent),
    "NonMaxSuppression": _suppressed,
    "TopK": _sorted,
    **dict.fromkeys(("QuantizedResize", "Resize"), _resized),
}
"""Operations of a node on elements, by its operator, inputs and elements of outputs, where those are not all."""


_REGIONS = frozenset({"DeformConv", "MaxRoiPool", "RoiAlign"})
"""Operators of ONNX's evaluator that take as long as their elements or attributes say, as those of windows do."""


def operations(node: Node, inputs: Sequence[Value | None], outputs: Sequence[Value]) -> float:
    """How many operations on elements the reference of a node takes, about; infinite where sizes do not say it."""
    y = sum(map(_size, outputs))
    moved = sum(map(_size, inputs)) + y
    if node.meaning is not None:
        name = node.op.removeprefix("ai.onnx.")
        return math.inf if name in _REGIONS or name in _OPERATIONS else _EVALUATOR * moved
    special = _OPERATIONS.get(node.op)
    return moved if special is None else max(moved, special(node, inputs, y))


class Folding:
    """What is computed of constants when a network is made ready: its operations, its bytes, and the nodes within nodes
    that run.

    Parameters
    ----------
    constants : iterable of numpy.ndarray
        Those of the model: a large one may fold more.
    """

    def __init__(self, constants: Iterable[np.ndarray] = ()) -> None:
        self._bytes = self._steps = 0
        self._operations: float = MOST_OPERATIONS + PER_ELEMENT * sum(array.size for array in constants)
        self._room: float | None = None

    def allows(self, node: Node, inputs: Sequence[Value | None], outputs: Sequence[Value]) -> bool:
        """Whether a node may be computed now, and count its operations; else it is left to run time."""
        taken = operations(node, inputs, outputs)
        if taken > self._operations:
            return False
        self._operations -= taken
        return True

    def take(self, node: Node, values: Sequence[Value]) -> None:
        """Count the outputs of a node, before they are computed.

        Raises
        ------
        SourceError
            They do not fit beside those that are there already.
        """
        self._add(node, sum(value.nbytes for value in values if value.concrete))

    def step(self, node: Node, steps: int, size: int) -> None:
        """Count `steps` nodes of a graph within a node, which are computed once, and `size` bytes of its results.

        Raises
        ------
        SourceError
            They are more than `MOST_STEPS`, as those of a `Loop` that does not end are, or do not fit into memory.
        """
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise SourceError(
                f"{node.label}: what is computed of constants must take no more than {MOST_STEPS:,} steps, nodes of a"
                " Loop counted each time."
            )
        self._add(node, size)

    def _add(self, node: Node, size: int) -> None:
        self._bytes += size
        if self._bytes > SMALL:
            self._room = _FOLDED * free_bytes() if self._room is None else self._room
            check_room(self._bytes, self._room, f"{node.label}: what is computed of constants")
