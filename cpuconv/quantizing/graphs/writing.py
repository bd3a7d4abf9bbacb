"""Export of a graph as an ONNX model; the graph is as read, or rewritten to ONNX operators."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from baselib.files import write_whole
from cpuconv.errors import SourceError
from cpuconv.functions.draws import Draws
from cpuconv.graph import control
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops import OWN, TABLE
from cpuconv.reading.decoding import Metadata
from cpuconv.reading.foreign import Foreign

if TYPE_CHECKING:
    import onnx

OPSET = 21  # the oldest that has all operators in the reader's form
_IR = 10  # file format version of that opset
_MAX_BYTES = 2**31 - 1  # size limit of a protocol buffer


def write_model(path: Path, graph: Graph, metadata: Metadata) -> int:
    """Write a graph to a file atomically and return the size in bytes.

    Raises
    ------
    OSError
        The file cannot be written.
    SourceError
        The graph has an operator that ONNX does not define, or is too large for a file.
    """
    _check_size(graph, sum(array.nbytes for array in graph.constants.values()))
    model = proto_of(graph, metadata)
    _check_size(graph, model.ByteSize())
    content = model.SerializeToString()
    write_whole({path: content})
    return len(content)


def check_writable(graph: Graph, shrinking: Collection[str] = ()) -> None:
    """Check that all nodes can be written, and that constants fit into a file if those in `shrinking` become int8.

    Raises
    ------
    SourceError
        They do not.
    """
    opsets = _opsets(graph)
    _check_size(graph, sum(a.size if name in shrinking else a.nbytes for name, a in graph.constants.items()))
    for node in graph.nodes:
        _node(node, opsets, graph.constants)


def _check_size(graph: Graph, size: int) -> None:
    if size > _MAX_BYTES:
        raise SourceError(f"{graph.name} must have less than 2 GiB to be one ONNX file, not {size} bytes.")


def proto_of(graph: Graph, metadata: Metadata) -> onnx.ModelProto:
    """Convert the graph to a model message."""
    import onnx
    from onnx import helper

    opsets = _opsets(graph)
    made = _graph(graph, graph.inputs, opsets, {})
    model = helper.make_model(made, opset_imports=[helper.make_opsetid(*each) for each in opsets.items()])
    model.ir_version = max(_IR, helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True))
    model.producer_name = "cpuconv"
    model.domain, model.doc_string = metadata.domain, metadata.description
    if metadata.version != Metadata().version:
        model.model_version = metadata.version
    helper.set_model_props(model, dict(metadata.custom_metadata_map))
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise SourceError(f"{graph.name} cannot be written as an ONNX model: {error}") from error
    return model


def _graph(
    graph: Graph, inputs: Sequence[str], opsets: Mapping[str, int], outer: Mapping[str, np.ndarray]
) -> onnx.GraphProto:
    """Convert a graph with these inputs to a message; constants that are also `outer` constants are left out."""
    from onnx import helper, numpy_helper

    known = {**outer, **graph.constants}
    nodes = [_node(node, opsets, known) for node in graph.nodes]
    _make_names_unique(nodes)
    return helper.make_graph(
        nodes,
        graph.name,
        [_info(name, graph.value(name)) for name in inputs],
        [_info(name, graph.value(name)) for name in graph.outputs],
        [
            numpy_helper.from_array(np.asarray(array, order="C"), name)
            for name, array in graph.constants.items()
            if outer.get(name) is not array
        ],
    )


def _make_names_unique(nodes: Sequence[onnx.NodeProto]) -> None:
    """Make node names unique: nodes that were made from one node of the model share its name."""
    taken = {""}
    for node in nodes:
        if node.name in taken and node.name:
            node.name = next(name for at in itertools.count(1) if (name := f"{node.name}.{at}") not in taken)
        taken.add(node.name)


def _all_nodes(graph: Graph) -> Iterator[Node]:
    """Iterate over the nodes of a graph and of its bodies."""
    for node in graph.nodes:
        yield node
        for body in control.bodies(node):
            yield from _all_nodes(body)


def _opsets(graph: Graph) -> dict[str, int]:
    """Opset of each domain: `OPSET`, or a newer one that operators need or were read with."""
    import onnx

    opsets = {"": OPSET}
    for node in _all_nodes(graph):
        if isinstance(node.semantics, Foreign):
            stated: Mapping[str, int] = node.semantics.opsets
        elif node.op in OWN or onnx.defs.has(node.op, OPSET):
            continue
        else:
            stated = {"": onnx.defs.get_schema(node.op).since_version}
        opsets |= {domain: max(version, opsets.get(domain, 0)) for domain, version in stated.items()}
    return opsets


def _info(name: str, value: Value) -> onnx.ValueInfoProto:
    """Convert type and shape of an input or output to a message; bodies may leave them open."""
    import onnx
    from onnx import helper

    if value.dtype is None and value.shape is None:
        return onnx.ValueInfoProto(name=name)
    dtype = 0 if value.dtype is None else helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, dtype, None if value.shape is None else list(value.shape))


def _node(node: Node, opsets: Mapping[str, int], known: Mapping[str, np.ndarray]) -> onnx.NodeProto:
    """Convert a node to a message; `known` has the constants that it may read, including those of outer graphs."""
    import onnx
    from onnx import helper

    if control.is_control(node):
        return _control(node, opsets, known)
    if isinstance(node.semantics, Foreign):
        proto = onnx.NodeProto.FromString(node.semantics.proto)
        _check_foreign(node, proto, opsets)
        return proto
    if node.op in OWN:
        raise SourceError(f"{node.label} must be an operator of ONNX to be written to a file.")
    schema = onnx.defs.get_schema(node.op, opsets[""], "")
    attributes = {name: _plain(value) for name, value in node.attributes.items() if value is not None}
    unknown = attributes.keys() - schema.attributes.keys()
    for name in unknown:
        if node[name] != TABLE[node.op].attributes[name]:
            raise SourceError(f"{node.label} must do without {name}={node[name]} to be written for opset {opsets['']}.")
    stated = {name: value for name, value in attributes.items() if name in schema.attributes}
    return helper.make_node(node.op, node.inputs, node.outputs, node.origin or None, **stated)


def _control(node: Node, opsets: Mapping[str, int], known: Mapping[str, np.ndarray]) -> onnx.NodeProto:
    """Convert an If, Loop or Scan to a message; its bodies read outer values by name."""
    from onnx import helper

    attributes: dict[str, Any] = {}
    for name in control.BODIES[node.op]:
        body = _with_outer_names(node, node[name])
        attributes[name] = _graph(body, body.inputs[: control.formal(node)], opsets, known)
    if node.op == "Scan":
        if node["batched"]:
            raise SourceError(f"{node.label} must be of opset 9 or newer to be written.")
        attributes["num_scan_inputs"] = node["scanned"]
        for name in ("input_axes", "output_axes", "input_directions", "output_directions"):
            attributes[f"scan_{name}"] = list(node[name])
    own = node.inputs[: control.captured_at(node)]
    attributes = {name: value for name, value in attributes.items() if value != []}
    return helper.make_node(node.op, own, node.outputs, node.origin or None, **attributes)


def _with_outer_names(node: Node, graph: Graph) -> Graph:
    """Rename values of a body: captured values get their outer names, and its own values avoid these."""
    outer = control.renamed(node, graph)
    formal = graph.inputs[: control.formal(node)]
    own = [*formal, *graph.constants, *(name for inner in graph.nodes for name in inner.outputs if name)]
    names = outer | {name: f"{node.outputs[0]}/{name}" for name in own if name in outer.values()}
    read = tuple(name for name in outer.values() if name not in graph.constants)
    made = Graph(
        (*(names.get(name, name) for name in formal), *dict.fromkeys(read)),
        tuple(names.get(name, name) for name in graph.outputs),
        tuple(inner.reads(names).writes(names) for inner in graph.nodes),
        {names.get(name, name): array for name, array in graph.constants.items()},
        {names.get(name, name): value for name, value in graph.values.items()},
        graph.name,
    )
    return made


def _check_foreign(node: Node, proto: onnx.NodeProto, opsets: Mapping[str, int]) -> None:
    """Check that a node that is copied as read has the same opset semantics and inputs in the new model."""
    import onnx

    assert isinstance(node.semantics, Foreign)
    if node.semantics.inputs != node.inputs or tuple(proto.output) != node.outputs:
        raise SourceError(f"{node.label} reads or gives tensors that were renamed, and cannot be written.")
    nodes = [proto]
    while nodes:
        each = nodes.pop()
        nodes += [
            inner for attribute in each.attribute for graph in (attribute.g, *attribute.graphs) for inner in graph.node
        ]
        domain = "" if each.domain == "ai.onnx" else each.domain
        versions = [
            onnx.defs.get_schema(each.op_type, stated[domain], domain).since_version
            for stated in (node.semantics.opsets, opsets)
        ]
        if versions[0] != versions[1]:
            raise SourceError(
                f"{node.label} must be of opset {opsets[domain]} to be written, not {node.semantics.opsets[domain]}:"
                f" {each.op_type} has changed since. Convert the model with onnx.version_converter first."
            )


def _plain(value: Any) -> Any:
    """Convert an attribute value for ONNX."""
    from onnx import helper, numpy_helper

    if isinstance(value, Draws):
        return value.seed
    if isinstance(value, np.dtype):
        return helper.np_dtype_to_tensor_dtype(value)
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
