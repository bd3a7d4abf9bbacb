"""Signed bytes between operators become unsigned ones, 128 more, where products take unsigned pixels as they are.

Pattern: what QuantizeLinear gives and DequantizeLinear reads, and what moves it on the way, zero points being constants
or left out. Zero points grow by 128 too, so that bytes stand for the same numbers, and are rounded and cut off at the
same places: all results keep their bits. Products that take unsigned pixels turn over the highest bit of signed ones
for each word; and networks of both kinds find the same kernels and the same rows of tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from cpuconv.elements import S8, S32, U8
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.passes.quantised import MOVES
from cpuconv.graph.passes.rewriting import constant, operand
from cpuconv.isa import current
from cpuconv.kernels.emit.product import product_of
from cpuconv.problem.types import Types

_TURNED = 128


def run(graph: Graph) -> Graph:
    """The graph with unsigned bytes in the place of signed ones, but for what its callers and other operators see."""
    product = product_of(Types(U8, S8, S32, S32), current())
    if product is None or product.x != U8:
        return graph
    turned = _turned(graph)
    if not turned:
        return graph
    names = {name: f"{name} as uint8" for name in turned}
    constants: dict[str, np.ndarray] = {}
    nodes = [_with_zero(graph, node, turned, constants).reads(names).writes(names) for node in graph.nodes]
    values = {names[name]: Value(graph.value(name).shape, U8.dtype) for name in turned}
    return replace(
        graph, nodes=tuple(nodes), constants={**graph.constants, **constants}, values={**graph.values, **values}
    ).live()


def _turned(graph: Graph) -> set[str]:
    """Values of signed bytes whose every writer and reader can have unsigned ones."""
    found = {name for name, value in graph.values.items() if value.dtype == S8.dtype}
    found -= {*graph.inputs, *graph.outputs}
    moving = [node for node in graph.nodes if node.op in MOVES and node.meaning is None]
    fixed = {id(node) for node in moving}
    for node in graph.nodes:
        if id(node) not in fixed:
            found -= {*node.inputs, *node.outputs} - _ends(graph, node)
    while others := set().union(*(_held(graph, node, found) for node in moving)):
        found -= others
    return found


def _ends(graph: Graph, node: Node) -> set[str]:
    """The bytes that a node quantises or reads as numbers, its zero point being known."""
    if node.meaning is not None or node.op not in ("QuantizeLinear", "DequantizeLinear") or node["block_size"]:
        return set()
    known = operand(node, 2) or (node.op == "DequantizeLinear" and operand(node, 1))
    if not known or constant(graph, known) is None:
        return set()
    return {node.outputs[0] if node.op == "QuantizeLinear" else node.inputs[0]}


def _held(graph: Graph, node: Node, found: set[str]) -> set[str]:
    """Those of the values found that a node moves, if others of its signed bytes stay signed."""
    moved = {name for name in (*node.inputs, *node.outputs) if name and graph.value(name).dtype == S8.dtype}
    return set() if moved <= found else moved & found


def _with_zero(graph: Graph, node: Node, turned: Iterable[str], constants: dict[str, np.ndarray]) -> Node:
    """The node with the zero point of unsigned bytes where its bytes are turned."""
    if node.meaning is not None or not _ends(graph, node) & {*turned}:
        return node
    name = operand(node, 2)
    shape = graph.constants[operand(node, 1)].shape if not name else ()
    zero = graph.constants[name].astype(np.int16) if name else np.zeros(shape, np.int16)
    new = f"{name} as uint8" if name else f"{node.inputs[0]} zero"
    constants[new] = (zero + _TURNED).astype(U8.dtype)
    return replace(node, inputs=(*node.inputs[:2], new))
