"""Convert functions of one int8 element to tables of 256 values.

Pattern: an Elementwise operator from int8 to int8 whose operands are all the same tensor, or functions of it. The table
has the operator's values, with intermediate values rounded as before. Equal except for approximations in kernels: one
unit where a value is between two integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.elementwise import expression_of
from cpuconv.graph.passes.rewriting import Pass
from cpuconv.graph.passes.scaled import INT8_DTYPES
from cpuconv.kernels.elementwise.lookup import VALUES


class _Function(NamedTuple):
    """Value as a function of an int8 tensor."""

    root: str
    values: np.ndarray


def _tabulate(graph: Graph) -> Graph:
    """Replace such operators by tables.

    Parameters
    ----------
    graph : Graph
        Specialised graph: all shapes are known.
    """
    known: dict[str, _Function] = {}
    old, new, constants = [], [], dict(graph.constants)
    for node in graph.nodes:
        found = _function(graph, node, known) if node.op == "Elementwise" and node.semantics is None else None
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
    """Tabulate a node as a function of one int8 tensor; None if it is none."""
    output = graph.value(node.outputs[0])
    tree = expression_of(node, graph.operands(node))
    if tree is None or output.dtype is None or output.dtype not in INT8_DTYPES or not output.shape:
        return None
    read = {at: graph.value(node.inputs[at]) for at in tree.operands}
    if any(value.dtype not in INT8_DTYPES or value.shape != output.shape for value in read.values()):
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


run = Pass("tables", __doc__, (_tabulate,), needs=("elementwise",))
