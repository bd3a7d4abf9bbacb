"""Rewrite convolutions to forms that are faster to compute.

Taps that only read padding are removed, such as those of a kernel with a dilation larger than the image. They multiply
by zeros; results only differ if such weights are infinite or NaN.

If distant taps read the image for a part of the outputs only, each part becomes a convolution with the taps that it
needs. For example, the centre of an image may need the centre tap alone. This is done if it saves many multiplications.
Equal except for multiplications by zero.

A group of one channel with several outputs becomes that many groups of one output, with the channel repeated: a
depthwise convolution. Equal up to the order of sums.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, operand, shape_of
from cpuconv.problem.window import Window

_MIN_OUTPUTS, _MAX_MULTIPLY_ADD_FRACTION = 256, 0.6  # minimum pixels and maximum fraction of multiply-adds for a split
_MAX_REPEATS = 4  # maximum copies of a channel, which are written before the convolution


def _without_padding_taps(graph: Graph, node: Node, w: np.ndarray) -> Rewrite | None:
    """Remove taps that only read padding, if padding attributes can express the result."""
    window = Window.of(node.attributes, shape_of(graph, node.inputs[0])[2:], w.shape[2:])
    taps = window.used_taps()
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
    index = (slice(None), slice(None), *(slice(kept.start, kept.stop) for kept in taps))
    attributes = {
        **node.attributes,
        "auto_pad": "NOTSET",
        "kernel_shape": [len(kept) for kept in taps],
        "dilations": [gap if len(kept) > 1 else 1 for kept, gap in zip(taps, window.dilations, strict=True)],
        "pads": [*near, *far],
    }
    weight = maker.constant(np.ascontiguousarray(w[index]), "weight")
    maker.node("Conv", node.inputs[0], weight, *node.inputs[2:], **attributes)
    return maker.done()


class _Part(NamedTuple):
    """Outputs first … last-1 of an axis, the taps that read input there, and the range of inputs that they read."""

    first: int
    last: int
    taps: slice
    begin: int
    end: int

    @classmethod
    def all_of(cls, size: int, kernel: int, gap: int, near: int, count: int) -> list[_Part]:
        """Split an axis of `size` inputs and `count` outputs, with stride 1."""
        starts = [tap * gap - near for tap in range(kernel)]  # input index of each tap at output 0
        cuts = {0, count, *(cut for start in starts for cut in (-start, size - start) if 0 < cut < count)}
        parts = []
        for first, last in itertools.pairwise(sorted(cuts)):
            used = [tap for tap, start in enumerate(starts) if first + start >= 0 and last + start <= size]
            ends = (first + starts[used[0]], last + starts[used[-1]]) if used else (0, 0)
            parts.append(cls(first, last, slice(used[0], used[-1] + 1) if used else slice(0, 0), *ends))
        return parts

    @property
    def multiply_adds(self) -> int:
        return (self.last - self.first) * (self.taps.stop - self.taps.start)


def _split_by_padding(graph: Graph, node: Node, w: np.ndarray) -> Rewrite | None:
    """Split a convolution by parts of the image, if that saves many multiplications."""
    window = Window.of(node.attributes, shape_of(graph, node.inputs[0])[2:], w.shape[2:])
    if (
        w.ndim != 4
        or node["group"] > 1
        or operand(node, 3)
        or max(window.strides) > 1
        or max(window.dilations) == 1
        or math.prod(window.outputs) < _MIN_OUTPUTS
    ):
        return None
    rows, columns = map(_Part.all_of, window.sizes, window.kernel, window.dilations, window.near, window.outputs)
    multiply_adds = math.prod(sum(part.multiply_adds for part in parts) for parts in (rows, columns))
    whole = math.prod(window.kernel) * math.prod(window.outputs)
    if not all(part.multiply_adds for part in (*rows, *columns)) or multiply_adds > _MAX_MULTIPLY_ADD_FRACTION * whole:
        return None
    maker = Maker(graph, node)
    axes = maker.constant(np.array([2, 3]), "axes")
    bands = []
    for row in rows:
        parts = []
        for column in columns:
            begins, ends = (np.array(pair) for pair in ((row.begin, column.begin), (row.end, column.end)))
            bounds = maker.constant(begins, "begins"), maker.constant(ends, "ends"), axes
            x = maker.node("Slice", node.inputs[0], *bounds, part="read")
            less = np.ascontiguousarray(w[:, :, row.taps, column.taps])
            attributes = {**node.attributes, "auto_pad": "NOTSET", "kernel_shape": less.shape[2:], "pads": [0] * 4}
            names = x, maker.constant(less, "weight"), *node.inputs[2:]
            parts.append(maker.node("Conv", *names, part="part", **attributes))
        bands.append(maker.node("Concat", *parts, part="band", axis=3))
    maker.node("Concat", *bands, axis=2)
    return maker.done()


def _depthwise(graph: Graph, node: Node, w: np.ndarray) -> Rewrite | None:
    """Convolve repeated channels, each with its own weights."""
    groups, repeats = node["group"], len(w) // node["group"]
    if groups == 1 or w.shape[1] > 1 or not 1 < repeats <= _MAX_REPEATS:
        return None
    maker = Maker(graph, node)
    channels = maker.constant(np.repeat(np.arange(groups), repeats), "channels")
    x = maker.node("Gather", node.inputs[0], channels, part="repeated", axis=1)
    maker.node("Conv", x, *node.inputs[1:], **{**node.attributes, "group": len(w)})
    return maker.done()


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    w = constant(graph, node.inputs[1])
    return (
        None
        if w is None
        else _without_padding_taps(graph, node, w) or _split_by_padding(graph, node, w) or _depthwise(graph, node, w)
    )


# Parts of a split convolution take no further operator, and have no integer form.
run = Pass("convolutions", __doc__, ({"Conv": _rule},), needs=("epilogues", "quantised"))
