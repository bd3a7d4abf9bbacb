"""Transposed convolutions become convolutions, whose channels are then shuffled into pixels.

Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (arXiv:1609.07009).

Why the result is equal, along one axis: with stride s and r taps, a transposed convolution adds w[t] x[i] to the place
u = i s + t of its full output. With u = q s + p, p < s, the taps that reach u are t = p + j s with j = q - i, so

    full[q s + p] = sum over j of w[p + j s] x[q - j]:

for each phase p a convolution of x with every s-th tap, backwards, where a tap that is not there is zero. The phases
are channels of one convolution with ceil(r / s) taps; laid side by side they are the full output, of which the padding
is cut off. The products are the same; those added are with weights of zero, which only inputs that are infinite or not
numbers could tell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.base import Inputs, given
from cpuconv.graph.ops.convolution import window_of_transpose
from cpuconv.graph.ops.window import Window


def run(graph: Graph) -> Graph:
    """The graph without transposed convolutions whose weights are constant and whose dilation is 1.

    Parameters
    ----------
    graph : Graph
        Specialised: every shape is known.
    """
    for node in graph.nodes:
        if node.op == "ConvTranspose" and node.meaning is None:
            graph = _rewritten(graph, node)
    return graph


def _rewritten(graph: Graph, node: Node) -> Graph:
    """The graph with a convolution, a shuffle and a cut in the place of the node, as far as they are needed."""
    operands: Inputs = graph.operands(node)
    x, w, bias = *operands[:2], given(operands, 2)
    if w.array is None or (bias is not None and bias.array is None) or 0 in x.shape + w.shape:
        return graph
    window = window_of_transpose(node, x.shape, w.shape)
    if max(window.dilations) > 1 or min(window.near) < 0 or min(window.sizes) < 1:
        return graph
    steps, channels = window.strides, w.shape[1] * node["group"]
    taps = [-(-size // step) for size, step in zip(window.kernel, steps, strict=True)]
    first = [min(near // step, count - 1) for near, step, count in zip(window.near, steps, taps, strict=True)]
    ends = [near + size for near, size in zip(window.near, window.sizes, strict=True)]
    last = [max(size, -(-end // step)) for size, end, step in zip(x.shape[2:], ends, steps, strict=True)]
    made = _Chain(graph, node)
    constants = {"weight": phases(w.array, node["group"], window)}
    if bias is not None:
        constants["bias"] = np.repeat(bias.array, math.prod(steps))
    near = [count - 1 - begin for count, begin in zip(taps, first, strict=True)]
    far = [end - size for end, size in zip(last, x.shape[2:], strict=True)]
    made.add("Conv", constants, group=node["group"], kernel_shape=taps, pads=[*near, *far])
    if max(steps) > 1:
        batch, *places = x.shape[0], *(end - begin for end, begin in zip(last, first, strict=True))
        rank = len(steps)
        made.add("Reshape", {"split": np.array([batch, channels, *steps, *places])})
        pairs = [(2 + rank + axis, 2 + axis) for axis in range(rank)]
        made.add("Transpose", perm=[0, 1, *itertools.chain(*pairs)])
        sizes = [size * step for size, step in zip(places, steps, strict=True)]
        made.add("Reshape", {"merged": np.array([batch, channels, *sizes])})
    begin = [near - start * step for near, start, step in zip(window.near, first, steps, strict=True)]
    if tuple(made.value.shape[2:]) != window.sizes:
        end = [start + size for start, size in zip(begin, window.sizes, strict=True)]
        axes = np.arange(2, 2 + len(steps))
        made.add("Slice", {"starts": np.array(begin), "ends": np.array(end), "axes": axes})
    return made.graph()


def phases(weight: np.ndarray, groups: int, window: Window) -> np.ndarray:
    """The weights of the convolution.

    Parameters
    ----------
    weight : numpy.ndarray, (C, K/groups, taps...)
        Of the transposed convolution.
    groups : int
    window : Window
        Its taps and strides.

    Returns
    -------
    numpy.ndarray, (K phases, C/groups, fewer taps...)
        Channels are in the order (group, channel of the group, phase of each axis).
    """
    steps, rank = window.strides, len(window.strides)
    counts = [-(-size // step) for size, step in zip(window.kernel, steps, strict=True)]
    behind = [count * step - size for count, step, size in zip(counts, steps, window.kernel, strict=True)]
    full = np.pad(weight, [(0, 0), (0, 0), *((0, more) for more in behind)])
    each, k = weight.shape[0] // groups, weight.shape[1]
    split = full.reshape(groups, each, k, *itertools.chain(*zip(counts, steps, strict=True)))
    tap_axes, phase_axes = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    backwards = np.flip(split, tuple(tap_axes))
    ordered = backwards.transpose(0, 2, *phase_axes, 1, *tap_axes)
    return np.ascontiguousarray(ordered).reshape(groups * k * math.prod(steps), each, *counts)


class _Chain:
    """Nodes one after another in the place of one, with what is known of their outputs."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph, self._node = graph, node
        self._nodes: list[Node] = []
        self._constants: dict[str, np.ndarray] = {}
        self._values: dict[str, Value] = {}
        self._name = node.inputs[0]
        self.value: Any = graph.value(self._name)

    def add(self, op: str, constants: dict[str, np.ndarray] | None = None, **attributes: object) -> None:
        """The operator, applied to the last output and to constants."""
        label = f"{self._node.outputs[0]}/{len(self._nodes)}"
        named = {f"{label}.{hint}": array for hint, array in (constants or {}).items()}
        made = TABLE[op].node((self._name, *named), (label,), self._node.origin, **attributes)
        (self.value,) = TABLE[op].infer(made, [self.value, *map(Value.of, named.values())])
        self._nodes.append(made)
        self._constants |= named
        self._values[label] = self.value
        self._name = label

    def graph(self) -> Graph:
        """The graph with the chain, whose last output takes the name of the node's."""
        names = {self._name: self._node.outputs[0]}
        values = {name: value for name, value in self._values.items() if name not in names}
        nodes: Sequence[Node] = [made.writes(names) for made in self._nodes]
        return self._graph.replaced([self._node], nodes, self._constants, values).live()
