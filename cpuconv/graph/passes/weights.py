"""Fold scales and shifts around convolutions and Linear into their weights and biases.

Patterns: Conv, ConvTranspose or Linear with constant weights. After it, a chain of `affine` operators, each with a
single reader: s (W x + b) + t = (s W) x + (s b + t). Before it, the same, if the shift is zero or no output reads
padding, which would not be shifted: W (s x + t) + b = (W s) x + (W t + b). Computed in float64 and rounded once: equal
up to rounding. Not applied if a number would overflow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.affine import OPERATORS, Affine, affine, chain_behind
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, operand, shape_of, sole_reader
from cpuconv.memory.temporary import temporary
from cpuconv.problem.window import Window

_BUFFERED = 512  # elements, to stay in L1: 0.5 ns per element on Zen 4; NumPy's default 8192 takes 1.3


class Kind(NamedTuple):
    """Operand layout of an operator: the channel axis, and whether weights have outputs before inputs."""

    axis: int
    outputs_first: bool


KINDS = {"Conv": Kind(1, True), "ConvTranspose": Kind(1, False), "Linear": Kind(-1, False)}


def foldable(graph: Graph, node: Node | None) -> bool:
    """Whether a node has constant weights and bias, and neither residual nor activation."""
    if node is None or node.op not in KINDS or node.attributes.get("activation") is not None or operand(node, 3):
        return False
    bias = operand(node, 2)
    return constant(graph, node.inputs[1]) is not None and (not bias or constant(graph, bias) is not None)


def _by_group(array: np.ndarray, node: Node) -> np.ndarray:
    """View weights as (groups, outputs, inputs, taps)."""
    groups = node.attributes.get("group", 1)
    view = array.reshape(groups, array.shape[0] // groups, array.shape[1], math.prod(array.shape[2:]))
    return view if KINDS[node.op].outputs_first else view.swapaxes(1, 2)


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    return (_behind(graph, node) or _before(graph, node)) if foldable(graph, node) else None


def _behind(graph: Graph, node: Node) -> Rewrite | None:
    (name,) = node.outputs
    shape = _channels_of(graph, node)
    axis = KINDS[node.op].axis % len(shape)
    chain, total = chain_behind(graph, name, axis, shape, Affine.identity())
    if not chain:
        return None
    total = total.of(shape[axis])
    groups = node.attributes.get("group", 1)
    bias = _bias(graph, node, total.scale.size) * total.scale + total.shift
    return _made(graph, [node, *chain], node.inputs[0], total.scale.reshape(groups, -1, 1, 1), bias)


def _before(graph: Graph, node: Node) -> Rewrite | None:
    producer = graph.producer(node.inputs[0])
    if producer is None or producer.op not in OPERATORS:
        return None
    chain, x, total = _chain_before(graph, node)
    if not chain or (total.shift.any() and not _sees_no_padding(graph, node)):
        return None
    groups = node.attributes.get("group", 1)
    bias = _bias(graph, node, shape_of(graph, node.outputs[0])[KINDS[node.op].axis])
    if total.shift.any():
        weight = _by_group(graph.constants[node.inputs[1]], node)
        bias = bias + np.einsum("goit,gi->go", weight, total.shift.reshape(groups, -1)).ravel()
    return _made(graph, [*chain, node], x, total.scale.reshape(groups, 1, -1, 1), bias)


def _chain_before(graph: Graph, node: Node) -> tuple[list[Node], str, Affine]:
    """Affine chain before the first input, each node with a single reader; with its source and its composition."""
    chain: list[Node] = []
    name, shape = node.inputs[0], shape_of(graph, node.inputs[0])
    axis = KINDS[node.op].axis % len(shape)
    total = Affine.identity()
    while (producer := graph.producer(name)) is not None and sole_reader(graph, name) is not None:
        steps = ((other, affine(graph, producer, other, axis, shape)) for other in producer.inputs if other)
        source, step = next(((other, step) for other, step in steps if step is not None), ("", None))
        if step is None:
            break
        chain.append(producer)
        total, name = step.then(total), source
    return chain[::-1], name, total.of(shape[axis])


def _sees_no_padding(graph: Graph, node: Node) -> bool:
    if node.op != "Conv":
        return node.op == "Linear"
    window = Window.of(node.attributes, shape_of(graph, node.inputs[0])[2:], shape_of(graph, node.inputs[1])[2:])
    return max((*window.near, *window.far)) <= 0


def _channels_of(graph: Graph, node: Node) -> tuple[int, ...]:
    """Result shape as known from the weights, 1 on other axes; for Linear, the known result shape."""
    weight = shape_of(graph, node.inputs[1])
    if node.op == "Linear":
        return shape_of(graph, node.outputs[0])
    channels = weight[0] if KINDS[node.op].outputs_first else weight[1] * node["group"]
    return (1, channels, *[1] * (len(weight) - 2))


def _bias(graph: Graph, node: Node, channels: int) -> np.ndarray:
    name = operand(node, 2)
    return graph.constants[name].astype(np.float64) if name else np.zeros(channels)


def _made(graph: Graph, old: list[Node], x: str, scales: np.ndarray, bias: np.ndarray) -> Rewrite | None:
    """Make the layer among `old` with weights times `scales` and another bias."""
    node = next(each for each in old if each.op in KINDS)
    maker, weight = Maker(graph, *old, origin=node.origin), node.inputs[1]
    with np.errstate(all="ignore"):
        array, bias = graph.constants[weight], bias.astype(graph.constants[weight].dtype)
        if (scales != 1).any():
            scaled = temporary(array.shape, array.dtype)
            _multiply(_by_group(array, node), scales, _by_group(scaled, node))
            array, weight = scaled, maker.constant(scaled, "weight")
    if not np.isfinite(array).all() or not np.isfinite(bias).all():
        return None
    added = maker.constant(bias, "bias") if bias.any() or operand(node, 2) else ""
    maker.node(node.op, x, weight, added, **node.attributes)
    return maker.done()


def _multiply(array: np.ndarray, scales: np.ndarray, out: np.ndarray) -> None:
    """Multiply in float64 and round once: NumPy converts, multiplies and rounds one buffer at a time."""
    before = np.setbufsize(_BUFFERED)
    try:
        np.multiply(array, scales, out=out, casting="same_kind")
    finally:
        np.setbufsize(before)


def _without_sizes(graph: Graph, node: Node) -> Rewrite | None:
    """Fold what is behind a convolution of open sizes, which does not depend on them."""
    return _behind(graph, node) if foldable(graph, node) else None


run = Pass("weights", __doc__, (dict.fromkeys(KINDS, _rule),), needs=("linear", "views"))
run_without_sizes = Pass("weights", __doc__, (dict.fromkeys(("Conv", "ConvTranspose"), _without_sizes),))
