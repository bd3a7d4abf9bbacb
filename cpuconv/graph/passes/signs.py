"""Convert int8 tensors between operators to uint8, or uint8 to int8, to match the CPU's multiplication instructions.

Pattern: tensors between QuantizeLinear and DequantizeLinear, also through data movement, with constant scales and zero
points. Integers and zero points both move by 128. They represent the same numbers, with the same rounding and clamping:
all results keep their bits. With the other sign, kernels would flip the highest bit of each 32-bit group. Moreover,
networks of both types use the same kernels and the same rows of tables.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpuconv.elements import S8, S32, U8, Element
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops import traits_of
from cpuconv.graph.ops.traits import Int8
from cpuconv.graph.passes.rewriting import Pass, constant, operand
from cpuconv.graph.passes.scaled import QUANTISATION
from cpuconv.isa import current
from cpuconv.kernels.emit.product import product_of
from cpuconv.problem.types import Types


def _convert(graph: Graph) -> Graph:
    """Convert tensors to one signedness, except where callers or other operators read or write them."""
    product = product_of(Types(U8, S8, S32, S32), current())
    wanted = U8 if product is None or product.x != S8 else S8
    converted = _convertible(graph, S8 if wanted == U8 else U8)
    if not converted:
        return graph
    names = {name: f"{name} as {wanted.dtype.name}" for name in converted}
    constants: dict[str, np.ndarray] = {}
    nodes = []
    for node in graph.nodes:
        if not converted.isdisjoint(_ends(graph, node)):
            node = _with_zero(graph, node, wanted, constants)
        nodes.append(node.reads(names).writes(names))
    values = {names[name]: Value(graph.value(name).shape, wanted.dtype) for name in converted}
    return graph.replaced(graph.nodes, nodes, constants, values).live()


def _convertible(graph: Graph, other: Element) -> set[str]:
    """Values of the other type for which all writers and readers support the wanted type."""
    found = {name for name, value in graph.values.items() if value.dtype == other.dtype}
    found -= {*graph.inputs, *graph.outputs}
    moving = []
    for node in graph.nodes:
        if traits_of(node).int8 is Int8.MOVED:
            moving.append({name for name in (*node.inputs, *node.outputs) if graph.value(name).dtype == other.dtype})
        else:
            found -= {*node.inputs, *node.outputs} - _ends(graph, node)
    while others := {name for names in moving if not names <= found for name in names & found}:
        found -= others
    return found


def _ends(graph: Graph, node: Node) -> set[str]:
    """Integer operand of a QuantizeLinear or DequantizeLinear with constant scale and zero point; empty for others."""
    if node.semantics is not None or node.op not in QUANTISATION or node["block_size"]:
        return set()
    if any(constant(graph, name) is None for name in filter(None, node.inputs[1:])):
        return set()
    return {node.outputs[0] if node.op == "QuantizeLinear" else node.inputs[0]}


def _with_zero(graph: Graph, node: Node, wanted: Element, constants: dict[str, np.ndarray]) -> Node:
    """Copy the node with the zero point of the wanted type."""
    scale, name = operand(node, 1), operand(node, 2)
    zero = graph.constants[name] if name else np.zeros_like(graph.constants[scale], np.int16)
    new = f"{name or scale + ' zero'} as {wanted.dtype.name}"
    moved = zero.astype(np.int16) + (128 if wanted == U8 else -128)
    constants[new] = moved.astype(wanted.dtype)
    return replace(node, inputs=(*node.inputs[:2], new))


run = Pass("signs", __doc__, (_convert,), needs=("noops",), early=True)
