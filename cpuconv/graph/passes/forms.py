"""One form for what operators write in several.

=============================================  ====================================================
Flatten, Squeeze, Unsqueeze                    Reshape
Transpose that moves only axes of size 1       Reshape
a reduction that drops its axes                one that keeps them, and Reshape
ReduceMean, ReduceMax of whole planes          GlobalAveragePool, GlobalMaxPool
AveragePool, MaxPool of a whole plane          GlobalAveragePool, GlobalMaxPool
GlobalAveragePool, GlobalMaxPool of volumes    the same of images, of as many pixels
Sum of two                                     Add
=============================================  ====================================================

Equal in every bit, but for the order in which a mean adds up.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Rewrite, is_float, rewritten, shape_of

_PLANE_OF = {
    "ReduceMean": "GlobalAveragePool",
    "ReduceMax": "GlobalMaxPool",
    "AveragePool": "GlobalAveragePool",
    "MaxPool": "GlobalMaxPool",
}


def _reshape(graph: Graph, node: Node) -> Rewrite:
    maker = Maker(graph, node)
    maker.reshape(node.inputs[0], shape_of(graph, node.outputs[0]))
    return maker.done()


def _transpose(graph: Graph, node: Node) -> Rewrite | None:
    shape = shape_of(graph, node.inputs[0])
    order = range(len(shape))[::-1] if node["perm"] is None else node["perm"]
    moved = [axis for axis in order if shape[axis] != 1]
    return _reshape(graph, node) if moved == sorted(moved) else None


def _reduction(graph: Graph, node: Node) -> Rewrite | None:
    if node["keepdims"]:
        return _plane(graph, node)
    maker = Maker(graph, node)
    kept = maker.node(node.op, *node.inputs, part="kept", **{**node.attributes, "keepdims": 1})
    maker.reshape(kept, shape_of(graph, node.outputs[0]))
    return maker.done()


def _plane(graph: Graph, node: Node) -> Rewrite | None:
    """Of images, down to one pixel each: whatever other axes are reduced have size 1."""
    before, after = shape_of(graph, node.inputs[0]), shape_of(graph, node.outputs[0])
    if (
        node.op not in _PLANE_OF
        or len(before) != 4
        or after != (*before[:2], 1, 1)
        or not is_float(graph, node.inputs[0])
    ):
        return None
    maker = Maker(graph, node)
    maker.node(_PLANE_OF[node.op], node.inputs[0])
    return maker.done()


def _pool(graph: Graph, node: Node) -> Rewrite | None:
    shape = shape_of(graph, node.inputs[0])
    padded = node["auto_pad"] not in ("NOTSET", "VALID") or (node["auto_pad"] == "NOTSET" and any(node["pads"] or ()))
    whole = tuple(node["kernel_shape"]) == shape[2:] and max(node["dilations"] or [1]) == 1
    return _plane(graph, node) if whole and not padded and not any(node.outputs[1:]) else None


def _global(graph: Graph, node: Node) -> Rewrite | None:
    shape, maker = shape_of(graph, node.inputs[0]), Maker(graph, node)
    if len(shape) < 5:
        return None
    image = maker.reshape(node.inputs[0], (*shape[:2], math.prod(shape[2:-1]), shape[-1]), "image")
    maker.reshape(maker.node(node.op, image, part="pooled"), shape_of(graph, node.outputs[0]))
    return maker.done()


def _sum(graph: Graph, node: Node) -> Rewrite | None:
    if len(node.inputs) != 2:
        return None
    maker = Maker(graph, node)
    maker.node("Add", *node.inputs)
    return maker.done()


FORMS: dict[str, Callable[[Graph, Node], Rewrite | None]] = {
    **dict.fromkeys(("Flatten", "Squeeze", "Unsqueeze"), _reshape),
    "Transpose": _transpose,
    **{
        f"Reduce{name}": _reduction
        for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
    },
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global),
    "Sum": _sum,
}


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    form = FORMS.get(node.op) if node.meaning is None else None
    return form(graph, node) if form else None


def run(graph: Graph) -> Graph:
    """Write them all in one form."""
    return rewritten(graph, _rule)
