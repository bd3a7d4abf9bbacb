"""Widen float16 and bfloat16 to float32 inside the network.

Pattern: nodes of the operator table with such operands. Inputs are cast to float32 before they are read, constants once
at compilation, and outputs are cast back to their types. Kernels compute in float32, which represents all
float16 and bfloat16 numbers, or in bfloat16 if `precision` allows. Results are more accurate: intermediate values are
not rounded to float16, and are finite where it would have overflowed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.elements import BF16, F16
from cpuconv.graph import ops
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.passes.rewriting import Pass

_HALVES, _FULL = (F16.outside, BF16.outside), np.dtype(np.float32)


def _widen(graph: Graph) -> Graph:
    """Replace float16 and bfloat16 by float32, except in inputs, outputs and operands of foreign operators."""
    dtypes = {name: graph.value(name).dtype for name in (*graph.constants, *graph.values)}
    halves = {name for name, dtype in dtypes.items() if dtype in _HALVES}
    if not any(_computes(node) and not halves.isdisjoint((*node.inputs, *node.outputs)) for node in graph.nodes):
        return graph
    wide = {name: wide_name(name) for name in halves}
    nodes: list[Node] = []
    made: set[str] = set()

    def cast(source: str, name: str) -> None:
        """Cast a value to the dtype of `name`, once."""
        if name not in made:
            made.add(name)
            nodes.append(ops.TABLE["Cast"].node([source], [name], source, to=dtypes.get(name, _FULL)))

    fed = halves.intersection(graph.inputs)
    computed = halves - {*graph.constants}
    for node in graph.nodes:
        if node.semantics is None:
            for name in filter(fed.__contains__, node.inputs):
                cast(name, wide[name])
            made.update(wide[name] for name in halves.intersection(node.outputs))
            attributes = {name: _widened(value) for name, value in node.attributes.items()}
            nodes.append(replace(node.reads(wide).writes(wide), attributes=attributes))
        else:  # foreign operators compute in their input types
            for name in computed.intersection(node.inputs):
                if wide[name] in made and name not in fed:
                    cast(wide[name], name)
            nodes.append(node)
            for name in halves.intersection(node.outputs):
                cast(name, wide[name])
                made.add(name)
    for name in halves.intersection(graph.outputs) - {*graph.inputs, *graph.constants}:
        cast(wide[name], name)
    constants = {wide[name]: _widened(graph.constants[name]) for name in halves & {*graph.constants}}
    values = {wide[name]: _value(graph.values[name]) for name in halves & {*graph.values}}
    return graph.replaced(graph.nodes, nodes, constants, values).live()


def wide_name(name: str) -> str:
    """Name of the float32 version of a value."""
    return f"{name} as float32"


def _computes(node: Node) -> bool:
    """Whether a node is of the operator table and not just a Cast."""
    return node.semantics is None and node.op != "Cast"


def _value(value: Value) -> Value:
    return Value(value.shape, _FULL, None if value.array is None else value.array.astype(_FULL))


def _widened(value: Any) -> Any:
    """Convert a float16 or bfloat16 array or dtype to float32; return other values unchanged."""
    if isinstance(value, np.ndarray) and value.dtype in _HALVES:
        return value.astype(_FULL)
    return _FULL if isinstance(value, np.dtype) and value in _HALVES else value


run = Pass("halves", __doc__, (_widen,))
