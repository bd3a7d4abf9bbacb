"""Models that grow: each construct of which a file may hold many, by how many it holds.

A row gives the bytes of a model. Reading it and making it ready may take time and memory in proportion to what it
holds, or n log n, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Ends = dict[str, Sequence[int | str] | None]


def _info(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Ends,
    outputs: Iterable[str],
    constants: dict[str, object] | None = None,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
) -> bytes:
    graph = helper.make_graph(
        list(nodes), "g", [_info(name, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))
    return model.SerializeToString()


def _chain(op: str, *rest: str, shape: Sequence[int] = (2, 3), opset: int = 18, **attributes) -> Callable[[int], bytes]:
    """`op` of its own result, over and over."""

    def make(count: int) -> bytes:
        nodes = [helper.make_node(op, [f"v{at}", *rest], [f"v{at + 1}"], **attributes) for at in range(count)]
        return _model(nodes, {"v0": shape}, [f"v{count}"], CONSTANTS, opset)

    return make


F = np.float32
CONSTANTS: dict[str, object] = {
    "c": F([1.5, 2, 3]), "one": F(1), "half": F(0.5), "two": F(2), "col": F([[1.5], [2]]),
    "slope": F([0.1, 0.2, 0.3]), "shape": np.array([2, 3]), "zero": F(0), "w": F(np.eye(3)),
    "k1": F(np.ones((2, 2, 1, 1))), "b2": F([1, 2]), "k3": F(np.ones((2, 2, 3, 3))), "chan": F([[[1.5]], [[2]]]),
    "six": F(6), "axis0": np.array([0]), "start": np.array([0]), "end": np.array([9]), "pads": np.array([0] * 8),
    "sizes4": np.array([1, 2, 4, 4]), "scales4": F([1, 1, 1, 1]), "idx": np.array([1, 0]), "shape4": np.array([1, 2, 4, 4]),
    "s8": np.uint8(3), "sc": F(0.1),
}  # fmt: skip


def _alternating(*steps: tuple, shape: Sequence[int] = (2, 3), opset: int = 18) -> Callable[[int], bytes]:
    def make(count: int) -> bytes:
        nodes = []
        for at in range(count):
            op, rest, attributes = steps[at % len(steps)]
            inputs = [f"v{at}" if each == "@" else each for each in rest]
            nodes.append(helper.make_node(op, inputs, [f"v{at + 1}"], **attributes))
        return _model(nodes, {"v0": shape}, [f"v{count}"], CONSTANTS, opset)

    return make


def _wide(op: str, opset: int = 18, **attributes) -> Callable[[int], bytes]:
    """`op` of many inputs."""

    def make(count: int) -> bytes:
        inputs = [f"x{at}" for at in range(count)]
        node = helper.make_node(op, inputs, ["y"], **attributes)
        return _model([node], {name: (2, 3) for name in inputs}, ["y"], None, opset)

    return make


def _wide_same(op: str, **attributes) -> Callable[[int], bytes]:
    def make(count: int) -> bytes:
        return _model([helper.make_node(op, ["x"] * count, ["y"], **attributes)], {"x": (2, 3)}, ["y"])

    return make


def _einsum(count: int) -> bytes:
    node = helper.make_node("Einsum", [f"x{at}" for at in range(count)], ["y"], equation=",".join(["ij"] * count) + "->ij")
    return _model([node], {f"x{at}": (2, 3) for at in range(count)}, ["y"])


def _split(count: int) -> bytes:
    names = [f"y{at}" for at in range(count)]
    return _model([helper.make_node("Split", ["x"], names, num_outputs=count, axis=0)], {"x": (count, 3)}, names)


def _split_concat(count: int) -> bytes:
    names = [f"y{at}" for at in range(count)]
    nodes = [helper.make_node("Split", ["x"], names, num_outputs=count, axis=1), helper.make_node("Concat", names, ["z"], axis=1)]
    return _model(nodes, {"x": (2, count)}, ["z"])


def _split_relu_concat(count: int) -> bytes:
    names = [f"y{at}" for at in range(count)]
    nodes = [helper.make_node("Split", ["x"], names, num_outputs=count, axis=1)]
    nodes += [helper.make_node("Softmax", [name], [f"r{name}"]) for name in names]
    nodes += [helper.make_node("Concat", [f"r{name}" for name in names], ["z"], axis=1)]
    return _model(nodes, {"x": (2, 2 * count)}, ["z"])


def _fan(op: str, *rest: str, shape=(2, 3), **attributes) -> Callable[[int], bytes]:
    """Many nodes of one value, all of them outputs."""

    def make(count: int) -> bytes:
        names = [f"y{at}" for at in range(count)]
        nodes = [helper.make_node(op, ["x", *(each if each in CONSTANTS else each + str(at) for each in rest)], [name], **attributes) for at, name in enumerate(names)]
        return _model(nodes, {"x": shape}, names, CONSTANTS)

    return make


def _fan_in(op: str, join: str, **attributes) -> Callable[[int], bytes]:
    """Many nodes of one value, added up by a tree / chain."""

    def make(count: int) -> bytes:
        nodes = [helper.make_node(op, ["x"], [f"y{at}"], **attributes) for at in range(count)]
        last = "y0"
        for at in range(1, count):
            nodes.append(helper.make_node(join, [last, f"y{at}"], [f"s{at}"]))
            last = f"s{at}"
        return _model(nodes, {"x": (2, 3)}, [last], CONSTANTS)

    return make


def _distinct_fan_in(join: str) -> Callable[[int], bytes]:
    def make(count: int) -> bytes:
        nodes, last = [], "x0"
        for at in range(1, count):
            nodes.append(helper.make_node(join, [last, f"x{at}"], [f"s{at}"]))
            last = f"s{at}"
        return _model(nodes, {f"x{at}": (2, 3) for at in range(count)}, [last])

    return make


def _initializers(count: int) -> bytes:
    return _model([helper.make_node("Relu", ["x"], ["y"])], {"x": (2, 3)}, ["y"], {f"c{at}": F(at) for at in range(count)})


def _added_initializers(count: int) -> bytes:
    nodes = [helper.make_node("Add", [f"v{at}", f"c{at}"], [f"v{at + 1}"]) for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], {f"c{at}": F([at, 1, 2]) for at in range(count)})


def _outputs_of_inputs(count: int) -> bytes:
    names = [f"x{at}" for at in range(count)]
    nodes = [helper.make_node("Identity", [name], [f"y{name}"]) for name in names]
    return _model(nodes, {name: (2,) for name in names}, [f"y{name}" for name in names])


def _symbols(count: int) -> bytes:
    names = [f"x{at}" for at in range(count)]
    nodes = [helper.make_node("Relu", [name], [f"y{name}"]) for name in names]
    return _model(nodes, {name: (f"n{name}", 2) for name in names}, [f"y{name}" for name in names])


def _rank(count: int) -> bytes:
    return _model([helper.make_node("Relu", ["x"], ["y"])], {"x": (1,) * count}, ["y"])


def _rank_constant(count: int) -> bytes:
    tensor = TensorProto(name="c", data_type=FLOAT, dims=[1] * count, float_data=[1.0])
    graph = helper.make_graph([helper.make_node("Add", ["x", "c"], ["y"])], "g", [_info("x", (2,))], [onnx.ValueInfoProto(name="y")])
    graph.initializer.append(tensor)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def _rank_reshape(count: int) -> bytes:
    return _model([helper.make_node("Reshape", ["x", "s"], ["y"])], {"x": (1,)}, ["y"], {"s": np.ones(count, np.int64)})


def _rank_value(count: int) -> bytes:
    model = onnx.ModelProto.FromString(_model([helper.make_node("Relu", ["x"], ["y"])], {"x": (2,)}, ["y"]))
    model.graph.value_info.append(_info("y", [1] * count))
    return model.SerializeToString()


def _rank_unsqueeze(count: int) -> bytes:
    return _model([helper.make_node("Unsqueeze", ["x", "s"], ["y"])], {"x": (1,)}, ["y"], {"s": np.arange(count)})


def _rank_expand(count: int) -> bytes:
    return _model([helper.make_node("Expand", ["x", "s"], ["y"])], {"x": (1,)}, ["y"], {"s": np.ones(count, np.int64)})


def _unsqueezes(count: int) -> bytes:
    return _chain("Unsqueeze", "axis0", shape=(1,))(count)


def _names(count: int) -> bytes:
    name = "x" * count
    return _model([helper.make_node("Relu", [name], ["y"])], {name: (2, 3)}, ["y"])


def _origin(count: int) -> bytes:
    return _model([helper.make_node("Relu", ["x"], ["y"], name="x" * count)], {"x": (2, 3)}, ["y"])


def _long_name_chain(count: int) -> bytes:
    """A long node name, whose chain mentions it."""
    name = "n" * 2000
    nodes = [helper.make_node("Relu" if at % 2 else "Neg", [f"v{at}"], [f"v{at + 1}"], name=name + str(at)) for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"])


def _op_text(count: int) -> bytes:
    return _model([helper.make_node("R" * count, ["x"], ["y"])], {"x": (2, 3)}, ["y"])


def _missing(count: int) -> bytes:
    return _model([helper.make_node("Relu", ["m" * count], ["y"])], {"x": (2, 3)}, ["y"])


def _many_attributes(count: int) -> bytes:
    node = helper.make_node("Relu", ["x"], ["y"], **{f"a{at}": at for at in range(count)})
    return _model([node], {"x": (2, 3)}, ["y"])


def _long_ints(count: int) -> bytes:
    return _model([helper.make_node("Transpose", ["x"], ["y"], perm=list(range(count)))], {"x": (2, 3)}, ["y"])


def _long_ints_attr(op: str, key: str, shape=(1, 1, 8, 8), **more) -> Callable[[int], bytes]:
    def make(count: int) -> bytes:
        return _model([helper.make_node(op, ["x"], ["y"], **{key: [1] * count}, **more)], {"x": shape}, ["y"])

    return make


def _metadata(count: int) -> bytes:
    model = onnx.ModelProto.FromString(_chain("Relu")(1))
    helper.set_model_props(model, {f"k{at}": "v" for at in range(count)})
    return model.SerializeToString()


def _reversed(count: int) -> bytes:
    """Nodes in the reverse order."""
    nodes = [helper.make_node("Neg" if at % 2 else "Exp", [f"v{at}"], [f"v{at + 1}"]) for at in range(count)]
    return _model(reversed(nodes), {"v0": (2, 3)}, [f"v{count}"])


def _constants_of(op: str, *rest: str, **attributes) -> Callable[[int], bytes]:
    """A chain of constants."""

    def make(count: int) -> bytes:
        nodes = [helper.make_node(op, [f"v{at}", *rest], [f"v{at + 1}"], **attributes) for at in range(count)]
        nodes.append(helper.make_node("Add", ["x", f"v{count}"], ["y"]))
        return _model(nodes, {"x": (2, 3)}, ["y"], {**CONSTANTS, "v0": F([[1, 2, 3], [4, 5, 6]])})

    return make


def _constant_nodes(count: int) -> bytes:
    nodes = [helper.make_node("Constant", [], [f"c{at}"], value_float=float(at)) for at in range(count)]
    nodes += [helper.make_node("Add", [f"v{at}", f"c{at}"], [f"v{at + 1}"]) for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"])


def _function(inputs: Sequence[str], outputs: Sequence[str], nodes: Sequence[onnx.NodeProto], name="f", attributes=()) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, list(inputs), list(outputs), list(nodes), opsets, list(attributes))


def _calls(count: int) -> bytes:
    body = _function(["a"], ["b"], [helper.make_node("Neg", ["a"], ["t"]), helper.make_node("Exp", ["t"], ["b"])])
    nodes = [helper.make_node("f", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], functions=[body])


def _wide_function(count: int) -> bytes:
    names = [f"a{at}" for at in range(count)]
    body = _function(names, ["b"], [helper.make_node("Neg", ["a0"], ["b"])])
    return _model([helper.make_node("f", ["x"] * 1, ["y"], domain="own")], {"x": (2, 3)}, ["y"], functions=[body])


def _wide_function_calls(count: int) -> bytes:
    """Many inputs and many calls of few."""
    names = [f"a{at}" for at in range(count)]
    body = _function(names, ["b"], [helper.make_node("Neg", ["a0"], ["b"])])
    nodes = [helper.make_node("f", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], functions=[body])


def _attributed_function_calls(count: int) -> bytes:
    names = [f"k{at}" for at in range(count)]
    body = _function(["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], attributes=names)
    for name in names:
        body.attribute_proto.append(helper.make_attribute(name, 1))
    nodes = [helper.make_node("f", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], functions=[body])


def _opset_function_calls(count: int) -> bytes:
    body = _function(["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])])
    for at in range(count):
        body.opset_import.append(helper.make_opsetid(f"d{at}", 1))
    nodes = [helper.make_node("f", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], functions=[body])


def _unread_function_outputs(count: int) -> bytes:
    names = [f"b{at}" for at in range(count)]
    body = _function(["a"], names, [helper.make_node("Neg", ["a"], ["b0"])])
    nodes = [helper.make_node("f", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], functions=[body])


def _used_wide_function(count: int) -> bytes:
    names = [f"a{at}" for at in range(count)]
    body = _function(names, ["b"], [helper.make_node("Sum", names, ["b"])])
    return _model([helper.make_node("f", ["x"] * count, ["y"], domain="own")], {"x": (2, 3)}, ["y"], functions=[body])


def _many_functions(count: int) -> bytes:
    bodies = [_function(["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], f"f{at}") for at in range(count)]
    nodes = [helper.make_node(f"f{at}", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], functions=bodies)


def _function_ifs(count: int) -> bytes:
    """Each call holds an If that captures."""
    yes = helper.make_graph([helper.make_node("Neg", ["a"], ["t"])], "b", [], [_info("t", None)])
    no = helper.make_graph([helper.make_node("Exp", ["a"], ["t"])], "b", [], [_info("t", None)])
    body = _function(["a"], ["b"], [helper.make_node("ReduceMin", ["a"], ["m"], keepdims=0), helper.make_node("Cast", ["m"], ["n"], to=BOOL), helper.make_node("If", ["n"], ["b"], then_branch=yes, else_branch=no)])
    nodes = [helper.make_node("f", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], functions=[body])


def _axis6(count: int) -> bytes:
    nodes = [helper.make_node("Add", [f"v{at}", "c2"], [f"v{at + 1}"], axis=0, broadcast=1) for at in range(count)]
    graph = helper.make_graph(nodes, "g", [_info("v0", (2, 3))], [onnx.ValueInfoProto(name=f"v{count}")], [numpy_helper.from_array(F([1, 2]), "c2")])
    for at in range(count):
        graph.value_info.append(_info(f"v{at + 1}", (2, 3)))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=4).SerializeToString()


def _older(op: str, opset: int, shape=(2, 3), **attributes) -> Callable[[int], bytes]:
    return _chain(op, shape=shape, opset=opset, **attributes)


def _ifs(count: int) -> bytes:
    """A chain of Ifs of a condition that is fed."""
    nodes = []
    for at in range(count):
        yes = helper.make_graph([helper.make_node("Neg", [f"v{at}"], ["t"])], "b", [], [_info("t", None)])
        no = helper.make_graph([helper.make_node("Exp", [f"v{at}"], ["t"])], "b", [], [_info("t", None)])
        nodes.append(helper.make_node("If", ["k"], [f"v{at + 1}"], then_branch=yes, else_branch=no))
    graph = helper.make_graph(nodes, "g", [_info("v0", (2, 3)), _info("k", (), BOOL)], [onnx.ValueInfoProto(name=f"v{count}")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def _constant_ifs(count: int) -> bytes:
    model = onnx.ModelProto.FromString(_ifs(count))
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "k"))
    return model.SerializeToString()


def _capturing_if(count: int) -> bytes:
    """An If that reads many values around it."""
    names = [f"x{at}" for at in range(count)]
    yes = helper.make_graph([helper.make_node("Concat", names, ["t"], axis=0)], "b", [], [_info("t", None)])
    no = helper.make_graph([helper.make_node("Concat", names[::-1], ["t"], axis=0)], "b", [], [_info("t", None)])
    node = helper.make_node("If", ["k"], ["y"], then_branch=yes, else_branch=no)
    graph = helper.make_graph([node], "g", [*(_info(name, (2, 3)) for name in names)], [onnx.ValueInfoProto(name="y")], [numpy_helper.from_array(np.array(True), "k")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def _deep_ifs(count: int) -> bytes:
    """An If within an If 14 levels deep, both branches, `count` nodes in the innermost."""
    def chain(prefix: str):
        return [helper.make_node("Neg", [f"{prefix}{at}" if at else "x"], [f"{prefix}{at + 1}"]) for at in range(count)]

    inner = helper.make_graph(chain("v"), "b", [], [_info(f"v{count}", None)])
    for level in range(14):
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "b", [], [_info("n", None)])
        node = helper.make_node("If", ["k"], [f"n{level}"], then_branch=inner, else_branch=other)
        inner = helper.make_graph([node], "b", [], [_info(f"n{level}", None)])
    graph = helper.make_graph(list(inner.node), "g", [_info("x", (2, 3))], [onnx.ValueInfoProto(name="n13")], [numpy_helper.from_array(np.array(True), "k")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()


def _deep_ifs_fed(count: int) -> bytes:
    model = onnx.ModelProto.FromString(_deep_ifs(count))
    del model.graph.initializer[:]
    model.graph.input.append(_info("k", (), BOOL))
    return model.SerializeToString()


def _constant_branch(count: int) -> bytes:
    """Many outputs of an If with a constant condition."""
    outs = [f"t{at}" for at in range(count)]
    yes = helper.make_graph([helper.make_node("Neg", ["x"], [name]) for name in outs], "b", [], [_info(name, None) for name in outs])
    no = helper.make_graph([helper.make_node("Exp", ["x"], [name]) for name in outs], "b", [], [_info(name, None) for name in outs])
    node = helper.make_node("If", ["k"], [f"y{at}" for at in range(count)], then_branch=yes, else_branch=no)
    return _model([node], {"x": (2, 3)}, [f"y{at}" for at in range(count)], {"k": np.array(True)})


def _packed(field: bytes, values: int = 1) -> Callable[[int], bytes]:
    """Packed numbers in many pieces: dims of a tensor, data."""

    def make(count: int) -> bytes:
        number = {"float": 4, "int32": 5, "int64": 7, "double": 10, "uint64": 11}[field]
        size = {"float": 4, "double": 8}.get(field, 1) * values
        piece = bytes([number << 3 | 2, size]) + bytes(size)
        kind = {"float": 1, "int32": 6, "int64": 7, "double": 11, "uint64": 13}[field]
        tensor = TensorProto(name="c", data_type=kind, dims=[count * values]).SerializeToString() + piece * count
        return _with_raw_initializer(tensor)

    return make


def _with_raw_initializer(tensor: bytes) -> bytes:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [_info("x", (2, 3))], [onnx.ValueInfoProto(name="y")]).SerializeToString()
    graph += bytes([5 << 3 | 2]) + _varint(len(tensor)) + tensor
    model = helper.make_model(onnx.GraphProto(), opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model.ClearField("graph")
    return model.SerializeToString() + bytes([7 << 3 | 2]) + _varint(len(graph)) + graph


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _mixed(count: int) -> bytes:
    """An array of numbers, and then one number at a time, in turn."""
    many = bytes([4 << 3 | 2]) + _varint(4 * 64) + bytes(4 * 64)
    tensor = TensorProto(name="c", data_type=FLOAT, dims=[count * 65]).SerializeToString() + (many + bytes([4 << 3 | 5]) + bytes(4)) * count
    return _with_raw_initializer(tensor)


def _packed_ints(count: int) -> bytes:
    attribute = helper.make_attribute("perm", [0]).SerializeToString().replace(b"", b"")
    ints = bytes([8 << 3 | 2, 1, 0]) * count
    attribute = onnx.AttributeProto(name="perm", type=7).SerializeToString() + ints
    node = helper.make_node("Transpose", ["x"], ["y"]).SerializeToString() + bytes([5 << 3 | 2]) + _varint(len(attribute)) + attribute
    graph = helper.make_graph([], "g", [_info("x", (2, 3))], [onnx.ValueInfoProto(name="y")]).SerializeToString() + bytes([1 << 3 | 2]) + _varint(len(node)) + node
    model = helper.make_model(onnx.GraphProto(), opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model.ClearField("graph")
    return model.SerializeToString() + bytes([7 << 3 | 2]) + _varint(len(graph)) + graph


def _graph_pieces(count: int) -> bytes:
    """The graph in many pieces, which are put together."""
    base = _chain("Relu")(1)
    return base + (bytes([7 << 3 | 2, 0])) * count


def _diamonds(op: str, **attributes) -> Callable[[int], bytes]:
    """y = op(y, y) over and over: 2^n paths."""

    def make(count: int) -> bytes:
        nodes = [helper.make_node(op, [f"v{at}", f"v{at}"], [f"v{at + 1}"], **attributes) for at in range(count)]
        return _model(nodes, {"v0": (3, 3)}, [f"v{count}"])

    return make


def _diamonds2(join: str, a: str, b: str) -> Callable[[int], bytes]:
    def make(count: int) -> bytes:
        nodes = []
        for at in range(count):
            nodes.append(helper.make_node(a, [f"v{at}"], [f"a{at}"]))
            nodes.append(helper.make_node(b, [f"v{at}"], [f"b{at}"]))
            nodes.append(helper.make_node(join, [f"a{at}", f"b{at}"], [f"v{at + 1}"]))
        return _model(nodes, {"v0": (3, 3)}, [f"v{count}"])

    return make


def _shape_chain(count: int) -> bytes:
    nodes = [helper.make_node("Shape", ["v0"], ["s0"])]
    nodes += [helper.make_node("Identity" if at % 2 else "Add", [f"s{at}"] if at % 2 else [f"s{at}", "z"], [f"s{at + 1}"]) for at in range(count)]
    nodes += [helper.make_node("Reshape", ["v0", f"s{count}"], ["y"])]
    return _model(nodes, {"v0": ("N", 3)}, ["y"], {"z": np.int64(0)})


def _shape_concat(count: int) -> bytes:
    nodes = []
    for at in range(count):
        nodes += [helper.make_node("Shape", [f"v{at}"], [f"s{at}"]), helper.make_node("Gather", [f"s{at}", "zero64"], [f"g{at}"]),
                  helper.make_node("Concat", [f"g{at}", "three"], [f"c{at}"], axis=0), helper.make_node("Reshape", [f"v{at}", f"c{at}"], [f"r{at}"]), helper.make_node("Softmax", [f"r{at}"], [f"v{at + 1}"])]
    return _model(nodes, {"v0": ("N", 3)}, [f"v{count}"], {"zero64": np.array([0]), "three": np.array([3])})


def _qdq(count: int) -> bytes:
    nodes = []
    for at in range(count):
        nodes += [helper.make_node("QuantizeLinear", [f"v{at}", "sc", "s8"], [f"q{at}"]), helper.make_node("DequantizeLinear", [f"q{at}", "sc", "s8"], [f"d{at}"]), helper.make_node("Relu", [f"d{at}"], [f"v{at + 1}"])]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], CONSTANTS)


def _qdq_conv(count: int) -> bytes:
    nodes = []
    for at in range(count):
        nodes += [helper.make_node("QuantizeLinear", [f"v{at}", "sc", "s8"], [f"q{at}"]), helper.make_node("DequantizeLinear", [f"q{at}", "sc", "s8"], [f"d{at}"]),
                  helper.make_node("DequantizeLinear", ["kq", "sc", "kz"], [f"w{at}"]), helper.make_node("Conv", [f"d{at}", f"w{at}"], [f"v{at + 1}"])]
    return _model(nodes, {"v0": (1, 2, 4, 4)}, [f"v{count}"], {**CONSTANTS, "kq": np.ones((2, 2, 1, 1), np.int8), "kz": np.int8(0)})


def _loops(count: int) -> bytes:
    body = helper.make_graph([helper.make_node("Identity", ["c"], ["again"]), helper.make_node("Neg", ["v"], ["w"])], "b", [_info("i", (), INT64), _info("c", (), BOOL), _info("v", (2, 3))], [_info("again", (), BOOL), _info("w", (2, 3))])
    nodes = [helper.make_node("Loop", ["m", "t", f"v{at}"], [f"v{at + 1}"], body=body) for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], {"m": np.int64(2), "t": np.array(True)})


def _transposes(count: int) -> bytes:
    return _alternating(("Transpose", "@", dict(perm=[1, 0])), ("Softmax", "@", {}))(count)


def _layernorms(count: int) -> bytes:
    """LayerNormalization written out."""
    nodes = []
    for at in range(count):
        v = f"v{at}"
        nodes += [helper.make_node("ReduceMean", [v, "axm"], [f"m{at}"]), helper.make_node("Sub", [v, f"m{at}"], [f"d{at}"]), helper.make_node("Pow", [f"d{at}", "two"], [f"p{at}"]),
                  helper.make_node("ReduceMean", [f"p{at}", "axm"], [f"q{at}"]), helper.make_node("Add", [f"q{at}", "eps"], [f"e{at}"]), helper.make_node("Sqrt", [f"e{at}"], [f"r{at}"]),
                  helper.make_node("Div", [f"d{at}", f"r{at}"], [f"n{at}"]), helper.make_node("Mul", [f"n{at}", "c"], [f"g{at}"]), helper.make_node("Add", [f"g{at}", "c"], [f"v{at + 1}"])]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], {**CONSTANTS, "eps": F(1e-5), "axm": np.array([-1])})


def _dense(count: int) -> bytes:
    """DenseNet: each node concatenates all before... file is linear by concat of last."""
    nodes = []
    for at in range(count):
        nodes += [helper.make_node("Softmax", [f"v{at}"], [f"r{at}"]), helper.make_node("ReduceMax", [f"r{at}", "axm"], [f"t{at}"]), helper.make_node("Concat", [f"v{at}", f"t{at}"], [f"v{at + 1}"], axis=1)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], {"axm": np.array([1])})


IMAGE = (1, 2, 4, 4)


def _half(op, *rest):
    def make(count):
        nodes = [helper.make_node(op, [f"x{at}", *rest], [f"y{at}"]) for at in range(count)]
        graph = helper.make_graph(nodes, "g", [_info(f"x{at}", (2, 3), TensorProto.FLOAT16) for at in range(count)], [onnx.ValueInfoProto(name=f"y{at}") for at in range(count)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    return make


def _alike_constants(count):
    nodes = [helper.make_node("MatMul", [f"v{at}", f"c{at}"], [f"v{at + 1}"]) for at in range(count)]
    arrays = {}
    for at in range(count):
        a = np.eye(5, dtype=F); a[4, 4] = at; arrays[f"c{at}"] = a
    return _model(nodes, {"v0": (2, 5)}, [f"v{count}"], arrays)


def _if_names(count):
    name = "k" * 100 * count
    inner = [helper.make_node("Softmax", ["x" if at == 0 else f"t{at}"], [f"t{at + 1}"]) for at in range(count)]
    yes = helper.make_graph(inner, "b", [], [_info(f"t{count}", None)])
    node = helper.make_node("If", ["k"], [name], then_branch=yes, else_branch=yes)
    return _model([node, helper.make_node("Neg", [name], ["y"])], {"x": (2, 3)}, ["y"], {"k": np.array(True)})


def _function_names(count):
    name = "k" * 100 * count
    body = _function(["a"], ["b"], [helper.make_node("Neg", ["a"], [name]), helper.make_node("Softmax", [name], ["b"])])
    nodes = [helper.make_node("f", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count}"], functions=[body])


def _function_attribute(count):
    body = _function(["a"], ["b"], [helper.make_node("Softmax", ["a"], ["b"])])
    body.node[0].attribute.append(helper.make_attribute("unknown", list(range(1000 * count))))
    nodes = [helper.make_node("f", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count * 10)]
    return _model(nodes, {"v0": (2, 3)}, [f"v{count * 10}"], functions=[body])


def _function_ref(count):
    body = _function(["a"], ["b"], [helper.make_node("Transpose", ["a" if at == 0 else f"t{at}"], ["b" if at == count - 1 else f"t{at + 1}"]) for at in range(count)], attributes=["p"])
    for node in body.node:
        node.attribute.append(onnx.AttributeProto(name="perm", type=7, ref_attr_name="p"))
    call = helper.make_node("f", ["x"], ["y"], domain="own", p=list(range(100 * count)))
    return _model([call], {"x": (2, 3)}, ["y"], functions=[body])


def _function_constant(count):
    body = _function(["a"], ["b"], [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(900, F))), helper.make_node("Add", ["a", "c"], ["b"])])
    nodes = [helper.make_node("f", [f"v{at}"], [f"v{at + 1}"], domain="own") for at in range(count)]
    return _model(nodes, {"v0": (2, 900)}, [f"v{count}"], functions=[body])


def _dense_concat(count):
    nodes = [helper.make_node("Softmax", ["x"], ["v0"])]
    for at in range(count):
        nodes += [helper.make_node("Concat", [f"v{at}", "x"], [f"v{at + 1}"], axis=1)]
    return _model(nodes, {"x": (2, 3)}, [f"v{count}"])


def _nested_concats(count):
    """Concats which each have another reader."""
    nodes, outs = [helper.make_node("Softmax", ["x"], ["v0"])], []
    for at in range(count):
        nodes += [helper.make_node("Concat", [f"v{at}", "x"], [f"v{at + 1}"], axis=1), helper.make_node("ReduceMax", [f"v{at + 1}", "axm"], [f"o{at}"])]
        outs.append(f"o{at}")
    return _model(nodes, {"x": (2, 3)}, outs, {"axm": np.array([1])})


def _slices(count):
    nodes = [helper.make_node("Slice", ["x", f"s{at}", f"e{at}", "a"], [f"y{at}"]) for at in range(count)]
    consts = {"a": np.array([1])}
    for at in range(count):
        consts |= {f"s{at}": np.array([at]), f"e{at}": np.array([at + 1])}
    return _model([*nodes, helper.make_node("Concat", [f"y{at}" for at in range(count)], ["y"], axis=1)], {"x": (2, count)}, ["y"], consts)


def _residuals(count):
    nodes = []
    for at in range(count):
        nodes += [helper.make_node("Conv", [f"v{at}", "k1", "b2"], [f"c{at}"]), helper.make_node("Add", [f"c{at}", f"v{at}"], [f"a{at}"]), helper.make_node("Relu", [f"a{at}"], [f"v{at + 1}"])]
    return _model(nodes, {"v0": IMAGE}, [f"v{count}"], CONSTANTS)


def _transposes_residual(count):
    nodes = []
    for at in range(count):
        nodes += [helper.make_node("Transpose", [f"v{at}"], [f"t{at}"], perm=[1, 0]), helper.make_node("Softmax", [f"t{at}"], [f"s{at}"]), helper.make_node("Transpose", [f"s{at}"], [f"u{at}"], perm=[1, 0]), helper.make_node("Add", [f"u{at}", f"v{at}"], [f"v{at + 1}"])]
    return _model(nodes, {"v0": (3, 3)}, [f"v{count}"])


def _popular(count):
    """Elementwise value read by many elementwise nodes."""
    nodes = [helper.make_node("Exp", ["x"], ["e"])]
    nodes += [helper.make_node("Mul", ["e", f"x{at}"], [f"y{at}"]) for at in range(count)]
    return _model(nodes, {"x": (2, 3), **{f"x{at}": (2, 3) for at in range(count)}}, [f"y{at}" for at in range(count)])


def _popular_affine(count):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["e"])]
    nodes += [helper.make_node("Add", ["e", "c"], [f"y{at}"]) for at in range(count)]
    nodes += [helper.make_node("Softmax", [f"y{at}"], [f"z{at}"]) for at in range(count)]
    return _model(nodes, {"x": (2, 3)}, [f"z{at}" for at in range(count)], CONSTANTS)


def _shared_weights(count):
    nodes = [helper.make_node("MatMul", [f"x{at}", "w"], [f"y{at}"]) for at in range(count)]
    return _model(nodes, {f"x{at}": (2, 3) for at in range(count)}, [f"y{at}" for at in range(count)], CONSTANTS)


def _open_chain(op, *rest, **attributes):
    def make(count):
        nodes = [helper.make_node(op, [f"v{at}", *rest], [f"v{at + 1}"], **attributes) for at in range(count)]
        return _model(nodes, {"v0": ("N", 3)}, [f"v{count}"], CONSTANTS)
    return make


def _value_infos(count):
    model = onnx.ModelProto.FromString(_chain("Relu")(1))
    for at in range(count):
        model.graph.value_info.append(_info(f"q{at}", (2, 3)))
    return model.SerializeToString()


def _opsets(count):
    model = onnx.ModelProto.FromString(_chain("Relu")(1))
    for at in range(count):
        model.opset_import.append(helper.make_opsetid(f"d{at}", 1))
    return model.SerializeToString()


def _foreigns(count):
    return _chain("BitwiseNot")(1) if False else _model([helper.make_node("Acos", [f"v{at}"], [f"v{at + 1}"]) for at in range(count)], {"v0": (2, 3)}, [f"v{count}"])


def _foreign_opsets(count):
    model = onnx.ModelProto.FromString(_foreigns(count))
    for at in range(count):
        model.opset_import.append(helper.make_opsetid(f"d{at}", 1))
    return model.SerializeToString()


def _lstms(count):
    nodes = []
    for at in range(count):
        nodes += [helper.make_node("LSTM", [f"v{at}", "lw", "lr"], [f"h{at}"], hidden_size=2), helper.make_node("Squeeze", [f"h{at}", "one1"], [f"v{at + 1}"])]
    return _model(nodes, {"v0": (3, 1, 2)}, [f"v{count}"], {"lw": np.ones((1, 8, 2), F), "lr": np.ones((1, 8, 2), F), "one1": np.array([1])})


def _strings(count):
    return _model([helper.make_node("Resize", ["x", "", "sc4"], ["y"], mode="q" * count)], {"x": IMAGE}, ["y"], {"sc4": np.ones(4, F)})


def _einsum_letters(count):
    return _model([helper.make_node("Einsum", ["x"], ["y"], equation="i" * count + "->i")], {"x": (3,)}, ["y"])


def _split_sizes(count):
    return _model([helper.make_node("Split", ["x", "s"], ["y", "z"], axis=0)], {"x": (count, 3)}, ["y"], {"s": np.ones(count, np.int64)})


def _gathers(count):
    nodes = [helper.make_node("Gather", ["x", f"i{at}"], [f"y{at}"], axis=1) for at in range(count)]
    return _model([*nodes, helper.make_node("Concat", [f"y{at}" for at in range(count)], ["y"], axis=1)], {"x": (2, count)}, ["y"], {f"i{at}": np.array([at]) for at in range(count)})


def _pads(count):
    return _model([helper.make_node("Pad", ["x", "p"], ["y"])], {"x": (2, 3)}, ["y"], {"p": np.ones(count, np.int64)})
TABLE: dict[str, tuple[Callable[[int], bytes], int]] = {
    **{f"chain {op}": (_chain(op), 500) for op in ("Relu", "Neg", "Exp", "Sigmoid", "Identity", "Softmax", "Abs", "Tanh", "Sign", "Flatten", "Erf", "Not")},
    **{f"chain {op} constant": (_chain(op, "c"), 500) for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Sum", "Mean")},
    **{f"chain {op} column": (_chain(op, "col"), 500) for op in ("Add", "Mul")},
    **{f"chain {op} scalar": (_chain(op, "two"), 500) for op in ("Add", "Mul", "Pow", "Max")},
    "chain Clip": (_chain("Clip", "zero", "six"), 500),
    "chain constant first Sub": (_alternating(("Sub", ["c", "@"], {})), 500),
    "chain Add Mul": (_alternating(("Add", "@c", {}), ("Mul", "@c", {})), 500),
    "chain Mul Relu": (_alternating(("Mul", "@c", {}), ("Relu", "@", {})), 500),
    "chain channels Mul Relu": (_alternating(("Mul", ["@", "chan"], {}), ("Relu", "@", {}), shape=IMAGE), 500),
    "chain channels Mul": (_alternating(("Mul", ["@", "chan"], {}), shape=IMAGE), 500),
    "chain BatchNormalization": (_alternating(("BatchNormalization", ["@", "b2", "b2", "b2", "b2"], {}), shape=IMAGE), 200),
    "chain MatMul": (_chain("MatMul", "w"), 200),
    "chain Gemm": (_chain("Gemm", "w", "c"), 200),
    "chain Conv": (_chain("Conv", "k1", "b2", shape=IMAGE), 200),
    "chain Conv 3x3": (_chain("Conv", "k3", "b2", shape=IMAGE, pads=[1] * 4), 200),
    "chain Conv Relu": (_alternating(("Conv", ["@", "k1", "b2"], {}), ("Relu", "@", {}), shape=IMAGE), 200),
    "chain Conv Mul": (_alternating(("Conv", ["@", "k1", "b2"], {}), ("Mul", ["@", "chan"], {}), ("Add", ["@", "chan"], {}), shape=IMAGE), 200),
    "chain MaxPool": (_chain("MaxPool", shape=IMAGE, kernel_shape=[3, 3], pads=[1] * 4), 200),
    "chain AveragePool": (_chain("AveragePool", shape=IMAGE, kernel_shape=[3, 3], pads=[1] * 4), 200),
    "chain Transpose": (_chain("Transpose", shape=(3, 3), perm=[1, 0]), 500),
    "chain Transpose Relu": (_alternating(("Transpose", "@", dict(perm=[1, 0])), ("Relu", "@", {}), shape=(3, 3)), 500),
    "chain Transpose Softmax": (_transposes, 300),
    "chain Reshape": (_chain("Reshape", "shape"), 500),
    "chain Reshape Relu": (_alternating(("Reshape", ["@", "shape"], {}), ("Relu", "@", {})), 500),
    "chain Pad": (_chain("Pad", "pads", shape=IMAGE), 300),
    "chain Slice": (_chain("Slice", "start", "end", "axis0"), 500),
    "chain Resize": (_alternating(("Resize", ["@", "", "", "sizes4"], {}), shape=IMAGE), 300),
    "chain Gather": (_chain("Gather", "idx"), 300),
    "chain Cast": (_alternating(("Cast", "@", dict(to=FLOAT)), ("Cast", "@", dict(to=11))), 300),
    "chain Dropout": (_chain("Dropout"), 500),
    "chain Expand": (_chain("Expand", "shape"), 500),
    "chain LayerNormalization": (_chain("LayerNormalization", "c", "c"), 200),
    "chain written layernorm": (_layernorms, 100),
    "chain quantise": (_qdq, 200),
    "chain quantised conv": (_qdq_conv, 100),
    "chain dense": (_dense, 200),
    "chain Loop": (_loops, 30),
    "reversed": (_reversed, 500),
    **{f"wide {op}": (_wide(op), 500) for op in ("Sum", "Mean", "Max", "Min")},
    "wide Concat": (_wide("Concat", axis=0), 500),
    **{f"wide {op} of one": (_wide_same(op), 500) for op in ("Sum", "Mean", "Max", "Min")},
    "wide Concat of one": (_wide_same("Concat", axis=0), 500),
    "Einsum": (_einsum, 10),
    "Split": (_split, 500),
    "Split Concat": (_split_concat, 500),
    "Split Softmax Concat": (_split_relu_concat, 300),
    "fan Relu": (_fan("Relu"), 500),
    "fan Softmax": (_fan("Softmax"), 500),
    "fan Add constant": (_fan("Add", "c"), 500),
    "fan Mul constant": (_fan("Mul", "c"), 500),
    "fan Conv": (_fan("Conv", "k1", shape=IMAGE), 100),
    "fan MatMul": (_fan("MatMul", "w"), 200),
    "fan in Relu Add": (_fan_in("Relu", "Add"), 300),
    "fan in Softmax Add": (_fan_in("Softmax", "Add"), 300),
    "inputs Add": (_distinct_fan_in("Add"), 500),
    "inputs Mul": (_distinct_fan_in("Mul"), 500),
    "inputs MatMul": (_distinct_fan_in("Max"), 500),
    "initializers": (_initializers, 2000),
    "initializers added": (_added_initializers, 500),
    "Constant nodes added": (_constant_nodes, 500),
    "outputs": (_outputs_of_inputs, 500),
    "symbols": (_symbols, 500),
    "rank input": (_rank, 2000),
    "rank constant": (_rank_constant, 2000),
    "rank Reshape": (_rank_reshape, 2000),
    "rank Expand": (_rank_expand, 2000),
    "rank Unsqueeze": (_rank_unsqueeze, 2000),
    "rank value": (_rank_value, 2000),
    "chain Unsqueeze": (_unsqueezes, 500),
    "names": (_names, 100_000),
    "origin": (_origin, 100_000),
    "long names chain": (_long_name_chain, 100),
    "operator text": (_op_text, 100_000),
    "missing text": (_missing, 100_000),
    "attributes": (_many_attributes, 2000),
    "ints perm": (_long_ints, 20_000),
    "ints pads": (_long_ints_attr("MaxPool", "pads", kernel_shape=[2, 2]), 20_000),
    "ints kernel": (_long_ints_attr("MaxPool", "kernel_shape"), 20_000),
    "ints shape": (_long_ints_attr("RandomNormalLike", "seed2"), 20_000),
    "metadata": (_metadata, 5000),
    **{f"constants {op}": (_constants_of(op, *rest), 500) for op, *rest in (("Neg",), ("Add", "c"), ("Identity",), ("Softmax",))},
    "calls": (_calls, 1000),
    "wide function": (_wide_function, 3000),
    "wide function calls": (_wide_function_calls, 500),
    "attributed function calls": (_attributed_function_calls, 500),
    "opsets function calls": (_opset_function_calls, 500),
    "function outputs calls": (_unread_function_outputs, 500),
    "used wide function": (_used_wide_function, 100),
    "many functions": (_many_functions, 1000),
    "function Ifs": (_function_ifs, 30),
    "axis6": (_axis6, 500),
    "older Clip": (_older("Clip", 6, min=0.0, max=6.0), 500),
    "older Softmax": (_older("Softmax", 11, axis=0), 300),
    "older ReduceMax": (_older("ReduceMax", 11, axes=[0]), 300),
    "older Pad": (_older("Pad", 9, pads=[0] * 4), 300),
    "older Dropout": (_older("Dropout", 6), 300),
    "Ifs": (_ifs, 50),
    "constant Ifs": (_constant_ifs, 100),
    "capturing If": (_capturing_if, 500),
    "deep Ifs": (_deep_ifs, 100),
    "deep Ifs fed": (_deep_ifs_fed, 30),
    "constant branch": (_constant_branch, 300),
    **{f"packed {kind}": (_packed(kind), 10_000) for kind in ("float", "int32", "int64", "double", "uint64")},
    "packed mixed": (_mixed, 2000),
    "packed ints": (_packed_ints, 10_000),
    "graph pieces": (_graph_pieces, 10_000),
    **{f"diamonds {op}": (_diamonds(op), 300) for op in ("Add", "Mul", "MatMul", "Max")},
    "diamonds Concat": (_diamonds("Concat", axis=0), 10),
    "diamonds swish": (_diamonds2("Mul", "Sigmoid", "Identity"), 200),
    "diamonds exp": (_diamonds2("Add", "Sigmoid", "Exp"), 200),
    "diamonds softmax": (_diamonds2("Add", "Softmax", "Exp"), 200),
    "more half": (_half("Neg"), 500),
    "more half add": (_half("Add", "x0"), 500),
    "more alike constants": (_alike_constants, 300),
    "more if names": (_if_names, 100),
    "more function names": (_function_names, 100),
    "more function attribute": (_function_attribute, 50),
    "more function ref": (_function_ref, 100),
    "more function constant": (_function_constant, 300),
    "more dense concat": (_dense_concat, 200),
    "more nested concats": (_nested_concats, 200),
    "more slices": (_slices, 300),
    "more gathers": (_gathers, 300),
    "more residuals": (_residuals, 150),
    "more transposes residual": (_transposes_residual, 150),
    "more popular": (_popular, 300),
    "more popular affine": (_popular_affine, 300),
    "more shared weights": (_shared_weights, 300),
    **{f"open {op}": (_open_chain(op, *rest), 300) for op, *rest in (("Softmax",), ("Exp",), ("Add", "c"), ("MatMul", "w"), ("Identity",))},
    "more value infos": (_value_infos, 3000),
    "more opsets": (_opsets, 3000),
    "more foreign": (_foreigns, 30),
    "more foreign opsets": (_foreign_opsets, 30),
    "more lstm": (_lstms, 50),
    "more strings": (_strings, 100000),
    "more einsum letters": (_einsum_letters, 10000),
    "more split sizes": (_split_sizes, 10000),
    "more pads": (_pads, 10000),
    "shape chain": (_shape_chain, 300),
    "shape concat": (_shape_concat, 100),
}  # fmt: skip
