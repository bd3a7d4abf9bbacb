"""Models damaged at random: bits and bytes of their files, and nodes, attributes, names and constants in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, -7, 1000, 10**6, 2**31 - 1, 2**31, -(2**31), 10**12, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e30, 3.5, float("nan"), float("inf"), float("-inf"))
_TEXTS = (b"", b"SAME_UPPER", b"SAME_LOWER", b"VALID", b"NOTSET", b"linear", b"nearest", b"reflect", b"\xff", b"q")
_SMALL_SIZES = 12  # bytes of a slice that is moved, most of the time

Rng = np.random.Generator
Change = Callable[[Rng, onnx.ModelProto, onnx.ModelProto], None]


def mutated(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> bytes:
    """The bytes of a model with something wrong in it, or something else in it, some of it taken from another model."""
    if rng.random() < 0.4:
        return _BYTES[rng.integers(len(_BYTES))](rng, model.SerializeToString(), other.SerializeToString(), model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        CHANGES[rng.integers(len(CHANGES))](rng, changed, other)
    return changed.SerializeToString()


# --- bytes ----------------------------------------------------------------------------------------------------------


def _places(rng: Rng, data: bytes, model: onnx.ModelProto, count: int) -> list[int]:
    """Places in a file, mostly outside the elements of constants."""
    inside = [(data.find(w.raw_data), len(w.raw_data)) for w in model.graph.initializer if len(w.raw_data) > 64]
    found: list[int] = []
    while len(found) < count:
        place = int(rng.integers(len(data)))
        if rng.random() < 0.1 or not any(start <= place < start + size for start, size in inside):
            found.append(place)
    return found


def _flipped(rng: Rng, data: bytes, other: bytes, model: onnx.ModelProto) -> bytes:
    changed = bytearray(data)
    for place in _places(rng, data, model, int(rng.choice((1, 1, 2, 4, 8)))):
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _overwritten(rng: Rng, data: bytes, other: bytes, model: onnx.ModelProto) -> bytes:
    changed = bytearray(data)
    for place in _places(rng, data, model, int(rng.integers(1, 5))):
        changed[place] = int(rng.choice((0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256)))))
    return bytes(changed)


def _truncated(rng: Rng, data: bytes, other: bytes, model: onnx.ModelProto) -> bytes:
    return data[: _places(rng, data, model, 1)[0]]


def _cut(rng: Rng, data: bytes, other: bytes, model: onnx.ModelProto) -> bytes:
    start = _places(rng, data, model, 1)[0]
    return data[:start] + data[start + int(rng.integers(1, _SMALL_SIZES)) :]


def _spliced(rng: Rng, data: bytes, other: bytes, model: onnx.ModelProto) -> bytes:
    """A slice of the other file, or of the file itself, put in."""
    source = other if rng.random() < 0.5 else data
    start, size = int(rng.integers(len(source))), int(rng.choice((1, 4, _SMALL_SIZES, 100, 1000)))
    place = _places(rng, data, model, 1)[0]
    return data[:place] + source[start : start + size] + data[place + (size if rng.random() < 0.5 else 0) :]


_BYTES = (_flipped, _overwritten, _truncated, _cut, _spliced)


# --- what a model says ----------------------------------------------------------------------------------------------


def _one(rng: Rng, items: Sequence) -> object | None:
    return items[int(rng.integers(len(items)))] if len(items) else None


def _node(rng: Rng, model: onnx.ModelProto) -> onnx.NodeProto:
    return _one(rng, model.graph.node) or model.graph.node.add()


def _names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    made = [name for node in graph.node for name in node.output]
    return ["", *made, *(info.name for info in graph.input), *(tensor.name for tensor in graph.initializer)]


def _attribute_changed(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return
    attribute = _one(rng, _one(rng, nodes).attribute)
    kind = rng.integers(6)
    if kind == 0:
        attribute.type = int(rng.integers(0, 15))
    elif attribute.type == AttributeProto.INT:
        attribute.i = int(_one(rng, NUMBERS))
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = _one(rng, FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = _one(rng, _TEXTS)
    elif attribute.type == AttributeProto.INTS and len(attribute.ints):
        if kind == 1:
            attribute.ints.append(int(_one(rng, NUMBERS)))
        elif kind == 2:
            attribute.ints.pop()
        else:
            attribute.ints[int(rng.integers(len(attribute.ints)))] = int(_one(rng, NUMBERS))
    elif attribute.type == AttributeProto.TENSOR:
        _tensor_changed(rng, attribute.t)


def _attribute_removed(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    node = _node(rng, model)
    if node.attribute:
        del node.attribute[int(rng.integers(len(node.attribute)))]


def _attribute_added(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """An attribute of another node, or one that its operator has and that is not there."""
    node, donor = _node(rng, model), _node(rng, other)
    if donor.attribute and rng.random() < 0.5:
        node.attribute.add().CopyFrom(_one(rng, donor.attribute))
    elif onnx.defs.has(node.op_type):
        name = _one(rng, sorted(onnx.defs.get_schema(node.op_type).attributes))
        if name:
            value = [int(_one(rng, NUMBERS)), [int(_one(rng, NUMBERS)) for _ in range(2)], _one(rng, FLOATS)]
            node.attribute.append(helper.make_attribute(name, value[int(rng.integers(3))]))


def _op_changed(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
    _node(rng, model).op_type = _one(rng, [*names, "", "Conv", "Nothing"])


def _input_changed(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    node, kind = _node(rng, model), rng.integers(5)
    if kind == 0 or not node.input:
        node.input.append(_one(rng, _names(model)))
    elif kind == 1:
        node.input.pop()
    elif kind == 2 and node.output:
        node.input[int(rng.integers(len(node.input)))] = node.output[0]
    else:
        node.input[int(rng.integers(len(node.input)))] = _one(rng, _names(model))


def _output_changed(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    node, kind = _node(rng, model), rng.integers(3)
    if kind == 0 or not node.output:
        node.output.append(f"more {len(node.output)}" if rng.random() < 0.5 else _one(rng, _names(model)))
    else:
        node.output[int(rng.integers(len(node.output)))] = _one(rng, _names(model))


def _node_moved(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """A node of this or of another model more, or one less."""
    graph, kind = model.graph, rng.integers(3)
    if kind == 0 and graph.node:
        del graph.node[int(rng.integers(len(graph.node)))]
        return
    donor = _node(rng, other if kind == 1 else model)
    added = graph.node.add()
    added.CopyFrom(donor)
    if rng.random() < 0.7:
        added.input[:] = [_one(rng, _names(model)) for _ in added.input]
        added.output[:] = [f"added {at}" for at, _ in enumerate(added.output)]
        if added.output:
            graph.output.add().name = added.output[0]


def _tensor_changed(rng: Rng, tensor: TensorProto) -> None:
    kind = rng.integers(6)
    if kind == 0:
        tensor.data_type = int(rng.integers(0, 24))
    elif kind == 1 and tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = int(_one(rng, NUMBERS))
    elif kind == 2:
        tensor.dims.append(int(_one(rng, NUMBERS)))
    elif kind == 3:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data) + 1))]
    elif kind == 4:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=str(_one(rng, ("/etc/passwd", "../x", "x", "", "\0"))))
        tensor.external_data.add(key="offset", value=str(_one(rng, NUMBERS)))
    else:
        _elements_changed(rng, tensor)


def _elements_changed(rng: Rng, tensor: TensorProto) -> None:
    """Some elements are other numbers: of constants of integers, sizes."""
    try:
        array = onnx.numpy_helper.to_array(tensor).copy()
    except Exception:
        return
    if not array.size or array.dtype.kind not in "iuf":
        return
    for _ in range(int(rng.integers(1, 3))):
        value = _one(rng, FLOATS if array.dtype.kind == "f" else NUMBERS)
        with np.errstate(all="ignore"):
            array.reshape(-1)[int(rng.integers(array.size))] = np.array(value).astype(array.dtype)
    name = tensor.name
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))


def _constant_changed(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """A constant, mostly one of integers."""
    whole = [tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.INT64]
    tensor = _one(rng, whole if whole and rng.random() < 0.7 else model.graph.initializer)
    if tensor is not None:
        _tensor_changed(rng, tensor)


def _shape_changed(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """The shape or type that is stated for an input, an output or a value in between."""
    graph = model.graph
    info = _one(rng, [*graph.input, *graph.input, *graph.output, *graph.value_info])
    if info is None:
        return
    tensor, kind = info.type.tensor_type, rng.integers(6)
    if kind == 0:
        tensor.elem_type = int(rng.integers(0, 24))
    elif kind == 1:
        tensor.ClearField("shape")
    elif kind == 2:
        tensor.shape.dim.add().dim_value = int(_one(rng, NUMBERS))
    elif kind == 3 and tensor.shape.dim:
        tensor.shape.dim[int(rng.integers(len(tensor.shape.dim)))].dim_param = str(_one(rng, ("N", "", "?")))
    elif kind == 4:
        info.name = _one(rng, _names(model))
    elif tensor.shape.dim:
        tensor.shape.dim[int(rng.integers(len(tensor.shape.dim)))].dim_value = int(_one(rng, NUMBERS))


def _opset_changed(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    if rng.random() < 0.8 and model.opset_import:
        model.opset_import[0].version = int(_one(rng, (*range(30), *NUMBERS)))
    elif rng.random() < 0.5:
        _node(rng, model).domain = str(_one(rng, ("ai.onnx", "ai.onnx.ml", "com.microsoft", "x")))
    else:
        model.opset_import.add(domain="ai.onnx.ml", version=3)


def _wrapped(rng: Rng, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """A node becomes a branch of an If, a Loop's body, or a function of the model."""
    node, kind = _node(rng, model), rng.integers(3)
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    node.ClearField("attribute")
    if kind == 2:
        node.domain, node.op_type = "own", "f"
        body = model.functions.add(domain="own", name="f", input=list(node.input), output=list(node.output))
        body.node.append(inner)
        body.opset_import.add(domain="", version=int(_one(rng, (7, 13, 17, 21))))
        model.opset_import.add(domain="own", version=1)
        if rng.random() < 0.3:  # which calls itself
            body.node.add().CopyFrom(node)
        return
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([inner], "body", [], outputs)
    node.op_type = ("If", "Loop")[kind]
    node.input[:] = [_one(rng, _names(model)) for _ in range(int(rng.integers(1, 3)))]
    for name in (("then_branch", "else_branch"), ("body",))[kind]:
        node.attribute.append(helper.make_attribute(name, graph))


CHANGES: tuple[Change, ...] = (
    _attribute_changed, _attribute_changed, _attribute_changed, _attribute_removed, _attribute_added, _op_changed,
    _input_changed, _input_changed, _output_changed, _node_moved, _node_moved, _constant_changed, _constant_changed,
    _constant_changed, _shape_changed, _shape_changed, _opset_changed, _wrapped,
)  # fmt: skip
