"""Models that grow: each construct of which a file may hold many, by how many it holds.

Reading such a model and making it ready may take time and memory in proportion to its size, or n log n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

Make = Callable[[int], bytes]
Shape = Sequence[int | str] | None
_FLOAT, _FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16
_GRAPH, _NODE, _INITIALIZER, _ATTRIBUTE, _INTS = 7, 1, 5, 5, 8  # numbers of fields
_IMAGE = (1, 2, 4, 4)
_CONSTANTS: dict[str, np.ndarray] = {
    "row": np.float32([1.5, 2, 3]), "column": np.float32([[1.5], [2]]), "two": np.float32(2), "zero": np.float32(0),
    "huge": np.float32(1e30), "square": np.eye(3, dtype=np.float32), "kernel": np.ones((2, 2, 1, 1), np.float32),
    "channels": np.float32([1, 2]), "planes": np.float32([[[1.5]], [[2]]]), "shape": np.array([2, 3]),
    "axis0": np.array([0]), "axis1": np.array([1]), "far": np.array([9]), "pads": np.zeros(8, np.int64),
    "sizes": np.array([1, 2, 4, 4]), "order": np.array([1, 0]), "scale": np.float32(0.1), "point": np.uint8(3),
    "bytes": np.ones((2, 2, 1, 1), np.int8), "true": np.array(True), "twice": np.int64(2),
}  # fmt: skip


class Growing(NamedTuple):
    """A construct: a model that holds `size` of it, or any number; and what its refusal says, if it is refused."""

    make: Make
    size: int
    said: str = ""


def _info(name: str, shape: Shape, kind: int = _FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node; names are apart by spaces, "-" stands for one that is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), domain="own" if op.startswith("f") else "", **attributes)


def _graph(nodes: Iterable[NodeProto], inputs: Mapping[str, Shape], outputs: Iterable[str], **more: Any) -> GraphProto:
    """A graph with those of `_CONSTANTS` that its nodes read."""
    nodes = list(nodes)
    ends = [_info(name, shape, more.get("kind", _FLOAT)) for name, shape in inputs.items()]
    read = dict.fromkeys(name for node in nodes for name in node.input if name in _CONSTANTS)
    constants = {**{name: _CONSTANTS[name] for name in read}, **more.get("constants", {})}
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    return helper.make_graph(nodes, "g", ends, [onnx.ValueInfoProto(name=name) for name in outputs], tensors)


def _model(graph: GraphProto, opset: int = 18, functions: Sequence[FunctionProto] = ()) -> bytes:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions).SerializeToString()


def _steps(*steps: str, shape: Shape = (2, 3), opset: int = 18, **attributes: Any) -> Make:
    """A chain of nodes, each of the value before: "Add @ row"; "@@" is that before two steps."""
    forms = [step.split(" ", 1) for step in steps]

    def make(count: int) -> bytes:
        nodes = []
        for at in range(count):
            op, names = forms[at % len(forms)]
            names = names.replace("@@", f"v{max(0, at - 1)}").replace("@", f"v{at}")
            nodes.append(_node(op, names, f"v{at + 1}", **attributes.get(op, {})))
        graph = _graph(nodes, {"v0": shape}, [f"v{count}"])
        graph.value_info.extend(_info(f"v{at}", shape) for at in range(1, count) if opset < 7)
        return _model(graph, opset)

    return make


def _wide(op: str, **attributes: Any) -> Make:
    """A node of many inputs."""

    def make(count: int) -> bytes:
        names = [f"x{at}" for at in range(count)]
        node = _node(op, " ".join(names), "y", **attributes)
        return _model(_graph([node], dict.fromkeys(names, (2, 3)), ["y"]))

    return make


def _repeated(op: str, **attributes: Any) -> Make:
    """A node that reads one value many times."""
    return lambda count: _model(_graph([_node(op, "x " * count, "y", **attributes)], {"x": (2, 3)}, ["y"]))


def _fan(text: str, shape: Shape = (2, 3), kind: int = _FLOAT) -> Make:
    """Many nodes of an input each, all of them outputs."""
    op, names = text.split(" ", 1)

    def make(count: int) -> bytes:
        nodes = [_node(op, names.replace("#", str(at)), f"y{at}") for at in range(count)]
        inputs = dict.fromkeys((name for node in nodes for name in node.input if name not in _CONSTANTS), shape)
        return _model(_graph(nodes, inputs, [f"y{at}" for at in range(count)], kind=kind))

    return make


def _joined(op: str) -> Make:
    """Inputs that are joined one after the other."""

    def make(count: int) -> bytes:
        nodes = [_node(op, f"{f's{at - 1}' if at else 'x'} x{at}", f"s{at}") for at in range(count)]
        return _model(_graph(nodes, {"x": (2, 3), **{f"x{at}": (2, 3) for at in range(count)}}, [f"s{count - 1}"]))

    return make


def _split(count: int) -> bytes:
    """Parts that are computed and put together again."""
    parts = [f"p{at}" for at in range(count)]
    nodes = [_node("Split", "x", " ".join(parts), axis=1, num_outputs=count)]
    nodes += [_node("Softmax", part, f"s{part}") for part in parts]
    nodes.append(_node("Concat", " ".join(f"s{part}" for part in parts), "y", axis=1))
    return _model(_graph(nodes, {"x": (2, 2 * count)}, ["y"]))


def _slices(count: int) -> bytes:
    constants = {f"n{at}": np.array([at]) for at in range(count + 1)}
    nodes = [_node("Slice", f"x n{at} n{at + 1} axis1", f"p{at}") for at in range(count)]
    nodes.append(_node("Concat", " ".join(f"p{at}" for at in range(count)), "y", axis=1))
    return _model(_graph(nodes, {"x": (2, count)}, ["y"], constants=constants))


def _constants(array: Callable[[int], np.ndarray], op: str, shape: Shape) -> Make:
    """A constant for each step of a chain."""

    def make(count: int) -> bytes:
        nodes = [_node(op, f"v{at} c{at}", f"v{at + 1}") for at in range(count)]
        constants = {f"c{at}": array(at) for at in range(count)}
        return _model(_graph(nodes, {"v0": shape}, [f"v{count}"], constants=constants))

    return make


def _alike(at: int) -> np.ndarray:
    """A matrix whose last element alone differs."""
    array = np.eye(5, dtype=np.float32)
    array[4, 4] = at
    return array


def _folded(count: int) -> bytes:
    nodes = [_node("Neg", f"c{at}", f"c{at + 1}") for at in range(count)]
    graph = _graph([*nodes, _node("Add", f"x c{count}", "y")], {"x": (2, 3)}, ["y"], constants={"c0": np.ones(3)})
    graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    return _model(graph)


# --- functions and branches -----------------------------------------------------------------------------------------


def _function(
    nodes: Sequence[NodeProto], inputs: Sequence[str] = ("a",), outputs: Sequence[str] = ("b",), **more: Any
) -> FunctionProto:
    opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(f"d{at}", 1) for at in range(more.get("opsets", 0)))]
    body = helper.make_function("own", "f", list(inputs), list(outputs), nodes, opsets, more.get("attributes", []))
    body.attribute_proto.extend(helper.make_attribute(f"k{at}", 1) for at in range(more.get("defaults", 0)))
    return body


def _called(count: int, *functions: FunctionProto, shape: Shape = (2, 3)) -> bytes:
    nodes = [_node("f", f"v{at}", f"v{at + 1}") for at in range(count)]
    return _model(_graph(nodes, {"v0": shape}, [f"v{count}"]), functions=functions)


_NEG = _node("Neg", "a", "b")


def _of_many_inputs(count: int) -> bytes:
    names = [f"a{at}" for at in range(count)]
    body = _function([_node("Sum", " ".join(names), "b")], names)
    return _model(_graph([_node("f", "x " * count, "y")], {"x": (2, 3)}, ["y"]), functions=[body])


def _of_a_long_attribute(count: int) -> bytes:
    """A function that gives its attribute to many nodes."""
    ends = ["a", *(f"t{at}" for at in range(count - 1)), "b"]
    nodes = [_node("Transpose", first, second) for first, second in zip(ends, ends[1:], strict=False)]
    for node in nodes:
        node.attribute.append(AttributeProto(name="perm", type=AttributeProto.INTS, ref_attr_name="p"))
    body = _function(nodes, attributes=["p"])
    call = _node("f", "x", "y", p=[0] * (100 * count))
    return _model(_graph([call], {"x": (2, 3)}, ["y"]), functions=[body])


def _of_long_names(count: int) -> bytes:
    name = "k" * 100 * count
    return _called(count, _function([_node("Neg", "a", name), _node("Softmax", name, "b")]))


def _branch(nodes: Sequence[NodeProto]) -> GraphProto:
    return helper.make_graph(nodes, "b", [], [onnx.ValueInfoProto(name=name) for name in nodes[-1].output])


def _ifs(count: int) -> bytes:
    nodes = []
    for at in range(count):
        branches = [_branch([_node(op, f"v{at}", "t")]) for op in ("Neg", "Softmax")]
        nodes.append(_node("If", "true", f"v{at + 1}", then_branch=branches[0], else_branch=branches[1]))
    return _model(_graph(nodes, {"v0": (2, 3)}, [f"v{count}"]))


def _deep_ifs(count: int) -> bytes:
    """Branches in branches, and a chain in the innermost of them."""
    inner = _branch([_node("Softmax", f"t{at}" if at else "x", f"t{at + 1}") for at in range(count)])
    for level in range(14):
        other = _branch([_node("Neg", "x", "n")])
        inner = _branch([_node("If", "true", f"n{level}", then_branch=inner, else_branch=other)])
    return _model(_graph(inner.node, {"x": (2, 3)}, ["n13"], constants={"true": np.array(True)}))


def _branch_of_a_long_name(count: int) -> bytes:
    name = "k" * 100 * count
    body = _branch([_node("Softmax", f"t{at}" if at else "x", f"t{at + 1}") for at in range(count)])
    node = _node("If", "true", name, then_branch=body, else_branch=body)
    return _model(_graph([node, _node("Neg", name, "y")], {"x": (2, 3)}, ["y"]))


# --- fields that come in many pieces --------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _with_graph(part: bytes) -> bytes:
    """A model whose graph has one more field."""
    graph = _graph([_node("Relu", "x", "y")], {"x": (2, 3)}, ["y"]).SerializeToString()
    head = helper.make_model(GraphProto(), opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    head.ClearField("graph")
    return head.SerializeToString() + _field(_GRAPH, graph + part)


def _packed(number: int, kind: int, size: int, many: int = 0) -> Make:
    """Numbers of a tensor one at a time, each behind `many` at once."""

    def make(count: int) -> bytes:
        piece = (_field(number, bytes(size * many)) if many else b"") + _field(number, bytes(size))
        tensor = TensorProto(name="c", data_type=kind, dims=[count * (1 + many)]).SerializeToString()
        return _with_graph(_field(_INITIALIZER, tensor + piece * count))

    return make


def _packed_attribute(count: int) -> bytes:
    attribute = AttributeProto(name="perm", type=AttributeProto.INTS).SerializeToString() + _field(_INTS, b"\0") * count
    node = _node("Transpose", "x", "z").SerializeToString() + _field(_ATTRIBUTE, attribute)
    return _with_graph(_field(_NODE, node))


def _rank(op: str) -> Make:
    """An output of many axes; without an operator, an input."""

    def make(count: int) -> bytes:
        if not op:
            return _model(_graph([_node("Relu", "x", "y")], {"x": (1,) * count}, ["y"]))
        stated = np.arange(count) if op == "Unsqueeze" else np.ones(count, np.int64)
        return _model(_graph([_node(op, "x n", "y")], {"x": (1,)}, ["y"], constants={"n": stated}))

    return make


def _rank_of_a_constant(count: int) -> bytes:
    tensor = TensorProto(name="c", data_type=_FLOAT, dims=[1] * count, float_data=[1.0])
    return _with_graph(_field(_INITIALIZER, tensor.SerializeToString()))


def _long_name(count: int) -> bytes:
    return _model(_graph([_node("Relu", "m" * count, "y")], {"x": (2, 3)}, ["y"]))


def _more_opsets(count: int) -> bytes:
    model = onnx.ModelProto.FromString(_steps("Acos @")(count // 10))
    model.opset_import.extend(helper.make_opsetid(f"d{at}", 1) for at in range(count))
    return model.SerializeToString()


_FEW = "no more than 32 axes"
_COPIES = "calls of functions must copy"

GROWING: dict[str, Growing] = {
    **{f"chain of {op}": Growing(_steps(f"{op} @"), 150)
       for op in ("Relu", "Neg", "Exp", "Identity", "Softmax", "Flatten", "Dropout")},
    **{f"chain of {op} with a constant": Growing(_steps(f"{op} @ row"), 150)
       for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "PRelu")},
    "chain of Sub from a constant": Growing(_steps("Sub row @"), 150),
    "chain of Add and Mul": Growing(_steps("Add @ row", "Mul @ column"), 150),
    "chain of Mul beyond float32": Growing(_steps("Mul @ huge"), 150),
    "chain of Mul of many channels": Growing(_steps("Mul @ two", shape=(1, 100_000_000)), 50),
    "chain of Add with itself": Growing(_steps("Add @ @"), 150),
    "chain of Mul with itself": Growing(_steps("Mul @ @"), 150),
    "chain of Mul with the one before": Growing(_steps("Mul @ @@"), 100),
    "chain of swishes": Growing(_steps("Sigmoid @", "Mul @ @@"), 100),
    "chain of BatchNormalization": Growing(_steps("BatchNormalization @ channels channels channels channels",
                                                  shape=_IMAGE), 100),
    "chain of Conv": Growing(_steps("Conv @ kernel channels", shape=_IMAGE), 50),
    "chain of Conv and Mul": Growing(_steps("Conv @ kernel", "Mul @ planes", shape=_IMAGE), 50),
    "chain of residuals": Growing(_steps("Conv @ kernel", "Add @ @@", shape=_IMAGE), 50),
    "chain of MatMul": Growing(_steps("MatMul @ square"), 50),
    "chain of MaxPool": Growing(_steps("MaxPool @", shape=_IMAGE, MaxPool={"kernel_shape": [1, 1]}), 100),
    "chain of Transpose and Softmax": Growing(_steps("Transpose @", "Softmax @", shape=(3, 3)), 100),
    "chain of Reshape and Exp": Growing(_steps("Reshape @ shape", "Exp @"), 100),
    "chain of Slice": Growing(_steps("Slice @ axis0 far axis0"), 100),
    "chain of Pad": Growing(_steps("Pad @ pads", shape=_IMAGE), 100),
    "chain of Resize": Growing(_steps("Resize @ - - sizes", shape=_IMAGE), 100),
    "chain of Gather": Growing(_steps("Gather @ order"), 100),
    "chain of Concat": Growing(_steps("Concat @ row", shape=(3,), Concat={"axis": 0}), 100),
    "chain of QuantizeLinear": Growing(_steps("QuantizeLinear @ scale point", "DequantizeLinear @ scale point"), 60),
    "chain of opset 6's axis": Growing(_steps("Add @ channels", opset=6, Add={"axis": 0, "broadcast": 1}), 100),
    "chain of opset 11's Softmax": Growing(_steps("Softmax @", opset=11, Softmax={"axis": 0}), 50),
    "chain of opset 6's Clip": Growing(_steps("Clip @", opset=6, Clip={"min": 0.0, "max": 6.0}), 50),
    **{f"{op} of many": Growing(_wide(op), 150) for op in ("Sum", "Mean", "Max", "Min")},
    "Concat of many": Growing(_wide("Concat", axis=0), 150),
    **{f"{op} of one, many times": Growing(_repeated(op), 150) for op in ("Sum", "Mean", "Max")},
    "Concat of one, many times": Growing(_repeated("Concat", axis=0), 150),
    **{f"many of {text}": Growing(_fan(text), 100)
       for text in ("Exp x#", "Softmax x", "Mul x x#", "Add x row", "MatMul x# square", "Identity x#")},
    "many of open sizes": Growing(_fan("Relu x#", ("N", 3)), 100),
    "many of symbols": Growing(_fan("Relu x#", ("N", "M")), 100),
    "many of float16": Growing(_fan("Neg x#", kind=_FLOAT16), 100),
    **{f"inputs joined by {op}": Growing(_joined(op), 100) for op in ("Add", "Mul", "Max")},
    "parts of a Split": Growing(_split, 80),
    "parts of Slices": Growing(_slices, 80),
    "constants of a chain": Growing(_constants(lambda at: np.float32([at, 1, 2]), "Add", (2, 3)), 100),
    "constants alike": Growing(_constants(_alike, "MatMul", (2, 5)), 60),
    "computed constants": Growing(_folded, 100),
    "calls of a function": Growing(lambda count: _called(count, _function([_NEG])), 200),
    "inputs of a function": Growing(_of_many_inputs, 150),
    "unread inputs of a function": Growing(
        lambda count: _called(count, _function([_NEG], ["a", *(f"i{at}" for at in range(count))])), 200),
    "unread outputs of a function": Growing(
        lambda count: _called(count, _function([_NEG], outputs=["b", *(f"o{at}" for at in range(count))])), 200),
    "attributes of a function": Growing(lambda count: _called(count, _function([_NEG], defaults=count)), 200),
    "opsets of a function": Growing(lambda count: _called(count, _function([_NEG], opsets=count)), 200),
    "long names of a function": Growing(_of_long_names, 60),
    "long attribute of a function": Growing(_of_a_long_attribute, 800, _COPIES),
    "branches": Growing(_ifs, 40),
    "branches in branches": Growing(_deep_ifs, 40),
    "branch of a long name": Growing(_branch_of_a_long_name, 60),
    "packed float32": Growing(_packed(4, _FLOAT, 4), 20_000),
    "packed int32": Growing(_packed(5, TensorProto.INT32, 1), 20_000),
    "packed int64": Growing(_packed(7, TensorProto.INT64, 1), 20_000),
    "packed float64": Growing(_packed(10, TensorProto.DOUBLE, 8), 20_000),
    "packed uint64": Growing(_packed(11, TensorProto.UINT64, 1), 20_000),
    "packed many and one": Growing(_packed(4, _FLOAT, 4, 64), 800),
    "packed attribute": Growing(_packed_attribute, 20_000, "Transpose node 'z' cannot take"),
    "graph in pieces": Growing(lambda count: _with_graph(b"") + _field(_GRAPH, b"") * count, 3000),
    "axes of an input": Growing(_rank(""), 2000, _FEW),
    "axes of a constant": Growing(_rank_of_a_constant, 50_000, _FEW),
    **{f"axes of {op}": Growing(_rank(op), 2000, _FEW) for op in ("Expand", "Reshape", "Unsqueeze")},
    "name that is not there": Growing(_long_name, 20_000, "reads 'm"),
    "opsets of ONNX's evaluator": Growing(_more_opsets, 200),
}  # fmt: skip
