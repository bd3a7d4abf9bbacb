"""Conversion of operators of older opsets to the newest: one row of `ADAPTERS` per group of operators and opsets.

Source: the change logs of ONNX's operators. Attributes that became inputs become constants of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cpuconv.errors import ArgumentError, SourceError, must
from cpuconv.functions.draws import Draws
from cpuconv.graph.ir import Graph, Node, trimmed
from cpuconv.graph.ops import TABLE, names_of


class Reader(Protocol):
    """Interface of the model reader for adapters."""

    opset: int
    absent: set[str]  # optional values that are not present

    @property
    def constants(self) -> MutableMapping[str, np.ndarray]:
        """Arrays by name."""

    def fresh(self, hint: str) -> str:
        """Make a name that the model does not use."""

    def constant(self, value: object, hint: str) -> str:
        """Add a constant and return its name: integers are int64, other numbers float32."""

    def array(self, value: np.ndarray, hint: str) -> str:
        """Add a constant of the array's own type and return its name."""

    def rank(self, name: str) -> int | None:
        """Rank of a value, if the model states it."""

    def type_of(self, name: str) -> np.dtype | None:
        """Type of a value's elements, if the model states it."""

    def fixed(self, name: str) -> np.ndarray | None:
        """Elements of a constant that callers cannot feed; else None."""

    def dtype(self, number: int) -> np.dtype | None:
        """NumPy dtype of an ONNX type; None if it is not numeric."""


class Adapter(NamedTuple):
    """Conversion of operators of opsets before `below`.

    `apply` raises `ArgumentError` for forms that the operator table does not support.
    """

    ops: tuple[str, ...]
    below: float
    apply: Callable[[Reader, Node], list[Node]]


def _changed(node: Node, op: str = "", inputs: Sequence[str] = (), **attributes: Any) -> Node:
    """Copy a node with another operator, inputs or attributes; an attribute of None is removed."""
    merged = {**node.attributes, **attributes}
    merged = {name: value for name, value in merged.items() if value is not None}
    return Node(op or node.op, tuple(inputs) or node.inputs, node.outputs, merged, node.origin)


def _as_inputs(*names: str) -> Callable[[Reader, Node], list[Node]]:
    """Make an adapter that moves attributes to the last inputs."""

    def apply(reader: Reader, node: Node) -> list[Node]:
        stated = [node.attributes.get(name) for name in names]
        added = [
            "" if value is None else reader.constant(value, f"{node.outputs[0]}.{name}")
            for name, value in zip(names, stated, strict=True)
        ]
        moved: dict[str, Any] = dict.fromkeys(names)
        return [_changed(node, inputs=(*node.inputs, *added), **moved)]

    return apply


def _aligned(reader: Reader, node: Node) -> list[Node]:
    """Unsqueeze a second operand that broadcasts from `axis` on, by trailing axes of size 1.

    A slope broadcasts along the channels. Without `axis`, operands broadcast along the last axes, as in newer opsets.
    """
    a, b, *rest = node.inputs
    axis = node.attributes.get("axis", 1 if node.op == "PRelu" else None)
    plain = _changed(node, axis=None, broadcast=None)
    first, second = reader.rank(a), reader.rank(b)
    if axis is None or second == 0 or (second == 1 and b in reader.constants and reader.constants[b].size == 1):
        return [plain]
    if first is None or second is None:
        raise SourceError(f"{node.label} has an 'axis', which needs the ranks of its inputs.")
    axes = list(range(second, first - axis % first))
    if not axes:
        return [plain]
    longer = reader.fresh(f"{b}.longer")
    return [
        Node("Unsqueeze", (b, reader.constant(axes, f"{b}.axes")), (longer,), {}, node.origin),
        _changed(plain, inputs=(a, longer, *rest)),
    ]


def _renamed(op: str) -> Callable[[Reader, Node], list[Node]]:
    """Make an adapter that renames the operator."""
    return lambda reader, node: [_changed(node, op)]


def _without_broadcast(reader: Reader, node: Node) -> list[Node]:
    """Remove the attribute that allowed broadcasting; newer opsets always allow it."""
    return [_changed(node, broadcast=None)]


def flattened(reader: Reader, node: Node) -> list[Node]:
    """Convert Softmax or a similar operator over all axes from `axis` on: flatten to a matrix, apply, reshape back.

    The operator over the last axis alone is unchanged.
    """
    x, (y,), axis = node.inputs[0], node.outputs, node.attributes.get("axis", 1)
    rank = reader.rank(x)
    if axis == -1 or (rank is not None and axis in (-1, rank - 1)):
        return [_changed(node, axis=-1)]
    flat, soft, shape = (reader.fresh(f"{y}.{part}") for part in ("flat", "soft", "shape"))
    return [
        Node("Flatten", (x,), (flat,), {"axis": axis}, node.origin),
        Node(node.op, (flat,), (soft,), {"axis": -1}, node.origin),
        Node("Shape", (x,), (shape,), {}, node.origin),
        Node("Reshape", (soft, shape), (y,), {"allowzero": 1}, node.origin),
    ]


def _without_training(reader: Reader, node: Node) -> list[Node]:
    """Convert BatchNormalization to inference: one output, per-channel numbers (ignores `spatial` of matrices)."""
    spatial = node.attributes.get("spatial", 1) or reader.rank(node.inputs[1]) == 1
    if node.attributes.get("training_mode") or not spatial:
        raise ArgumentError(must("training_mode", "0, and spatial 1", dict(node.attributes)))
    return [
        Node(node.op, node.inputs, node.outputs[:1], {"epsilon": node.attributes.get("epsilon", 1e-5)}, node.origin)
    ]


def _drawing(reader: Reader, node: Node) -> list[Node]:
    """Convert the type to NumPy's, and the seed to a `Draws` with the number of draws so far."""
    stated = node.attributes.get("dtype")
    dtype = stated and reader.dtype(stated)
    if stated and dtype is None:
        raise SourceError(f"{node.label}: the attribute 'dtype' must be a type of numbers, not {stated}.")
    seed = node.attributes.get("seed")
    return [_changed(node, dtype=dtype, seed=None if seed is None else Draws(seed))]


def _no_dropout(reader: Reader, node: Node) -> list[Node]:
    """Remove Dropout at inference: the output is the input, and the mask is all true. Training mode is converted."""
    training = node.inputs[2] if len(node.inputs) > 2 else ""
    known = reader.fixed(training) if training else np.zeros(())
    if known is None or known.any():
        return _drawing(reader, node)
    nodes = [Node("Identity", node.inputs[:1], node.outputs[:1], {}, node.origin)]
    if any(node.outputs[1:]):
        shape = reader.fresh(f"{node.outputs[1]}.shape")
        nodes += [
            Node("Shape", node.inputs[:1], (shape,), {}, node.origin),
            Node("ConstantOfShape", (shape,), node.outputs[1:], {"value": np.array([True])}, node.origin),
        ]
    return nodes


def _resize(reader: Reader, node: Node) -> list[Node]:
    """Convert Upsample, and Resize of opset 10: output i reads i / scale, rounded up where planes shrink.

    The rounding is ONNX Runtime's; ONNX did not specify it.
    """
    x, scales = node.inputs
    known = reader.constants.get(scales)
    smaller = known is not None and bool((known < 1).any() and (known <= 1).all())
    return [
        _changed(
            node,
            "Resize",
            (x, "", scales),
            coordinate_transformation_mode="asymmetric",
            nearest_mode="ceil" if smaller else "floor",
        )
    ]


def _cast(reader: Reader, node: Node) -> list[Node]:
    """Convert the type to NumPy's."""
    to = node.attributes.get("to", 0)
    dtype = reader.dtype(to)
    if dtype is None or dtype.kind == "c":
        raise SourceError(f"{node.label}: the attribute 'to' must be a type of numbers, not {to}.")
    return [_changed(node, to=dtype)]


def _grid_sample(reader: Reader, node: Node) -> list[Node]:
    """Rename modes to those for any number of axes."""
    mode = node.attributes.get("mode", "bilinear")
    return [_changed(node, mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))]


def _region(reader: Reader, node: Node) -> list[Node]:
    """State the coordinates of older opsets, which are not the default of newer ones."""
    return [_changed(node, coordinate_transformation_mode="output_half_pixel")]


def _quantised(reader: Reader, node: Node) -> list[Node]:
    """Convert types to NumPy's; the output type of QuantizeLinear becomes a zero point."""
    stated = {name: node.attributes.get(name) or None for name in ("output_dtype", "precision")}
    types = {name: reader.dtype(number) for name, number in stated.items() if number is not None}
    for name, dtype in types.items():
        if dtype is None:
            raise SourceError(f"{node.label}: the attribute {name!r} must be a type of numbers, not {stated[name]}.")
    inputs, dtype = node.inputs, types.get("output_dtype")
    if node.op == "DequantizeLinear":
        return [_changed(node, output_dtype=dtype)]
    zero = inputs[2] if len(inputs) > 2 else ""
    if zero and dtype is not None and zero in reader.constants and reader.constants[zero].dtype != dtype:
        raise SourceError(f"{node.label}: the zero point must be of 'output_dtype', {dtype}.")
    if not zero and dtype is not None:
        inputs = (*inputs[:2], reader.array(np.zeros((), dtype), f"{node.outputs[0]}.zero"))
    return [_changed(node, inputs=inputs, output_dtype=None, precision=types.get("precision"))]


def _root_mean_square(reader: Reader, node: Node) -> list[Node]:
    """Decompose RMSNormalization: divide by the root mean square, multiply by a scale."""
    (x, scale), rank, axis = node.inputs, reader.rank(node.inputs[0]), node.attributes.get("axis", -1)
    if axis >= 0 and rank is None:
        raise SourceError(f"{node.label} has an 'axis' from the front, which needs the rank of its input.")
    axes = range(axis - (rank or 0) if axis >= 0 else axis, 0)
    parts = ("square", "mean", "epsilon", "sum", "root", "quotient", "alike")
    square, mean, epsilon, total, root, y, alike = (reader.fresh(f"{node.outputs[0]}.{part}") for part in parts)
    number = reader.constant(node.attributes.get("epsilon", 1e-5), epsilon)
    chain: list[tuple[str, tuple[str, ...], str]] = [
        ("Mul", (x, x), square),
        ("ReduceMean", (square, reader.constant(list(axes), f"{mean}.axes")), mean),
        ("CastLike", (number, x), epsilon),
        ("Add", (mean, epsilon), total),
        ("Sqrt", (total,), root),
        ("Div", (x, root), y),
        ("CastLike", (y, scale), alike),
        ("Mul", (alike, scale), node.outputs[0]),
    ]
    return [Node(op, inputs, (output,), {}, node.origin) for op, inputs, output in chain]


def _optional(reader: Reader, node: Node) -> list[Node]:
    """Convert optional values: a present one is the value itself; presence is known when the model is read."""
    name = node.inputs[0] if node.inputs else ""
    there = bool(name) and name not in reader.absent
    if node.op == "OptionalHasElement":
        name = reader.array(np.array(there), f"{node.outputs[0]}.there")
    elif node.op == "Optional" and not there:
        reader.absent.update(node.outputs)
        return []
    elif not there:
        raise SourceError(f"{node.label}: there is no element in {name!r}.")
    return [Node("Identity", (name,), node.outputs, {}, node.origin)]


def _refused(reader: Reader, node: Node) -> list[Node]:
    raise ArgumentError(must("opset", f"one of today's {node.op}", reader.opset))


_REDUCTIONS = tuple(name for name in TABLE if name.startswith("Reduce") and name != "ReduceSum")
_OPTIONAL = ("Optional", "OptionalGetElement", "OptionalHasElement")
REPLACED = ("Scatter", "Upsample", "RMSNormalization", *_OPTIONAL)  # operators that are replaced by others

_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater", "PRelu")

ADAPTERS: tuple[Adapter, ...] = (
    Adapter(_BINARY, 7, _aligned),
    Adapter(("Gemm",), 7, _without_broadcast),
    Adapter(("Cast",), math.inf, _cast),
    Adapter(("Dropout",), math.inf, _no_dropout),
    Adapter(names_of(lambda op: op.draws and op.name != "Dropout"), math.inf, _drawing),
    Adapter(("BatchNormalization",), math.inf, _without_training),
    Adapter(("Upsample",), 9, _as_inputs("scales")),
    Adapter(("Upsample",), math.inf, _resize),
    Adapter(("Resize",), 11, _resize),
    Adapter(("Slice",), 10, _as_inputs("starts", "ends", "axes")),
    Adapter(("Clip",), 11, _as_inputs("min", "max")),
    Adapter(("Pad",), 11, _as_inputs("pads", "value")),
    Adapter(("Squeeze", "Unsqueeze", "ReduceSum"), 13, _as_inputs("axes")),
    Adapter(("Scatter",), math.inf, _renamed("ScatterElements")),
    Adapter(("TopK",), 10, _as_inputs("k")),
    Adapter(("Split",), 13, _as_inputs("split")),
    Adapter(("Softmax", "LogSoftmax", "Hardmax"), 13, flattened),
    Adapter(_REDUCTIONS, 18, _as_inputs("axes")),
    Adapter(("QuantizeLinear", "DequantizeLinear"), math.inf, _quantised),
    Adapter(("GridSample",), 20, _grid_sample),
    Adapter(("RoiAlign",), 16, _region),
    Adapter(("RMSNormalization",), math.inf, _root_mean_square),
    Adapter(_OPTIONAL, math.inf, _optional),
    Adapter(("GroupNormalization",), 21, _refused),  # one scale per group instead of per channel
)


def adapted(reader: Reader, node: Node) -> list[Node]:
    """Convert a node to the newest opset.

    Raises
    ------
    ArgumentError
        The operator table does not support its form.
    """
    nodes = [node]
    for adapter in ADAPTERS:
        if reader.opset < adapter.below and node.op in adapter.ops:
            nodes = [new for old in nodes for new in (adapter.apply(reader, old) if old.op in adapter.ops else [old])]
    return nodes


# --- control flow -----------------------------------------------------------------------------------------------------

_BATCHED = 8  # opset whose Scan has a batch axis and sequence lengths


class Form(NamedTuple):
    """Inputs of a node without captured values, and its attributes."""

    inputs: list[str]
    attributes: dict[str, Any]


def control_form(
    op: str, opset: int, inputs: Sequence[str], bodies: Mapping[str, Graph], numbers: Mapping[str, Any]
) -> Form:
    """Convert a control-flow node to the form of `cpuconv.graph.control`.

    Parameters
    ----------
    op : str
    opset : int
    inputs : sequence of str
        The inputs in the model.
    bodies : mapping of str to Graph
    numbers : mapping of str
        The other attributes.

    Raises
    ------
    SourceError
        There are more scan inputs than inputs.
    """
    names = [*inputs]
    if op == "If":
        return Form(names, {**bodies})
    if op == "Loop":
        names = [*trimmed(names)]
        names += [""] * (2 - len(names))
        return Form(names, {**bodies, "carried": len(names) - 2})
    batched = opset == _BATCHED
    scanned = numbers["num_scan_inputs"]
    carried = len(names) - batched - scanned
    if scanned < 1 or carried < 0:
        raise SourceError(f"'num_scan_inputs' must be from 1 to {len(names) - batched}, not {scanned}.")
    outputs = len(bodies["body"].outputs) - carried
    directions = numbers.get("directions" if batched else "scan_input_directions")
    attributes = {
        **bodies,
        "carried": carried,
        "scanned": scanned,
        "batched": int(batched),
        "input_axes": numbers.get("scan_input_axes") or [0] * scanned,
        "output_axes": numbers.get("scan_output_axes") or [0] * outputs,
        "input_directions": directions or [0] * scanned,
        "output_directions": numbers.get("scan_output_directions") or [0] * outputs,
    }
    return Form(names, attributes)
