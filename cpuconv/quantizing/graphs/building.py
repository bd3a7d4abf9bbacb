"""Construction of the int8 network: QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cpuconv.graph.ir import Graph, Node, trimmed
from cpuconv.graph.ops import TABLE
from cpuconv.graph.passes.rewriting import operand, scalar
from cpuconv.quantizing.graphs.attention import QuantizableAttention
from cpuconv.quantizing.graphs.plan import Plan
from cpuconv.quantizing.graphs.quantizable import QuantizableLayer
from cpuconv.quantizing.graphs.units import clamp_behind
from cpuconv.quantizing.scales import Scale, Weights

WeightsByOutput = Mapping[str, Weights]  # by the name of the layer's output


class Names:
    """Allocator of unused names in a graph, and the constants that were added under some of them."""

    def __init__(self, graph: Graph) -> None:
        written = {name for node in graph.nodes for name in node.outputs}
        self._taken = {*graph.inputs, *graph.constants, *graph.values, *written}
        self.constants: dict[str, np.ndarray] = {}

    def fresh(self, hint: str) -> str:
        name = next(f"{hint}{at or ''}" for at in itertools.count() if f"{hint}{at or ''}" not in self._taken)
        self._taken.add(name)
        return name

    def constant(self, array: np.ndarray, hint: str) -> str:
        """Add a constant and return its name; equal arrays with the same hint share one."""
        name = next((f"{hint}{at or ''}" for at in itertools.count() if self._fits(f"{hint}{at or ''}", array)), hint)
        self._taken.add(name)
        self.constants[name] = array
        return name

    def numbers(self, scale: Scale, hint: str) -> tuple[str, str]:
        """Add a scale and its zero point as constants and return their names."""
        kinds = {"scale": scale.scale, "zero": scale.zero}
        scaled, zero = (self.constant(np.asarray(number), f"{hint}.{kind}") for kind, number in kinds.items())
        return scaled, zero

    def _fits(self, name: str, array: np.ndarray) -> bool:
        known = self.constants.get(name)
        return name not in self._taken if known is None else known.dtype == array.dtype and np.array_equal(known, array)


def insert_quantization(graph: Graph, plan: Plan, scales: Mapping[str, Scale], weights: WeightsByOutput) -> Graph:
    """Insert QuantizeLinear and DequantizeLinear around quantised tensors.

    Parameters
    ----------
    graph : Graph
        Result of `prepared`.
    plan : Plan
    scales : mapping of str to Scale
        Scale of every root of the plan, and of the inner tensors of its layers.
    weights : mapping of str to Weights
        Weights of every layer of the plan, by the name of its output.
    """
    names = Names(graph)
    read = {name: names.fresh(f"{name}.dequantized") for name in plan.roots}
    written = {name: read[name] for name in plan.written}
    whole = {name: names.fresh(f"{name}.quantized") for name in plan.roots}
    behind: dict[str, list[Node]] = {}
    for name, root in plan.roots.items():
        numbers = names.numbers(scales[root], root)
        behind[name] = [
            TABLE["QuantizeLinear"].node((name, *numbers), (whole[name],)),
            TABLE["DequantizeLinear"].node((whole[name], *numbers), (read[name],)),
        ]
    layers = {id(layer.node): layer for layer in plan.layers}
    dropped = _redundant_clamps(graph, plan, scales)
    dropped |= {id(node) for layer in plan.layers for node in layer.nodes[:-1]}
    nodes: list[Node] = [node for name in graph.inputs for node in behind.get(name, ())]
    for node in graph.nodes:
        if id(node) in dropped:
            continue
        made = node if node.semantics is not None else node.reads(read if id(node) in plan.readers else written)
        layer = layers.get(id(node))
        if isinstance(layer, QuantizableAttention):
            given = {name: (whole[name], scales[plan.roots[name]]) for name in layer.inputs}
            *before, made = (each.reads(written) for each in quantized_attention(names, layer, given, scales))
            nodes += before
        elif layer is not None:
            before, made = _dequantized(names, made, layer, weights[node.outputs[0]])
            nodes += before
        clamp = clamp_behind(graph, node.outputs[0]) if node.outputs else None
        if clamp is not None and id(clamp) in dropped:
            made = made.writes({node.outputs[0]: clamp.outputs[0]})
        nodes.append(made)
        nodes += [each for name in made.outputs for each in behind.get(name, ())]
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **names.constants}).live()


def _dequantized(names: Names, node: Node, layer: QuantizableLayer, weights: Weights) -> tuple[list[Node], Node]:
    """Make the DequantizeLinear nodes of a layer's weights and bias, and the layer that reads them."""
    x, name, *_ = node.inputs
    nodes, inputs = [], [x]
    parts = [(name, weights.array, weights.scale, weights.axis)]
    if weights.bias is not None:
        bias = operand(node, 2) or f"{node.outputs[0]}.bias"
        groups = len(weights.bias) // len(weights.scale)
        parts.append((bias, weights.bias, weights.unit * np.tile(weights.scale, groups), 0))
    for part, array, scale, axis in parts:
        zeros = np.zeros(scale.shape, array.dtype)
        stored = (
            names.constant(value, f"{part}.{kind}")
            for kind, value in (("quantized", array), ("scale", scale), ("zero", zeros))
        )
        output = names.fresh(f"{part}.dequantized")
        nodes.append(TABLE["DequantizeLinear"].node(tuple(stored), (output,), axis=axis))
        inputs.append(output)
    return nodes, replace(node, inputs=trimmed(inputs))


def quantized_attention(
    names: Names, layer: QuantizableAttention, given: Mapping[str, tuple[str, Scale]], scales: Mapping[str, Scale]
) -> list[Node]:
    """Make the nodes of an attention of int8 operands and weights; the last one computes the result.

    Parameters
    ----------
    names : Names
    layer : QuantizableAttention
    given : mapping of str to (str, Scale)
        Quantised tensor, and its scale, of each input.
    scales : mapping of str to Scale
        Scale of the attention weights, by name.
    """
    nodes, read = [], []
    for name, factor in zip(layer.inputs, layer.factors, strict=True):
        tensor, scale = given[name]
        numbers = names.numbers(scale._replace(scale=np.float32(scale.scale * factor)), name)
        read.append(names.fresh(f"{name}.dequantized"))
        nodes.append(TABLE["DequantizeLinear"].node((tensor, *numbers), (read[-1],)))
    product, *rest, last = layer.written
    (weights,) = layer.inner
    numbers = names.numbers(scales[weights], weights)
    whole, rounded = (names.fresh(f"{weights}.{kind}") for kind in ("quantized", "dequantized"))
    return [
        *nodes,
        replace(product, inputs=tuple(read[:2])),
        *rest,
        TABLE["QuantizeLinear"].node((weights, *numbers), (whole,)),
        TABLE["DequantizeLinear"].node((whole, *numbers), (rounded,)),
        replace(last, inputs=(rounded, read[2])),
    ]


def _redundant_clamps(graph: Graph, plan: Plan, scales: Mapping[str, Scale]) -> set[int]:
    """Clamps that quantisation makes redundant: only int8 is read after them, and its range is within the clamp's."""
    found = set()
    for node in graph.nodes:
        clamp = clamp_behind(graph, node.outputs[0]) if node.outputs and node.semantics is None else None
        if clamp is None or clamp.outputs[0] not in plan.roots or graph.is_output(clamp.outputs[0]):
            continue
        readers = graph.users(clamp.outputs[0])
        only_int8 = clamp.outputs[0] in plan.written or all(id(reader) in plan.readers for reader in readers)
        if node.outputs[0] in plan.roots or not only_int8 or any(reader.semantics is not None for reader in readers):
            continue
        ends = (0.0, np.inf)
        if clamp.op == "Clip":
            least, most = (operand(clamp, at) for at in (1, 2))
            stated = scalar(graph, least) if least else -np.inf, scalar(graph, most) if most else np.inf
            if stated[0] is None or stated[1] is None:
                continue
            ends = stated[0], stated[1]
        low, high = scales[plan.roots[clamp.outputs[0]]].ends
        if ends[0] <= low and high <= ends[1]:
            found.add(id(clamp))
    return found
