"""Scales and shifts around convolutions and Linear go into their weights and biases.

Patterns, behind Conv, ConvTranspose or Linear with constant weights, and read by nobody else on the way: any chain of
BatchNormalization, Add, Sub, Mul, Div, Neg by constants that vary at most over channels. s (W x + b) + t = (s W) x +
(s b + t). Before them: the same chain, where the shift is zero, or the convolution has no padding, which would not be
shifted: W (s x + t) + b = (W s) x + (W t + b). Computed in float64 and rounded once: equal up to rounding. Left alone
where a weight would overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.window import Window
from cpuconv.graph.passes.rewriting import Maker, Rewrite, constant, operand, per_channel, rewritten, sole_reader


@dataclass(frozen=True)
class Kind:
    """How an operator's weights lie.

    Attributes
    ----------
    axis : int or None
        Of the channels in its input and output; None: the last one.
    into : str
        The weights as (groups, outputs, inputs, taps) "goit", or with axes in another order.
    """

    axis: int | None
    into: str


KINDS = {"Conv": Kind(1, "goit"), "ConvTranspose": Kind(1, "giot"), "Linear": Kind(None, "giot")}


def foldable(graph: Graph, node: Node | None) -> bool:
    """Whether a node has constant weights, and nothing behind its bias yet."""
    if node is None or node.op not in KINDS or node.attributes.get("activation") is not None or operand(node, 3):
        return False
    bias = operand(node, 2)
    return constant(graph, node.inputs[1]) is not None and (not bias or constant(graph, bias) is not None)


def affine(graph: Graph, node: Node, name: str, axis: int) -> tuple[np.ndarray, np.ndarray] | None:
    """s and t by channel, in float64, if a node computes s x + t of the value `name`."""
    shape = graph.value(name).shape
    if node.meaning is not None or graph.value(node.outputs[0]) != graph.value(name):
        return None
    one, zero = np.ones(shape[axis]), np.zeros(shape[axis])
    if node.op == "BatchNormalization":
        arrays = [constant(graph, each) for each in node.inputs[1:]]
        if axis != 1 or node.inputs[0] != name or any(array is None for array in arrays):
            return None
        scale, bias, mean, variance = (array.astype(np.float64) for array in arrays)
        scale = scale / np.sqrt(variance + node["epsilon"])
        return scale, bias - mean * scale
    if node.op == "Neg":
        return -one, zero
    if node.op not in ("Add", "Sub", "Mul", "Div") or node.inputs[0] == node.inputs[1]:
        return None
    first = node.inputs[0] == name
    array = constant(graph, node.inputs[1 if first else 0])
    vector = None if array is None else per_channel(array, shape, axis)
    if vector is None or (node.op == "Div" and not first):
        return None
    return {
        "Add": (one, vector),
        "Sub": (one, -vector) if first else (-one, vector),
        "Mul": (vector, zero),
        "Div": (1 / vector, zero),
    }[node.op]


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    if not foldable(graph, node):
        return None
    with np.errstate(all="ignore"):
        return _behind(graph, node) or _before(graph, node)


def _behind(graph: Graph, node: Node) -> Rewrite | None:
    shape = graph.value(node.outputs[0]).shape
    axis = KINDS[node.op].axis or len(shape) - 1
    chain, scale, shift = [node], np.ones(shape[axis]), np.zeros(shape[axis])
    while (reader := sole_reader(graph, chain[-1].outputs[0])) is not None:
        step = affine(graph, reader, chain[-1].outputs[0], axis)
        if step is None:
            break
        chain.append(reader)
        scale, shift = scale * step[0], shift * step[0] + step[1]
    if len(chain) == 1:
        return None
    weight, bias = _weight(graph, node), _bias(graph, node)
    scales = scale.reshape(weight.shape[0], -1, 1, 1)
    return _made(graph, chain, node.inputs[0], scales, bias * scale + shift)


def _before(graph: Graph, node: Node) -> Rewrite | None:
    shape = graph.value(node.inputs[0]).shape
    axis = KINDS[node.op].axis or len(shape) - 1
    chain, scale, shift, name = [node], np.ones(shape[axis]), np.zeros(shape[axis]), node.inputs[0]
    while sole_reader(graph, name) is not None and (producer := graph.producer(name)) is not None:
        steps = ((each, affine(graph, producer, each, axis)) for each in dict.fromkeys(producer.inputs) if each)
        source, step = next(((each, step) for each, step in steps if step is not None), ("", None))
        if step is None:
            break
        chain.insert(0, producer)
        scale, shift, name = scale * step[0], shift + scale * step[1], source
    if len(chain) == 1 or (shift.any() and not _unpadded(graph, node)):
        return None
    weight = _weight(graph, node)
    groups = weight.shape[0]
    added = np.einsum("goit,gi->go", weight, shift.reshape(groups, -1)) if shift.any() else 0.0
    bias = _bias(graph, node) + np.ravel(added)
    return _made(graph, [*chain[:-1], node], name, scale.reshape(groups, 1, -1, 1), bias)


def _unpadded(graph: Graph, node: Node) -> bool:
    """Whether every output sees all taps on the input."""
    if node.op == "Conv":
        window = Window.of(node, graph.value(node.inputs[0]).shape[2:], graph.value(node.inputs[1]).shape[2:])
        return max((*window.near, *window.far)) <= 0
    return node.op == "Linear"


def _weight(graph: Graph, node: Node) -> np.ndarray:
    """The weights as (groups, outputs, inputs, taps): a view."""
    array, groups = constant(graph, node.inputs[1]), node.attributes.get("group", 1)
    view = array.reshape(groups, array.shape[0] // groups, array.shape[1], -1)
    return view if KINDS[node.op].into == "goit" else view.swapaxes(1, 2)


def _bias(graph: Graph, node: Node) -> np.ndarray:
    name, shape = operand(node, 2), graph.value(node.outputs[0]).shape
    channels = shape[KINDS[node.op].axis or len(shape) - 1]
    return constant(graph, name).astype(np.float64) if name else np.zeros(channels)


def _made(graph: Graph, chain: list[Node], x: str, scales: np.ndarray, bias: np.ndarray) -> Rewrite | None:
    """The node of the chain that has weights, with these scaled and another bias."""
    node = next(each for each in chain if each.op in KINDS)
    maker, old = Maker(graph, *chain), constant(graph, node.inputs[1])
    weight = node.inputs[1]
    if (scales != 1).any():
        array = np.empty_like(old, order="C")
        view = (
            array.reshape(_split(graph, node))
            if KINDS[node.op].into == "goit"
            else array.reshape(_split(graph, node)).swapaxes(1, 2)
        )
        np.multiply(_weight(graph, node), scales, out=view, casting="same_kind")
        if not np.isfinite(scales).all() or not np.isfinite(array).all():
            return None
        weight = maker.constant(array, "weight")
    rounded = bias.astype(old.dtype)
    if not np.isfinite(rounded).all():
        return None
    added = maker.constant(rounded, "bias") if bias.any() or operand(node, 2) else ""
    maker.origin = node.origin
    maker.node(node.op, x, weight, added, **node.attributes)
    return maker.done()


def _split(graph: Graph, node: Node) -> tuple[int, ...]:
    array, groups = constant(graph, node.inputs[1]), node.attributes.get("group", 1)
    return groups, array.shape[0] // groups, array.shape[1], int(np.prod(array.shape[2:]))


def run(graph: Graph) -> Graph:
    """Fold them all."""
    return rewritten(graph, _rule)
