"""What older opsets wrote otherwise, in the form of the newest: one line of `ADAPTERS` for operators and opsets.

Source: the change logs of ONNX's operators. Parameters that became inputs are constants of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cpuconv.errors import ArgumentError, SourceError, must
from cpuconv.graph.ir import Graph, Node, trimmed
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.drawing import DRAWING, Draws
from cpuconv.protos.messages import STRING, AttributeProto


class Reader(Protocol):
    """What adapters ask of the reader of a model."""

    opset: int
    absent: set[str]  # optional values that are not there

    @property
    def constants(self) -> MutableMapping[str, np.ndarray]:
        """Arrays by name."""

    def fresh(self, hint: str) -> str:
        """A name that the model does not use."""

    def constant(self, value: object, hint: str) -> str:
        """The name of a new constant: integers are int64, other numbers float32."""

    def array(self, value: np.ndarray, hint: str) -> str:
        """The name of a new constant, of the array's own type."""

    def rank(self, name: str) -> int | None:
        """Axes of a value, where the model states them."""

    def fixed(self, name: str) -> np.ndarray | None:
        """The elements of a constant that nobody may feed; of others nothing is decided."""

    def dtype(self, number: int) -> np.dtype | None:
        """NumPy's type for ONNX's; None where there is none for numbers."""


class Adapter(NamedTuple):
    """How operators of opsets before `below` are written today.

    `apply` raises `ArgumentError` for a form that the operators' table does not know.
    """

    ops: tuple[str, ...]
    below: float
    apply: Callable[[Reader, Node], list[Node]]


def _changed(node: Node, op: str = "", inputs: Sequence[str] = (), **attributes: Any) -> Node:
    """The node as another one; an attribute of None is left out."""
    merged = {**node.attributes, **attributes}
    merged = {name: value for name, value in merged.items() if value is not None}
    return Node(op or node.op, tuple(inputs) or node.inputs, node.outputs, merged, node.origin)


def _as_inputs(*names: str) -> Callable[[Reader, Node], list[Node]]:
    """Attributes become the last inputs."""

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
    """A second operand that is laid along the first from `axis` on gets axes of size 1 behind its own.

    A slope is laid along the channels. Without `axis` an operand was laid along the last axes, as today.
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
    """The same under its name of today."""
    return lambda reader, node: [_changed(node, op)]


def _without_broadcast(reader: Reader, node: Node) -> list[Node]:
    """The attribute that allowed what is always allowed today."""
    return [_changed(node, broadcast=None)]


def flattened(reader: Reader, node: Node) -> list[Node]:
    """Softmax, or one like it, over all axes from `axis` on: as a matrix, and back. Of the last axis it is as today."""
    x, (y,), axis = node.inputs[0], node.outputs, node.attributes.get("axis", 1)
    rank = reader.rank(x)
    if axis == -1 or (rank is not None and axis in (-1, rank - 1)):
        return [_changed(node, axis=-1)]
    flat, soft, shape = (reader.fresh(f"{y}.{part}") for part in ("flat", "soft", "shape"))
    return [
        Node("Flatten", (x,), (flat,), {"axis": axis}, node.origin),
        Node(node.op, (flat,), (soft,), {"axis": -1}, node.origin),
        Node("Shape", (x,), (shape,), {}, node.origin),
        Node("Reshape", (soft, shape), (y,), {}, node.origin),
    ]


def _without_training(reader: Reader, node: Node) -> list[Node]:
    """BatchNormalization as at inference: one output, a number a channel (of matrices, whatever `spatial` says)."""
    spatial = node.attributes.get("spatial", 1) or reader.rank(node.inputs[1]) == 1
    if node.attributes.get("training_mode") or not spatial:
        raise ArgumentError(must("training_mode", "0, and spatial 1", dict(node.attributes)))
    return [
        Node(node.op, node.inputs, node.outputs[:1], {"epsilon": node.attributes.get("epsilon", 1e-5)}, node.origin)
    ]


def _drawing(reader: Reader, node: Node) -> list[Node]:
    """The type as NumPy's, and a seed with the draws that it has made."""
    stated = node.attributes.get("dtype")
    dtype = stated and reader.dtype(stated)
    if stated and dtype is None:
        raise SourceError(f"{node.label}: the attribute 'dtype' must be a type of numbers, not {stated}.")
    seed = node.attributes.get("seed")
    return [_changed(node, dtype=dtype, seed=None if seed is None else Draws(seed))]


def _no_dropout(reader: Reader, node: Node) -> list[Node]:
    """At inference nothing is dropped: the output is the input, and the mask is all true. Training may be computed."""
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
    """Upsample, and Resize before it had coordinates: output i comes from i / scale, rounded up where planes shrink.

    The rounding is ONNX Runtime's; the standard did not say.
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
    """The type as NumPy's."""
    to = node.attributes.get("to", 0)
    dtype = reader.dtype(to)
    if dtype is None or dtype.kind == "c":
        raise SourceError(f"{node.label}: the attribute 'to' must be a type of numbers, not {to}.")
    return [_changed(node, to=dtype)]


def _grid_sample(reader: Reader, node: Node) -> list[Node]:
    """Modes under the names that they have for any number of axes."""
    mode = node.attributes.get("mode", "bilinear")
    return [_changed(node, mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))]


def _quantised(reader: Reader, node: Node) -> list[Node]:
    """Types as NumPy's; that of the output of QuantizeLinear by a zero point."""
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
    """Elements over the root of the mean of their squares, times a scale."""
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
    """A value that may be left out is the value itself; whether it is there is known when a model is read."""
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
REPLACED = ("Scatter", "Upsample", "RMSNormalization", *_OPTIONAL)  # operators that become others

_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater", "PRelu")

ADAPTERS: tuple[Adapter, ...] = (
    Adapter(_BINARY, 7, _aligned),
    Adapter(("Gemm",), 7, _without_broadcast),
    Adapter(("Cast",), math.inf, _cast),
    Adapter(("Dropout",), math.inf, _no_dropout),
    Adapter(tuple(DRAWING - {"Dropout"}), math.inf, _drawing),
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
    Adapter(("RMSNormalization",), math.inf, _root_mean_square),
    Adapter(_OPTIONAL, math.inf, _optional),
    Adapter(("GroupNormalization",), 21, _refused),  # a scale a group, not a channel
)


STATED: dict[str, tuple[int, dict[str, str]]] = {
    "RoiAlign": (16, {"coordinate_transformation_mode": "output_half_pixel"}),
}
"""Of operators that ONNX's evaluator computes: the opset that states in attributes what older ones meant, and those.

The defaults of these attributes are other values.
"""


def restated(proto: Any, opsets: Mapping[str, int]) -> tuple[Any, Mapping[str, int]]:
    """A node that ONNX's evaluator computes, and opsets, where an older form of it is written as in a newer opset."""
    opset, texts = STATED.get(proto.op_type, (0, {}))
    if proto.domain not in ("", "ai.onnx") or opsets.get("", 0) >= opset:
        return proto, opsets
    added = [AttributeProto(name=name, type=STRING, s=text.encode()) for name, text in texts.items()]
    return proto.changed(attribute=(*proto.attribute, *added)), {**opsets, "": opset}


def adapted(reader: Reader, node: Node) -> list[Node]:
    """The node in the newest form.

    Raises
    ------
    ArgumentError
        Its form is none that the operators' table knows.
    """
    nodes = [node]
    for adapter in ADAPTERS:
        if reader.opset < adapter.below and node.op in adapter.ops:
            nodes = [new for old in nodes for new in (adapter.apply(reader, old) if old.op in adapter.ops else [old])]
    return nodes


# --- control flow -----------------------------------------------------------------------------------------------------

_BATCHED = 8  # the opset whose Scan has a batch and the lengths of its sequences


class Form(NamedTuple):
    """Inputs of a node, those that its bodies capture left out, and its attributes."""

    inputs: list[str]
    attributes: dict[str, Any]


def control_form(
    op: str, opset: int, inputs: Sequence[str], bodies: Mapping[str, Graph], numbers: Mapping[str, Any]
) -> Form:
    """A node of control flow in the form of `cpuconv.graph.control`.

    Parameters
    ----------
    op : str
    opset : int
    inputs : sequence of str
        As the model has them.
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
