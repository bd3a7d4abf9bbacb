"""int8 tensors between operators become uint8, or uint8 become int8, as the CPU multiplies them.

Pattern: what QuantizeLinear gives and DequantizeLinear reads, and what moves it on the way, scales and zero points
being constants. Zero points move by 128 as the bytes do, so that these stand for the same numbers, and are rounded and
cut off at the same places: all results keep their bits. Of other bytes products turn over the highest bit, word by
word; and so networks of both kinds find the same kernels and the same rows of tables.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpuconv.elements import S8, S32, U8, Element
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.passes.quantised import MOVES, OPERATORS
from cpuconv.graph.passes.rewriting import constant, operand
from cpuconv.isa import current
from cpuconv.kernels.emit.product import product_of
from cpuconv.problem.types import Types


def run(graph: Graph) -> Graph:
    """The graph with bytes of one kind, but for what its callers and other operators see."""
    product = product_of(Types(U8, S8, S32, S32), current())
    wanted = U8 if product is None or product.x != S8 else S8
    turned = _turned(graph, S8 if wanted == U8 else U8)
    if not turned:
        return graph
    names = {name: f"{name} as {wanted.dtype.name}" for name in turned}
    constants: dict[str, np.ndarray] = {}
    nodes = []
    for node in graph.nodes:
        if not turned.isdisjoint(_ends(graph, node)):
            node = _with_zero(graph, node, wanted, constants)
        nodes.append(node.reads(names).writes(names))
    values = {names[name]: Value(graph.value(name).shape, wanted.dtype) for name in turned}
    return replace(
        graph, nodes=tuple(nodes), constants={**graph.constants, **constants}, values={**graph.values, **values}
    ).live()


def _turned(graph: Graph, other: Element) -> set[str]:
    """Values of the other kind whose every writer and reader can do with this one."""
    found = {name for name, value in graph.values.items() if value.dtype == other.dtype}
    found -= {*graph.inputs, *graph.outputs}
    moving = []
    for node in graph.nodes:
        if node.op in MOVES and node.meaning is None:
            moving.append({name for name in (*node.inputs, *node.outputs) if graph.value(name).dtype == other.dtype})
        else:
            found -= {*node.inputs, *node.outputs} - _ends(graph, node)
    while others := {name for names in moving if not names <= found for name in names & found}:
        found -= others
    return found


def _ends(graph: Graph, node: Node) -> set[str]:
    """The bytes that a node makes of numbers, or numbers of, where its scale and zero point are known."""
    if node.meaning is not None or node.op not in OPERATORS or node["block_size"]:
        return set()
    if any(constant(graph, name) is None for name in filter(None, node.inputs[1:])):
        return set()
    return {node.outputs[0] if node.op == "QuantizeLinear" else node.inputs[0]}


def _with_zero(graph: Graph, node: Node, wanted: Element, constants: dict[str, np.ndarray]) -> Node:
    """The node with the zero point of the bytes that are wanted."""
    scale, name = operand(node, 1), operand(node, 2)
    zero = graph.constants[name] if name else np.zeros_like(graph.constants[scale], np.int16)
    new = f"{name or scale + ' zero'} as {wanted.dtype.name}"
    moved = zero.astype(np.int16) + (128 if wanted == U8 else -128)
    constants[new] = moved.astype(wanted.dtype)
    return replace(node, inputs=(*node.inputs[:2], new))
