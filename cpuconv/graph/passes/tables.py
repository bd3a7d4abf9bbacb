"""Functions of one int8 element become tables of 256 values.

Pattern: an Elementwise operator from bytes to bytes of which every operand is one and the same tensor, or is such a
function of it. The table is of the operator's own values, those between rounded as they were, so the result is equal up
to what kernels approximate: one unit where a value lies between two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cpuconv.elements import S8, U8
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.elementwise import expression_of
from cpuconv.kernels.elementwise.lookup import VALUES

_BYTES = (U8.dtype, S8.dtype)


class _Function(NamedTuple):
    """A value as a function of the bytes of a tensor."""

    root: str
    values: np.ndarray


def run(graph: Graph) -> Graph:
    """The graph with tables.

    Parameters
    ----------
    graph : Graph
        Specialised: every shape is known.
    """
    known: dict[str, _Function] = {}
    old, new, constants = [], [], dict(graph.constants)
    for node in graph.nodes:
        found = _function(graph, node, known) if node.op == "Elementwise" and node.meaning is None else None
        if found is None:
            continue
        (output,) = node.outputs
        known[output] = found
        name = next(name for at in range(len(constants)) if (name := f"{output}.table{at or ''}") not in constants)
        found.values.flags.writeable = False
        constants[name] = found.values
        old.append(node)
        new.append(TABLE["Lookup"].node((found.root, name), node.outputs, node.origin))
    return graph.replaced(old, new, constants).live() if old else graph


def _function(graph: Graph, node: Node, known: dict[str, _Function]) -> _Function | None:
    """What a node is of the bytes of one tensor."""
    output = graph.value(node.outputs[0])
    tree = expression_of(node, graph.operands(node))
    if tree is None or output.dtype is None or output.dtype not in _BYTES or not output.shape:
        return None
    read = {at: graph.value(node.inputs[at]) for at in tree.operands}
    if any(value.dtype not in _BYTES or value.shape != output.shape for value in read.values()):
        return None
    every = np.arange(VALUES, dtype=np.uint8)
    parts = {
        at: known.get(node.inputs[at]) or _Function(node.inputs[at], every.view(value.dtype or np.uint8))
        for at, value in read.items()
    }
    roots = {part.root for part in parts.values()}
    if len(roots) != 1:
        return None
    ends = np.iinfo(output.dtype)
    with np.errstate(all="ignore"):
        values = tree.evaluate({at: part.values.astype(np.float64) for at, part in parts.items()})
    whole = np.nan_to_num(np.rint(values), nan=ends.min)
    return _Function(roots.pop(), np.clip(whole, ends.min, ends.max).astype(output.dtype))
