"""Convert operators that sample at learnt positions to those that have kernels.

=========================================================  ============================================================
DeformConv of float32 images                               DeformableIm2col and a 1x1 Conv, whose channels are those of
                                                           the columns; channels of a group are padded with zeros to
                                                           whole channel blocks
ReduceSum of a Mul of weights and a Concat of GridSample   MultiScaleDeformableAttention
=========================================================  ============================================================

Equal up to rounding.
"""

from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, operand, shape_of, sole_reader
from cpuconv.kernels.binding.tensor_view import FLOAT32

_BLOCK = 16  # channels of the widest block
_NAME = "MultiScaleDeformableAttention"


def _deform_conv(graph: Graph, node: Node) -> Rewrite | None:
    x, name, offset, bias, mask = node.inputs[0], node.inputs[1], node.inputs[2], operand(node, 3), operand(node, 4)
    w, (n, c, *sizes) = constant(graph, name), shape_of(graph, x)
    if w is None or w.dtype != FLOAT32 or 0 in w.shape:
        return None
    group = node["group"]
    cells = math.lcm(group, node["offset_group"])
    channels, maker = c // cells, Maker(graph, node)
    padding = -channels % _BLOCK
    if padding:
        x = maker.reshape(x, (n, cells, channels, *sizes), "cells")
        x = maker.node(
            "Pad", x, maker.constant(np.array([0] * 7 + [padding, 0, 0]), "pads"), part="padded", mode="constant"
        )
        x = maker.reshape(x, (n, cells * (channels + padding), *sizes), "channels")
        w = np.pad(
            w.reshape(len(w), cells // group, channels, *w.shape[2:]), [(0, 0)] * 2 + [(0, padding)] + [(0, 0)] * 2
        )
    kernel = w.shape[-2:]
    w = np.moveaxis(w.reshape(len(w), -1, *kernel), 1, -1).reshape(len(w), -1, 1, 1)
    stated = {**node.attributes, "kernel_shape": kernel}
    columns = maker.node("DeformableIm2col", x, offset, mask, part="columns", **stated)
    maker.node("Conv", columns, maker.constant(np.ascontiguousarray(w), "weight"), bias, group=group)
    return maker.done()


def _levels(graph: Graph, name: str) -> tuple[list[Node], list[Node]]:
    """GridSample of each level, and the nodes that concatenate their samples (M, C, Q, P) to `name`; none if others."""
    shape, levels = shape_of(graph, name), list[Node]()
    node = graph.producer(name)
    made = [node] if _is(node, "Reshape") else []
    node = graph.producer(made[0].inputs[0]) if made else node
    if not _is(node, "Concat") or len(shape) != 4:
        return [], []
    made.append(node)
    rank = len(shape_of(graph, node.outputs[0]))
    for part in node.inputs:
        outer, level = shape_of(graph, part), graph.producer(part)
        if _is(level, "Reshape", "Unsqueeze"):
            made.append(level)
            level = graph.producer(level.inputs[0])
        if not _is(level, "GridSample"):
            return [], []
        inner = shape_of(graph, level.outputs[0])
        fits = inner[:-1] == shape[:-1] and outer == (*inner[:-1], *[1] * (rank - 4), *inner[-1:])
        if not fits or node["axis"] not in (3, 3 - rank) or level["mode"] != "linear":
            return [], []
        levels.append(level)
    return levels if all(each.attributes == levels[0].attributes for each in levels) else [], made


def _is(node: Node | None, *operators: str) -> TypeGuard[Node]:
    return node is not None and node.op in operators and node.semantics is None


def _attention(graph: Graph, node: Node) -> Rewrite | None:
    product, axes = graph.producer(node.inputs[0]), constant(graph, operand(node, 1))
    if not _is(product, "Mul") or node["keepdims"] or axes is None or axes.tolist() not in ([-1], [3]):
        return None
    for name, weights in (product.inputs, product.inputs[::-1]):
        shape = shape_of(graph, name)
        levels, made = _levels(graph, name)
        own = [*levels, *made, product]
        alone = all(sole_reader(graph, each.outputs[0]) is not None for each in own)
        if not levels or not alone or shape_of(graph, weights) != (shape[0], 1, *shape[2:]):
            continue
        tail, heads = _tail(graph, node, shape)
        maker = Maker(graph, *own, node, *tail)
        inputs = [weights, *(each for level in levels for each in level.inputs)]
        y = maker.node(_NAME, *inputs, part="" if tail else "queries", heads=heads, **levels[0].attributes)
        if not tail:
            maker.node("Transpose", y, perm=[0, 2, 1])
        return maker.done()
    return None


def _tail(graph: Graph, node: Node, shape: tuple[int, ...]) -> tuple[list[Node], int]:
    """Nodes that concatenate the heads of each query, and the number of heads; none, and 1, if there are none."""
    merge = sole_reader(graph, node.outputs[0])
    swap = sole_reader(graph, merge.outputs[0]) if _is(merge, "Reshape") else None
    merged = shape_of(graph, merge.outputs[0]) if merge is not None else ()
    if merge is None or not _is(swap, "Transpose") or swap["perm"] != [0, 2, 1] or len(merged) != 3:
        return [], 1
    heads = merged[1] // shape[1]
    fits = merged[1:] == (heads * shape[1], shape[2]) and merged[0] * heads == shape[0]
    return ([merge, swap], heads) if fits else ([], 1)


run = Pass("deformable", __doc__, ({"DeformConv": _deform_conv, "ReduceSum": _attention},), needs=("formulas",))
