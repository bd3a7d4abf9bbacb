"""Units of a network that may compute in int8: layers, and operators between layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops import traits_of
from cpuconv.graph.ops.traits import Int8
from cpuconv.graph.passes.rewriting import sole_reader
from cpuconv.quantizing.graphs.attention import Quantizable

CLAMPS = frozenset(("Relu", "Clip"))
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Unit:
    """Nodes that compute together.

    Attributes
    ----------
    nodes : tuple of Node
        A layer or an operator between layers, then the Add and the clamp that are fused into it.
    layer : Quantizable or None
    inputs : tuple of str
        Inputs that may be int8: a layer's data inputs, then the addend.
    outputs : tuple of str
        Outputs that may be int8.
    """

    nodes: tuple[Node, ...]
    layer: Quantizable | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def data(self) -> int:
        """Number of data inputs, without the addend."""
        return len(self.inputs if self.layer is None else self.layer.inputs)


class Units:
    """Search for units in a network.

    Parameters
    ----------
    graph : Graph
        Result of `prepared`.
    known : mapping of str to Value
        Dtypes and sizes of its values.
    fuse_adds : bool
        Whether an addition to a convolution's result is fused into the convolution.
    """

    def __init__(self, graph: Graph, known: Mapping[str, Value], fuse_adds: bool) -> None:
        self._graph, self._known, self._fuse_adds = graph, known, fuse_adds
        self._places = {id(node): at for at, node in enumerate(graph.nodes)}

    def of(self, layers: Mapping[int, Quantizable]) -> list[Unit]:
        """List the units of a network with these layers, by the `id` of their nodes; in order."""
        found: list[Unit] = []
        taken = {id(node) for layer in layers.values() for node in layer.nodes[:-1]}
        for node in self._graph.nodes:
            layer = layers.get(id(node))
            inputs = layer.inputs if layer is not None else self._data(node)
            if id(node) in taken or not inputs or not all(map(self._is_data, inputs)):
                continue
            chain, added = self._chain(node, layer is not None)
            taken.update(map(id, chain))
            outputs = tuple(filter(self._is_data, chain[-1].outputs))
            found.append(Unit(tuple(chain), layer, (*inputs, *added), outputs))
        return self._leading(found)

    @staticmethod
    def _leading(units: list[Unit]) -> list[Unit]:
        """Drop units from which no layer is reached."""
        names: set[str] = set()
        kept = []
        for unit in reversed(units):
            if unit.layer is not None or not names.isdisjoint(unit.outputs):
                names.update(unit.inputs)
                kept.append(unit)
        return kept[::-1]

    def _chain(self, node: Node, is_layer: bool) -> tuple[list[Node], list[str]]:
        """Nodes that compute together with `node`, and the addends that are fused."""
        chain, added = [node], []
        reader = (
            sole_reader(self._graph, node.outputs[0]) if is_layer and self._fuse_adds and node.op == "Conv" else None
        )
        if reader is not None and reader.op == "Add":
            other = reader.inputs[1 if reader.inputs[0] == node.outputs[0] else 0]
            if self._is_added(node, other):
                chain.append(reader)
                added.append(other)
        op = traits_of(node)
        if is_layer or (op.joins and op.int8 is Int8.RESCALED):
            clamp = clamp_behind(self._graph, chain[-1].outputs[0])
            chain += [] if clamp is None else [clamp]
        return chain, added

    def _is_added(self, node: Node, name: str) -> bool:
        """Whether a convolution fuses the addition of a tensor; of two convolutions, the later one does."""
        own, other = (self._known.get(each, Value()).shape for each in (node.outputs[0], name))
        if name == node.outputs[0] or not self._is_data(name) or own is None or own != other:
            return False
        rival = self._graph.producer(name)
        could = rival is not None and rival.op == "Conv" and sole_reader(self._graph, name) is not None
        return rival is None or not could or self._places[id(rival)] < self._places[id(node)]

    def _data(self, node: Node) -> tuple[str, ...]:
        """Data inputs of an operator between layers that may be int8; empty for other operators."""
        op = traits_of(node)
        if op.int8 is Int8.NEVER or not node.outputs:
            return ()
        if op.joins and op.int8 is Int8.RESCALED:
            return node.inputs
        if op.joins:
            return tuple(name for name in node.inputs if name not in self._graph.constants)
        return node.inputs[:1] if op.int8 is Int8.RESCALED or _keeps_range(node) else ()

    def _is_data(self, name: str) -> bool:
        value = self._known.get(name)
        return value is not None and value.dtype == _FLOAT32 and name not in self._graph.constants


def clamp_behind(graph: Graph, name: str) -> Node | None:
    """The clamp that is the only reader of a value; None if there is none."""
    node = sole_reader(graph, name)
    return (
        node if node is not None and node.op in CLAMPS and node.semantics is None and node.inputs[0] == name else None
    )


def in_epilogues(graph: Graph, known: Mapping[str, Value]) -> frozenset[int]:
    """Nodes, by `id`, that float32 computes in the epilogue of a layer: activations that read its result alone."""
    results: dict[str, str] = {}  # results of layers and of activations, each with the result of the layer
    activations: dict[str, list[Node]] = {}
    for node in graph.nodes:
        op, data = traits_of(node), [name for name in node.inputs if name and name not in graph.constants]
        of = {node.outputs[0]} if op.product and node.outputs else {results.get(name, "") for name in data}
        layer = of.pop() if len(of) == 1 else ""
        sizes = {known.get(name, Value()).shape for name in (layer, *node.outputs)}
        activation = op.int8 is Int8.RESCALED and not (op.window or op.rowwise or op.movement)
        activation &= len(sizes) == 1 and None not in sizes
        if layer and (activation or op.product):
            results[node.outputs[0]] = layer
            activations.setdefault(layer, []).extend([] if op.product else [node])

    def alone(layer: str, nodes: list[Node]) -> bool:
        """Whether only the last activation has other readers."""
        inner, within = [layer, *(node.outputs[0] for node in nodes[:-1])], {*map(id, nodes)}
        return all(not graph.is_output(name) and {*map(id, graph.users(name))} <= within for name in inner)

    return frozenset(id(node) for layer, nodes in activations.items() if alone(layer, nodes) for node in nodes)


def is_network_output(graph: Graph, name: str) -> bool:
    """Whether a value is a graph output, possibly after a Cast."""
    readers = graph.users(name)
    cast = bool(readers) and all(node.op == "Cast" and graph.is_output(node.outputs[0]) for node in readers)
    return graph.is_output(name) or cast


def _keeps_range(node: Node) -> bool:
    """Whether all outputs of a node are within its input's range."""
    if node.op == "Resize":
        return node["mode"] in ("nearest", "linear") and node["coordinate_transformation_mode"] != "tf_crop_and_resize"
    return node.op != "MaxPool" or not any(node.outputs[1:])
