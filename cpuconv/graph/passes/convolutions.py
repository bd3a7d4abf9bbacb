"""Convolutions in a form that solvers are quick at.

Taps that only ever meet padding go, as those of a kernel that is dilated by more than the image is wide: their products
are with zeros, which only weights that are infinite or not numbers could tell.

A group of one channel that has several outputs becomes that many groups with an output each, of the channel repeated:
a depthwise convolution. Equal up to the order of sums.
"""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.window import Window
from cpuconv.graph.passes.rewriting import Maker, Rewrite, constant, rewritten, shape_of

_MOST_REPEATS = 4  # of a channel: what is read is written so many times before


def _met(graph: Graph, node: Node, w: np.ndarray) -> Rewrite | None:
    """Without the taps that meet nothing, if padding can say so."""
    window = Window.of(node, shape_of(graph, node.inputs[0])[2:], w.shape[2:])
    taps = window.meeting()
    if tuple(map(len, taps)) == window.kernel or not all(taps) or 0 in window.outputs:
        return None
    near, far = [], []
    for size, kept, step, gap, pad, count in zip(
        window.sizes, taps, window.strides, window.dilations, window.near, window.outputs, strict=True
    ):
        near.append(pad - kept.start * gap)
        far.append((count - 1) * step + (len(kept) - 1) * gap + 1 - size - near[-1])
    if min(near) < 0 or min(far) < 0:
        return None
    maker = Maker(graph, node)
    less = w[(..., *(slice(kept.start, kept.stop) for kept in taps))]
    attributes = {
        **node.attributes,
        "auto_pad": "NOTSET",
        "kernel_shape": [len(kept) for kept in taps],
        "dilations": [gap if len(kept) > 1 else 1 for kept, gap in zip(taps, window.dilations, strict=True)],
        "pads": [*near, *far],
    }
    weight = maker.constant(np.ascontiguousarray(less), "weight")
    maker.node("Conv", node.inputs[0], weight, *node.inputs[2:], **attributes)
    return maker.done()


def _depthwise(graph: Graph, node: Node, w: np.ndarray) -> Rewrite | None:
    """A convolution of the repeated channels, each with weights of its own."""
    groups, repeats = node["group"], len(w) // node["group"]
    if groups == 1 or w.shape[1] > 1 or not 1 < repeats <= _MOST_REPEATS:
        return None
    maker = Maker(graph, node)
    channels = maker.constant(np.repeat(np.arange(groups), repeats), "channels")
    x = maker.node("Gather", node.inputs[0], channels, part="repeated", axis=1)
    maker.node("Conv", x, *node.inputs[1:], **{**node.attributes, "group": len(w)})
    return maker.done()


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    w = constant(graph, node.inputs[1]) if node.op == "Conv" and node.meaning is None else None
    return None if w is None else _met(graph, node, w) or _depthwise(graph, node, w)


def run(graph: Graph) -> Graph:
    """Rewrite them all."""
    return rewritten(graph, _rule)
