"""Reader of ONNX models to graphs with operators of the newest opset.

`cpuconv.reading.adapters` converts operators of older opsets. The package onnx is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cpuconv.errors import ArgumentError, SourceError, must
from cpuconv.graph import control
from cpuconv.graph.ir import Graph, Node, Value, trimmed
from cpuconv.graph.ops import OWN, TABLE
from cpuconv.names import Names
from cpuconv.protos import messages, operators, wire
from cpuconv.protos.inlining import inlined
from cpuconv.protos.limits import check_nodes
from cpuconv.reading import schemas
from cpuconv.reading.adapters import REPLACED, adapted, control_form
from cpuconv.reading.contrib import CONTRIB, DOMAIN, STANDARD_DOMAIN, converted
from cpuconv.reading.decoding import Metadata, load
from cpuconv.reading.evaluated import OPERATORS, check_evaluated
from cpuconv.reading.foreign import Foreign, captured, dtype_of, value_of
from cpuconv.reading.tensors import Files, Unread

if TYPE_CHECKING:
    import onnx

OLDEST = 6  # PyTorch's first; operators broadcast as in NumPy from opset 7 on
_DEFAULTS_SINCE = 4  # IR version; before, all initializers had to be listed as inputs
_KNOWN = (TABLE.keys() - OWN) | set(REPLACED)
_DOMAIN = ("", "ai.onnx")
_VALUES = {messages.INT: "i", messages.FLOAT: "f"}  # attribute fields by attribute type
_LISTS = {messages.INTS: "ints", messages.FLOATS: "floats"}


def read(source: str | os.PathLike[str] | bytes | onnx.ModelProto, *, external_data: bool = True) -> Graph:
    """Read a model to a graph, with the shapes that the model states.

    Parameters
    ----------
    source : str | os.PathLike[str] | bytes | onnx.ModelProto
        Path of an ONNX file, its bytes, or a ``ModelProto``.
    external_data : bool
        Whether to read constants in external files; False: they are zeros, and the files need not exist.

    Raises
    ------
    ArgumentTypeError
        The source has none of these types.
    SourceError
        The model cannot be read, is not a network of tensors, or is inconsistent.
    """
    return read_with_metadata(source, external_data=external_data)[0]


def read_with_metadata(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, *, external_data: bool = True
) -> tuple[Graph, Metadata]:
    """Read a model to a graph, and its metadata; see `read`."""
    model, files, name = load(source, Files if external_data else Unread)
    if not model.graph.output:
        raise SourceError(f"{name} must be an ONNX model; it has no graph with outputs.")
    metadata = Metadata.of(model)
    try:
        check_nodes(model.graph, model.functions)
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from error
    try:
        stated = {"" if entry.domain in _DOMAIN else entry.domain: entry.version for entry in model.opset_import}
        opsets = {domain: stated[domain] for domain in operators.domains() if domain in stated}
        reader = _Reader(inlined(model), opsets, files, name)
        return reader.graph(defaults=model.ir_version >= _DEFAULTS_SINCE), metadata
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from error
    except (TypeError, ValueError, LookupError) as error:  # names that are not text, fields of a wrong kind
        raise SourceError(f"{name} is damaged: {error}") from error


# --- reader ---------------------------------------------------------------------------------------------------------


class _Reader:
    """Reader of one model, or of a body of a node; `outer` is the reader of the graph around a body."""

    def __init__(
        self, proto: Any, opsets: Mapping[str, int], files: Files, name: str, outer: _Reader | None = None
    ) -> None:
        self.proto, self.opsets, self.files, self.name, self.outer = proto, opsets, files, name, outer
        self.opset = opsets.get("", 0)
        self.constants = _TrackedConstants()
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.defaults: list[str] = []
        self.absent: set[str] = set()
        self.names = Names()
        self.types: dict[str, np.dtype] = {}  # inferred from the types of the nodes' inputs

    def graph(self, captured: Sequence[str] = (), *, defaults: bool = False) -> Graph:
        """Read the graph. `captured` are names of the outer graph that it may read; they become inputs.

        With `defaults`, initializers that are also inputs may be fed, except for those whose elements determine how a
        node is read.
        """
        if self.proto.sparse_initializer:
            raise SourceError("sparse constants are not supported.")
        for tensor in self.proto.initializer:
            if tensor.name in self.constants:
                raise SourceError(f"the constant {tensor.name!r} is defined twice.")
            self.constants[tensor.name] = self.files.array(tensor)
        for info in (*self.proto.value_info, *self.proto.output, *self.proto.input):
            self.values[info.name] = value_of(info)
        inputs = [info.name for info in self.proto.input if self.outer or info.name not in self.constants]
        self.defaults = [info.name for info in self.proto.input if defaults and self.is_default(info.name)]
        for info in self.proto.input:
            if info.name in inputs and self.values[info.name].dtype is None and not (self.outer and _is_open(info)):
                raise SourceError(f"the input {info.name!r} must be a tensor of numbers.")
        if self.outer:
            for info in self.proto.output:
                if not _is_open(info):
                    raise SourceError(f"the output {info.name!r} must be a tensor of numbers.")
            inputs += self.capture(captured)
        names = {*inputs, *self.constants, *(name for node in self.proto.node for name in node.output)}
        for name in names:
            if not isinstance(name, str):  # bytes that are not UTF-8
                raise SourceError(f"a value must have a name of text, not {name!r}.")
        self.names.add(names)
        for node in self.proto.node:
            self.nodes += self.read(node)
        outputs = [info.name for info in self.proto.output]
        for info in self.proto.output:
            if info.type.HasField("sequence_type") or info.type.HasField("map_type"):
                raise SourceError(f"the output {info.name!r} must be a tensor, not a sequence or a map.")
        values = {name: value for name, value in self.values.items() if name not in self.constants}
        ends, constants = (tuple(inputs), tuple(outputs)), dict(self.constants)
        stated = {name: self.values[name] for name in self.defaults if name not in self.constants.consulted}
        return Graph(*ends, tuple(self.nodes), constants, values, self.name, stated)

    def is_default(self, name: str) -> bool:
        """Whether an input has an initializer that matches its type and shape."""
        array, value = dict.get(self.constants, name), self.values[name]
        return array is not None and array.dtype == value.dtype and value.fits(array.shape)

    def capture(self, names: Sequence[str]) -> list[str]:
        """Copy constants, values and types from the graph around a body; return the inputs for non-constant values.

        If a body defines another value of the same name, the input gets a new name that no node reads.
        """
        assert self.outer is not None
        formal = {info.name for info in self.proto.input}
        for name in formal.intersection(self.constants):
            del self.constants[name]  # a default; bodies always get a value
        written = (name for node in self.proto.node for name in node.output)
        own, outer = {*written, *self.constants, *formal}, self.outer
        self.names.add(own)
        types = {name: outer.type_of(name) for name in names if name not in own}
        self.types |= {name: dtype for name, dtype in types.items() if dtype is not None}
        self.constants |= {name: outer.constants[name] for name in names if outer.is_fixed(name) and name not in own}
        self.values |= {name: outer.values.get(name, Value()) for name in names if name not in own}
        return [self.fresh(name) if name in own else name for name in names if not outer.is_fixed(name)]

    def is_fixed(self, name: str) -> bool:
        """Whether a value is a constant that callers cannot feed."""
        return name in self.constants and name not in self.defaults

    def read(self, proto: Any) -> Iterator[Node]:
        """Convert a node of the model to nodes of the graph; Constant nodes become constants."""
        origin = proto.name or next(filter(None, proto.output), "")
        if proto.domain in _DOMAIN and proto.op_type == "Constant":
            self.constants[proto.output[0]] = self.constant_node(proto)
            return
        if proto.domain in _DOMAIN and proto.op_type in control.BODIES:
            yield self.control(proto, origin)
            return
        contrib = proto.op_type in (CONTRIB if proto.domain == DOMAIN else STANDARD_DOMAIN)
        if not contrib:
            self.check(proto, origin)
        if contrib or (proto.domain in _DOMAIN and proto.op_type in _KNOWN):
            try:
                attributes = {attribute.name: self.attribute(attribute) for attribute in proto.attribute}
                node = Node(proto.op_type, proto.input, proto.output, attributes, origin)
                nodes = converted(self, node, proto.domain) if contrib else adapted(self, node)
                yield from [
                    TABLE[node.op].node(trimmed(node.inputs), trimmed(node.outputs), origin, **node.attributes)
                    for node in nodes
                ]
                return
            except ArgumentError as error:  # the operator table does not support this form
                if proto.domain == DOMAIN or proto.op_type not in OPERATORS[""]:
                    raise SourceError(f"{proto.op_type} node {origin!r}: {error}") from error
            except (TypeError, ValueError) as error:
                raise SourceError(f"{proto.op_type} node {origin!r} is not written as its operator: {error}") from error
        yield self.foreign(proto, origin)

    def check(self, proto: Any, origin: str) -> None:
        """Check that ONNX defines the operator, and that the node fits its definition.

        Raises
        ------
        SourceError
            It does not.
        """
        domain, label = "" if proto.domain in _DOMAIN else proto.domain, f"{proto.op_type} node {origin!r}"
        if not domain and self.opset < OLDEST and not self.is_as_in_the_oldest(proto.op_type):
            raise SourceError(f"the opset must be {OLDEST} or newer, not {self.opset or 'unstated'}.")
        if domain not in self.opsets or not operators.has(proto.op_type, domain):
            of = f" of domain {domain!r}" if domain else ""
            raise SourceError(f"{label}: there is no operator {proto.op_type!r}{of}.")
        stated = proto, domain, self.opsets[domain], label
        schemas.check(*stated)
        self.types |= schemas.check_types(*stated, self.type_of)

    def type_of(self, name: str) -> np.dtype | None:
        """Dtype of a value, if known."""
        array = dict.get(self.constants, name)  # without `consulted`: the elements are not used
        return array.dtype if array is not None else self.types.get(name, self.values.get(name, Value()).dtype)

    def control(self, proto: Any, origin: str) -> Node:
        """Read an If, Loop or Scan with its bodies; captured values of the outer graph become inputs.

        Raises
        ------
        SourceError
            A body is inconsistent, or does not fit the node.
        """
        self.check(proto, origin)
        graphs = {attribute.name: attribute.g for attribute in proto.attribute if attribute.HasField("g")}
        names = tuple(dict.fromkeys(name for attribute in proto.attribute for name in captured(attribute)))
        try:
            bodies = {
                name: _Reader(graph, self.opsets, self.files, graph.name or self.name, self).graph(names)
                for name, graph in graphs.items()
            }
            numbers = {a.name: self.attribute(a) for a in proto.attribute if a.name not in graphs}
            form = control_form(proto.op_type, self.opset, proto.input, bodies, numbers)
            outer = [name for name in names if not self.is_fixed(name)]
            inputs = (*form.inputs, *outer)
            node = Node(proto.op_type, inputs, proto.output, form.attributes, origin, control.Control())
            return control.check(node)
        except (ArgumentError, SourceError) as error:
            label = f"{proto.op_type} node {origin!r}"
            raise SourceError(str(error) if str(error).startswith(label) else f"{label}: {error}") from error

    def is_as_in_the_oldest(self, op: str) -> bool:
        """Whether an operator of an older opset is equal in `OLDEST`."""
        known = operators.has(op, "") and operators.definition(op, "", OLDEST).since
        return bool(known) and known <= self.opset

    def foreign(self, proto: Any, origin: str) -> Node:
        """Make a node that ONNX's evaluator computes; captured values become inputs."""
        texts = {each.name: each.s.decode() for each in proto.attribute if each.type == messages.STRING}
        domain = "" if proto.domain in _DOMAIN else proto.domain
        check_evaluated(proto.op_type, domain, texts, f"{proto.op_type} node {origin!r}")
        outer = [name for attribute in proto.attribute for name in captured(attribute)]
        inputs = tuple(dict.fromkeys([*proto.input, *outer]) if outer else proto.input)
        try:
            semantics = Foreign(wire.encode(self.files.whole(proto)), self.opsets, inputs)
        except SourceError as error:
            raise SourceError(f"{proto.op_type} node {origin!r}: {error}") from error
        op = f"ai.onnx.{proto.op_type}" if proto.op_type in TABLE else proto.op_type  # distinct from the table's
        return Node(op, inputs, tuple(proto.output), {}, origin, semantics)

    def attribute(self, proto: Any) -> object:
        """Convert an attribute to a plain value.

        Raises
        ------
        ArgumentError
            It is a graph; no operator of the table has graph attributes.
        """
        if proto.type in _VALUES:
            return getattr(proto, _VALUES[proto.type])
        if proto.type in _LISTS:
            return getattr(proto, _LISTS[proto.type]) or []
        if proto.type == messages.STRING:
            return proto.s.decode()
        if proto.type == messages.STRINGS:
            return [text.decode() for text in proto.strings]
        if proto.type == messages.TENSOR:
            return self.files.array(proto.t)
        if proto.type == messages.TYPE_PROTO:
            return proto.tp
        raise ArgumentError(must(proto.name, "a number, a text, a list of them or a tensor", proto.type))

    def constant_node(self, proto: Any) -> np.ndarray:
        """Array of a Constant node."""
        for attribute in proto.attribute:
            if attribute.name in ("value", "value_int", "value_ints", "value_float", "value_floats"):
                value = self.attribute(attribute)
                return value if isinstance(value, np.ndarray) else _constant(value)
        raise SourceError(f"Constant node {proto.output[0]!r} must have a tensor or numbers.")

    # --- interface for adapters --------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """Make a name that the model does not use."""
        return self.names.fresh(hint)

    def constant(self, value: object, hint: str) -> str:
        """Add a constant and return its name: integers are int64, other numbers float32."""
        return self.array(_constant(value), hint)

    def array(self, value: np.ndarray, hint: str) -> str:
        """Add a constant of the array's own type and return its name."""
        name = self.fresh(hint)
        value.flags.writeable = False
        self.constants[name] = value
        return name

    def rank(self, name: str) -> int | None:
        """Rank of a value, if the model states it."""
        array = dict.get(self.constants, name)
        shape = self.values.get(name, Value()).shape if array is None else array.shape
        return None if shape is None else len(shape)

    def fixed(self, name: str) -> np.ndarray | None:
        """Elements of a constant that callers cannot feed; else None."""
        return None if name in self.defaults else dict.get(self.constants, name)

    def dtype(self, number: int) -> np.dtype | None:
        """NumPy dtype of an ONNX type; None if it is not numeric."""
        return dtype_of(number)


def _is_open(info: Any) -> bool:
    """Whether a body leaves the type of an input open; it then follows from the outer value."""
    return info.type.HasField("tensor_type") or not vars(info.type)


class _TrackedConstants(dict[str, np.ndarray]):
    """Constants, and the names of those whose elements were used.

    Attributes
    ----------
    consulted : set of str
    """

    def __init__(self) -> None:
        super().__init__()
        self.consulted: set[str] = set()

    def __getitem__(self, name: str) -> np.ndarray:
        self.consulted.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Elements of a constant, or a default."""
        self.consulted.add(name)
        return super().get(name, default)


def _constant(value: object) -> np.ndarray:
    array = np.asarray(value)
    array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    array.flags.writeable = False
    return array
