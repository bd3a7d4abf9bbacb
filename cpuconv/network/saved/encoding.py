"""Convert graphs to values that JSON supports, and back.

Input is not trusted: all names, sizes and types are checked, operators and attributes must be in the table, and the
text of expressions is limited.
"""

from __future__ import annotations

import base64
import inspect
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from cpuconv.errors import ArgumentError, SourceError
from cpuconv.functions.draws import Draws
from cpuconv.graph import control
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.base import REQUIRED
from cpuconv.kernels.elementwise.expression import Apply, Constant, Expression, Operand
from cpuconv.kernels.elementwise.functions import EMITTERS
from cpuconv.network.saved.header_limits import check_nodes
from cpuconv.protos import wire
from cpuconv.protos.limits import MAX_AXES
from cpuconv.protos.limits import check_nodes as check_protos
from cpuconv.protos.messages import GraphProto, NodeProto
from cpuconv.reading.foreign import Foreign

Keep = Callable[[np.ndarray], int]  # stores an array, and returns the number of its block
Find = Callable[[int, np.dtype, tuple[int, ...]], np.ndarray]  # returns the array in a block

_PLAIN_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
_MORE_DTYPES = (  # dtypes of the package ml_dtypes
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int4", "uint4", "int2", "uint2",
)  # fmt: skip
_LONGEST = 1 << 16  # maximum characters of the texts of an expression's subtrees, which repeat shared parts
_TYPES = ("to", "y", "score_type", "weight_type")  # attributes whose values are element types
_CONTROL = "control"  # stands for the semantics of an If, Loop or Scan
_OPTIONAL_TYPES = ("dtype", "output_dtype", "precision")  # attributes that may be types; defaults are ONNX's numbers
_ALSO = {float: (float, int), list: (list, tuple)}  # types of attributes by the type of their default

_SHORT = reprlib.Repr()  # shortens values in messages, whose size a file determines
_SHORT.maxstring = _SHORT.maxother = 40

T = TypeVar("T")


# --- plain values ---------------------------------------------------------------------------------------------------


def must_be(kind: type[T], value: Any) -> T:
    """Check that a value is exactly of a type, and return it.

    Raises
    ------
    SourceError
        It is of another type.
    """
    if type(value) is not kind:
        raise SourceError(f"a value must be a {kind.__name__}, not {_shown(value)}")
    return value


def list_of(kind: type[T], value: Any) -> list[T]:
    """Check that a value is a list whose items are exactly of a type, and return it."""
    return [must_be(kind, item) for item in must_be(list, value)]


def _shown(value: object) -> str:
    return _SHORT.repr(value)


def dtype_of(name: Any) -> np.dtype:
    """The dtype with a name."""
    if must_be(str, name) in _PLAIN_DTYPES:
        return np.dtype(name)
    if name in _MORE_DTYPES:
        try:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError) as error:
            raise SourceError(f"elements of type {name} need the package ml_dtypes") from error
    raise SourceError(f"unknown element type {_shown(name)}")


def _dtype_name(dtype: np.dtype) -> str:
    if dtype.name not in (*_PLAIN_DTYPES, *_MORE_DTYPES):
        raise SourceError(f"arrays of {dtype} cannot be saved.")
    return dtype.name


def sizes_of(value: Any) -> tuple[int, ...]:
    """Validate the sizes of axes."""
    sizes = tuple(list_of(int, value))
    if len(sizes) > MAX_AXES or min(sizes, default=0) < 0:
        raise SourceError(f"invalid sizes {_shown(value)}")
    return sizes


# --- values of a graph ----------------------------------------------------------------------------------------------


def value_to_plain(value: Value) -> list[Any]:
    """Convert the dtype and shape of a tensor to plain values."""
    return [value.dtype and _dtype_name(value.dtype), None if value.shape is None else list(value.shape)]


def value_from_plain(data: Any) -> Value:
    """Convert the result of `value_to_plain` back."""
    dtype, shape = _items(data, 2)
    if shape is not None:
        sizes_of([0 if size is None or type(size) is str else size for size in must_be(list, shape)])
    return Value(None if shape is None else tuple(shape), None if dtype is None else dtype_of(dtype))


def _items(data: Any, count: int) -> list[Any]:
    if len(must_be(list, data)) != count:
        raise SourceError(f"a list must have {count} values, not {_shown(data)}")
    return data


def _array_to_plain(array: np.ndarray, keep: Keep) -> list[Any]:
    return [_dtype_name(array.dtype), list(array.shape), keep(array)]


def _array_from_plain(data: Any, find: Find) -> np.ndarray:
    dtype, shape, block = _items(data, 3)
    return find(must_be(int, block), dtype_of(dtype), sizes_of(shape))


# --- attributes -----------------------------------------------------------------------------------------------------


def _attribute_to_plain(value: Any, keep: Keep) -> Any:
    """Convert an attribute; values that JSON does not support become an object whose only key is their kind."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_attribute_to_plain(item, keep) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_attribute_to_plain(item, keep) for item in value]}
    if isinstance(value, np.ndarray):
        return {"array": _array_to_plain(value, keep)}
    if isinstance(value, np.dtype):
        return {"dtype": _dtype_name(value)}
    if isinstance(value, Draws):
        return {"seed": value.seed}
    if isinstance(value, Expression):
        return {"expression": _expression_to_plain(value)}
    if isinstance(value, Graph):
        return {"graph": graph_to_plain(value, keep)}
    raise SourceError(f"attributes of {type(value).__name__} cannot be saved.")


def _attribute_from_plain(data: Any, find: Find) -> Any:
    if isinstance(data, list):
        return [_attribute_from_plain(item, find) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise SourceError(f"invalid attribute {_shown(data)}")
    ((kind, content),) = data.items()
    if kind == "tuple":
        return tuple(_attribute_from_plain(item, find) for item in must_be(list, content))
    if kind == "array":
        return _array_from_plain(content, find)
    if kind == "dtype":
        return dtype_of(content)
    if kind == "seed":
        return Draws(content if type(content) is int else must_be(float, content))
    if kind == "expression":
        return _expression_from_plain(content)
    if kind == "graph":
        return graph_from_plain(content, find)
    raise SourceError(f"unknown kind of attribute {_shown(kind)}")


def arrays_of(graph: Graph) -> Iterator[np.ndarray]:
    """Yield all arrays of a graph: constants, and those in attributes."""
    yield from graph.constants.values()
    yield from (array for node in graph.nodes for array in _arrays_in(list(node.attributes.values())))


def _arrays_in(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Graph):
        yield from arrays_of(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays_in(item)


def _expression_to_plain(tree: Expression) -> list[list[Any]]:
    """Convert the distinct subtrees of an expression in order; arguments are indices in this list."""
    place = {node: at for at, node in enumerate(tree.nodes)}
    rows: list[list[Any]] = []
    for node in tree.nodes:
        if isinstance(node, Apply):
            rows.append([node.function, *(place[argument] for argument in node.arguments)])
        else:
            assert isinstance(node, (Operand, Constant))
            rows.append(["operand", node.position] if isinstance(node, Operand) else ["number", float(node.value)])
    return rows


def _expression_from_plain(data: Any) -> Expression:
    made: list[Expression] = []
    characters = 0
    for row in must_be(list, data):
        kind, *rest = must_be(list, row) or [None]
        if kind == "operand":
            made.append(Operand(sizes_of(_items(rest, 1))[0]))
        elif kind == "number":
            made.append(Constant(must_be(float, _items(rest, 1)[0])))
        else:
            made.append(_applied(kind, sizes_of(rest), made))
        characters += 1 + len(kind or "") + sum(1 + len(argument.text) for argument in made[-1].arguments)
        if characters > _LONGEST or made[-1].text == "nan":
            raise SourceError("an expression is too long, or no number")
    if not made:
        raise SourceError("an expression is empty")
    return made[-1]


def _applied(kind: Any, places: Sequence[int], made: Sequence[Expression]) -> Expression:
    """Make a function of earlier expressions."""
    emitter = EMITTERS.get(must_be(str, kind))
    taken = 0 if emitter is None else len(inspect.signature(emitter).parameters) - 1  # without the IR builder
    if emitter is None or taken != len(places) or max(places) >= len(made):
        raise SourceError(f"unknown function {_shown(kind)} of operands {list(places)}")
    return Apply(str(kind), tuple(made[place] for place in places))


# --- graphs ---------------------------------------------------------------------------------------------------------


def graph_to_plain(graph: Graph, keep: Keep) -> dict[str, Any]:
    """Convert a graph to plain values; elements of arrays are stored in blocks."""
    return {
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "nodes": [_node_to_plain(node, keep) for node in graph.nodes],
        "constants": {name: _array_to_plain(array, keep) for name, array in graph.constants.items()},
        "values": {name: value_to_plain(value) for name, value in sorted(graph.values.items())},
        **(
            {"defaults": {name: value_to_plain(value) for name, value in graph.defaults.items()}}
            if graph.defaults
            else {}
        ),
    }


def graph_from_plain(data: Any, find: Find) -> Graph:
    """Convert the result of `graph_to_plain` back.

    Raises
    ------
    SourceError
        The data has another form, or the graph is invalid.
    """
    check_nodes(data)
    fields = {"defaults": {}, **must_be(dict, data)}
    if fields.keys() != {"name", "inputs", "outputs", "nodes", "constants", "values", "defaults"}:
        raise SourceError(f"invalid fields of a graph: {_shown(sorted(fields))}")
    constants = must_be(dict, fields["constants"])
    return Graph(
        tuple(list_of(str, fields["inputs"])),
        tuple(list_of(str, fields["outputs"])),
        tuple(_node_from_plain(node, find) for node in must_be(list, fields["nodes"])),
        {name: _array_from_plain(array, find) for name, array in constants.items()},
        {name: value_from_plain(value) for name, value in must_be(dict, fields["values"]).items()},
        must_be(str, fields["name"]),
        _defaults(must_be(dict, fields["defaults"]), constants),
    )


def _defaults(data: Mapping[str, Any], constants: Mapping[str, Any]) -> dict[str, Value]:
    """Convert the shapes and dtypes of constants that may be fed."""
    stated = {name: value_from_plain(value) for name, value in data.items()}
    for name, value in stated.items():
        if name not in constants or value.dtype is None:
            raise SourceError(f"{_shown(name)} is not a constant that may be fed")
    return stated


def _node_to_plain(node: Node, keep: Keep) -> list[Any]:
    meaning: Any = None
    if isinstance(node.semantics, Foreign):
        proto = base64.b64encode(node.semantics.proto).decode()
        meaning = [proto, node.semantics.opsets, list(node.semantics.inputs)]
    elif control.is_control(node):
        meaning = _CONTROL
    elif node.semantics is not None:
        raise SourceError(f"{node.label} has custom semantics and cannot be saved.")
    attributes = {name: _attribute_to_plain(value, keep) for name, value in node.attributes.items()}
    parts = [] if node.sources == (node.origin,) else [list(node.parts)]
    return [node.op, list(node.inputs), list(node.outputs), attributes, node.origin, meaning, *parts]


def _node_from_plain(data: Any, find: Find) -> Node:
    several = len(must_be(list, data)) > 6
    op, inputs, outputs, attributes, origin, meaning, parts = _items(data if several else [*data, []], 7)
    given = {name: _attribute_from_plain(value, find) for name, value in must_be(dict, attributes).items()}
    names = tuple(list_of(str, inputs)), tuple(list_of(str, outputs))
    must_be(str, op), must_be(str, origin), list_of(str, parts)
    if not any(names[1]):
        raise SourceError(f"a node {op} has no output")
    if meaning == _CONTROL and op in control.BODIES:
        return control.check(Node(op, *names, given, origin, control.Control(), tuple(parts)))
    if meaning is not None:
        return Node(op, *names, given, origin, _foreign(meaning, names[0]), tuple(parts))
    if op not in TABLE:
        raise SourceError(f"unknown operator {_shown(op)}")
    try:
        node = TABLE[op].node(*names, origin, **given)
    except (ArgumentError, TypeError) as error:
        raise SourceError(f"{op} node {origin!r}: {error}") from error
    _check_attributes(node)
    return replace(node, parts=tuple(parts))


def _foreign(data: Any, inputs: tuple[str, ...]) -> Foreign:
    proto, opsets, names = _items(data, 3)
    try:
        content = base64.b64decode(must_be(str, proto), validate=True)
        check_protos(GraphProto(node=[wire.decode(content, NodeProto)]))
    except ValueError as error:
        raise SourceError(f"the text of a node is damaged, {error}") from error
    versions = {domain: must_be(int, version) for domain, version in must_be(dict, opsets).items()}
    if len(list_of(str, names)) != len(inputs):
        raise SourceError(f"a node of {len(inputs)} inputs names {len(names)}")
    return Foreign(content, versions, names)


def _check_attributes(node: Node) -> None:
    """Check that attributes have the types of their defaults, if these have one."""
    for name, default in TABLE[node.op].attributes.items():
        value = node[name]
        if isinstance(value, Draws) or (name == "seed" and value is not None):
            if not (isinstance(value, Draws) and name == "seed"):
                raise SourceError(f"{node.label}: the attribute {name!r} is {_shown(value)}")
            continue
        if isinstance(value, np.dtype) and name in _OPTIONAL_TYPES:
            continue
        kinds: tuple[type, ...] = _ALSO.get(type(default), (type(default),))
        stated = default is not None and default is not REQUIRED
        typed = name in _TYPES and value is not None
        if typed != isinstance(value, np.dtype) or (stated and type(value) not in kinds) or isinstance(value, Graph):
            raise SourceError(f"{node.label}: the attribute {name!r} is {_shown(value)}")
        if isinstance(value, float) and math.isnan(value):
            raise SourceError(f"{node.label}: the attribute {name!r} is no number")
    tree = node.attributes.get("expression")
    if node.op == "Elementwise":
        if not isinstance(tree, Expression) or max(tree.operands, default=0) >= len(node.inputs):
            raise SourceError(f"{node.label} has no expression of its inputs")
    elif any(isinstance(value, Expression) for value in node.attributes.values()):
        raise SourceError(f"{node.label} has an expression, which it cannot compute")


def named(data: Mapping[str, Any], *names: str) -> list[Any]:
    """The values with these names.

    Raises
    ------
    SourceError
        A name is missing.
    """
    for name in names:
        if name not in data:
            raise SourceError(f"{name!r} is missing")
    return [data[name] for name in names]
