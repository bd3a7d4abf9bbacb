"""Merge Pad into the convolution or pooling that reads it.

Patterns: a Pad that enlarges spatial axes only, with a constant. Before Conv it is zero. Before QuantizedConv and
ConvInteger it is the input's zero point, which may be known at run time only. Before AveragePool it is zero, and the
pooling counts padding or has none. Before MaxPool it is minus infinity, or zero if the padded values are never
negative, and no window reads padding alone. Equal in every bit: taps read the same elements, and padding counts as the
constant.

Zeros around the float32 input of DynamicQuantizeLinear, for ConvInteger alone, become zero points around its result: 0
is in the quantised range in any case, and becomes the zero point.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.joining import pads_of
from cpuconv.graph.passes.nonnegative import never_negative
from cpuconv.graph.passes.pattern import Formula, Found, Maybe, operator
from cpuconv.graph.passes.rewriting import (
    Maker,
    Pass,
    Rewrite,
    constant,
    operand,
    scalar,
    shape_of,
)
from cpuconv.problem.window import Window

_CONVOLUTIONS = ("Conv", "QuantizedConv", "ConvInteger")


def _padding(graph: Graph, node: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Padding before and after each spatial axis; None if the node does more than that."""
    rank = len(shape_of(graph, node.inputs[0]))
    stated, axes = constant(graph, node.inputs[1]), constant(graph, operand(node, 3))
    if stated is None or (operand(node, 3) and axes is None):
        return None
    pads = pads_of(node, rank, stated, axes)
    outwards = all(min(pair) >= 0 for pair in pads) and not any(map(any, pads[:2])) and node["mode"] == "constant"
    return (tuple(before for before, _ in pads[2:]), tuple(after for _, after in pads[2:])) if outwards else None


def _suits(graph: Graph, node: Node, pad: Node, window: Window) -> bool:
    """Whether the operator's own padding has the same effect as the Pad's constant."""
    value = _number(graph, operand(pad, 2))
    if node.op == "ConvInteger":
        zero = operand(node, 2)
        return (value is not None and value == _number(graph, zero)) or (bool(zero) and operand(pad, 2) == zero)
    if node.op in _CONVOLUTIONS:
        return value == node.attributes.get("x_zero_point", 0)
    if node["ceil_mode"] or any(node.outputs[1:]) or value is None:
        return False
    if node.op == "AveragePool":
        return value == 0 and bool(node["count_include_pad"] or not any((*window.near, *window.far)))
    return value == -np.inf or (value == 0 and never_negative(graph, pad.inputs[0]))


def _number(graph: Graph, name: str) -> float | None:
    """Element of a scalar constant; 0 if it is absent."""
    return scalar(graph, name) if name else 0.0


def _padded(maker: Maker, found: Found) -> bool:
    graph, (node, pad) = maker.graph, found.nodes
    padding = _padding(graph, pad)
    kernel = shape_of(graph, node.inputs[1])[2:] if node.op in _CONVOLUTIONS else node["kernel_shape"]
    window = Window.of(node.attributes, shape_of(graph, node.inputs[0])[2:], kernel)
    if padding is None or not _suits(graph, node, pad, window):
        return False
    near, far = (
        [a + b for a, b in zip(own, more, strict=True)]
        for own, more in zip((window.near, window.far), padding, strict=True)
    )
    if node.op not in _CONVOLUTIONS and not _sees(node, near, far):
        return False
    counted = {"count_include_pad": 1} if node.op == "AveragePool" else {}
    attributes = {**node.attributes, "auto_pad": "NOTSET", "pads": [*near, *far], **counted}
    maker.node(node.op, pad.inputs[0], *node.inputs[1:], **attributes)
    return True


def _sees(node: Node, near: list[int], far: list[int]) -> bool:
    """Whether every window has a tap inside the input."""
    narrow = all(pad < taps for taps, *pads in zip(node["kernel_shape"], near, far, strict=True) for pad in pads)
    return narrow and max(node["dilations"] or [1]) == 1


_pad = operator("Pad")(*map(Maybe, ("x", "pads", "value", "axes")))
_READERS = (
    *(operator(op)(_pad, *map(Maybe, ("w", "bias", "residual"))) for op in _CONVOLUTIONS),
    *(operator(pool)(_pad) for pool in ("AveragePool", "MaxPool")),
)


def _pad_quantised(graph: Graph, node: Node) -> Rewrite | None:
    """Move a Pad before DynamicQuantizeLinear after it."""
    pad, (y, _, zero) = graph.producer(node.inputs[0]), node.outputs
    if pad is None or pad.op != "Pad" or pad.semantics is not None or graph.is_output(y) or not zero:
        return None
    if _padding(graph, pad) is None or _number(graph, operand(pad, 2)) != 0:
        return None
    if not all(user.op in ("ConvInteger", "Pad") and operand(user, 2) == zero for user in graph.users(y)):
        return None
    maker = Maker(graph, node)
    inner = maker.named("inner")
    maker.new += [
        replace(node, inputs=pad.inputs[:1], outputs=(inner, *node.outputs[1:])),
        replace(pad, inputs=(inner, pad.inputs[1], zero, *pad.inputs[3:]), outputs=(y,)),
    ]
    return maker.done()


# Pooling of whole planes has no padding.
_FORMULAS = tuple(Formula(reader, _padded, alone=False) for reader in _READERS)
run = Pass("pads", __doc__, ({"DynamicQuantizeLinear": _pad_quantised}, *_FORMULAS), needs=("forms",))
