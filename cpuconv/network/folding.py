"""Limits of constant folding when a network is compiled, and checks of the values that nodes produce."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.machine.memory import free_bytes
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Node, Value
from cpuconv.memory.free_memory import SMALL, check_bytes, check_fits
from cpuconv.protos.limits import check_rank
from cpuconv.symbolic.sizes import now

MAX_STEPS = 40_000  # folded nodes of bodies, counted per execution: a second or two
MAX_OPERATIONS = 1 << 26  # element operations of folding: about a second of the references
PER_ELEMENT = 64  # additional element operations per element of the model's constants
_FOLDED = 0.25  # fraction of free memory for folded constants, whose computation needs as much again
_CALL = 1000  # overhead of one NumPy call, in element operations
_EVALUATOR = 1000  # operations per element in ONNX's evaluator


def check_values(node: Node, values: Sequence[Value]) -> None:
    """Check that a node's outputs are valid tensors: no negative size, a limited rank, and each fits into memory.

    Raises
    ------
    SourceError
        An output is not valid.
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
    """Check that the results of a node have the shapes that its rule predicts, as far as it does.

    Raises
    ------
    SourceError
        A result has another shape.
    """
    for shape, result in zip(shapes, results, strict=False):
        if isinstance(result, list):  # a sequence of tensors has no shape
            continue
        value = Value(None if shape is None else tuple(shape), result.dtype)
        if not value.fits(result.shape):
            raise SourceError(f"{node.label}: an output must have the inferred shape {value}, not {result.shape}.")


# --- operations -----------------------------------------------------------------------------------------------------


def _size(value: Any) -> int:
    """Number of elements of a value; 0 if it is omitted or its sizes are open."""
    return math.prod(value.shape) if value is not None and value.concrete else 0


def _window(node: Any, inputs: Sequence[Any], y: int) -> int:
    """Convolution: one multiply-add per output, input channel and tap; one NumPy call per tap."""
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
    """Matrix multiplication: one multiply-add per output and index of the summed axis."""
    shape = inputs[0].shape
    return y * shape[0 if node.attributes.get("transA") else -1] if shape else y


def _einsum(node: Any, inputs: Sequence[Any], y: int) -> int:
    """Einsum: the product of all subscripts' sizes; with an ellipsis, at most the product of the operands' sizes."""
    terms = node["equation"].replace(" ", "").partition("->")[0].split(",")
    if "." in node["equation"]:
        return math.prod(map(_size, inputs))
    sizes = dict(zip("".join(terms), (size for value in inputs for size in value.shape), strict=False))
    return math.prod(sizes.values()) * len(inputs)


def _sampled(node: Any, inputs: Sequence[Any], y: int) -> int:
    taps = {"nearest": 1, "linear": 2, "cubic": 4}.get(node["mode"], 4)
    return (y + _CALL) * taps ** (len(inputs[0].shape) - 2)


def _recurrent(node: Any, inputs: Sequence[Any], y: int) -> int:
    """Recurrent layer: all weights per step and sequence."""
    steps, batch = inputs[0].shape[:2]
    return steps * batch * (_size(inputs[1]) + _size(inputs[2])) + 10 * _CALL * steps


def _suppressed(node: Any, inputs: Sequence[Any], y: int) -> int:
    """Non-maximum suppression: each pair of boxes of each class."""
    return _size(inputs[1]) * inputs[0].shape[1]


def _sorted(node: Any, inputs: Sequence[Any], y: int) -> int:
    return _size(inputs[0]) * 20


def _resized(node: Any, inputs: Sequence[Any], y: int) -> int:
    return 32 * (_size(inputs[0]) + y)


_OPERATIONS: Mapping[str, Callable[[Any, Sequence[Any], int], float]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "QuantizedConv"), _window),
    "ConvTranspose": _transposed,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "QuantizedAveragePool"), _pool),
    "LRN": _neighbours,
    **dict.fromkeys(("Gemm", "Linear", "MatMul", "MatMulInteger", "QuantizedLinear", "QuantizedMatMul"), _matrices),
    "Einsum": _einsum,
    "DeformConv": lambda node, inputs, y: 5 * _window(node, inputs, y),
    "GridSample": _sampled,
    **dict.fromkeys(("GRU", "LSTM", "QuantizedLSTM", "RNN"), _recurrent),
    "NonMaxSuppression": _suppressed,
    "TopK": _sorted,
    **dict.fromkeys(("QuantizedResize", "Resize"), _resized),
    "RoiAlign": lambda node, inputs, y: math.inf,
}
"""Element operations by operator, from node, inputs and number of output elements; default: the elements moved."""


_REGIONS = frozenset({"MaxRoiPool"})
"""Operators of ONNX's evaluator whose time depends on elements or attributes, as for windows."""


def operations(node: Node, inputs: Sequence[Value | None], outputs: Sequence[Value]) -> float:
    """Estimate the element operations of a node's reference; infinite if sizes do not determine them."""
    y = sum(map(_size, outputs))
    moved = sum(map(_size, inputs)) + y
    if node.semantics is not None:
        name = node.op.removeprefix("ai.onnx.")
        return math.inf if name in _REGIONS or name in _OPERATIONS else _EVALUATOR * moved
    special = _OPERATIONS.get(node.op)
    return moved if special is None else max(moved, special(node, inputs, y))


class Folding:
    """Budget of constant folding for one network: element operations, bytes, and executed nodes of bodies.

    Parameters
    ----------
    constants : iterable of numpy.ndarray
        Constants of the model; large ones increase the budget.
    """

    def __init__(self, constants: Iterable[np.ndarray] = ()) -> None:
        self._bytes = self._steps = 0
        self._operations: float = MAX_OPERATIONS + PER_ELEMENT * sum(array.size for array in constants)
        self._room: float | None = None

    def allows(self, node: Node, inputs: Sequence[Value | None], outputs: Sequence[Value]) -> bool:
        """Whether a node may be folded, and deduct its operations if so; otherwise it is left to run time."""
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
            They do not fit into memory next to the constants folded so far.
        """
        self._add(node, sum(value.nbytes for value in values if value.concrete))

    def step(self, node: Node, steps: int, size: int) -> None:
        """Count `steps` nodes of a body, executed once, and `size` bytes of its results.

        Raises
        ------
        SourceError
            There are more than `MAX_STEPS`, as in a `Loop` that does not end, or the results do not fit into memory.
        """
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise SourceError(
                f"{node.label}: constant folding must take no more than {MAX_STEPS:,} steps, nodes of a"
                " Loop counted each time."
            )
        self._add(node, size)

    def _add(self, node: Node, size: int) -> None:
        self._bytes += size
        if self._bytes > SMALL:
            self._room = _FOLDED * free_bytes() if self._room is None else self._room
            check_fits(self._bytes, self._room, f"{node.label}: constant folding")
