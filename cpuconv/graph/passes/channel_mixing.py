"""Move 1x1 convolutions in front of the Resize that they read, and merge successive linear maps of channels.

Patterns: a 1x1 convolution of a Resize that enlarges planes, or of a Concat of channels with such parts; a 1x1
convolution or Linear of another one without activation, possibly with data movement between them that keeps channels
apart. Applied where this saves multiplications: fewer pixels, or W2 W1 with fewer elements than W1 and W2 together.

Equal up to rounding. A Resize takes the same weighted mean in each channel, and a 1x1 convolution the same weighted sum
in each pixel: either may come first. The weights of a mean add up to 1, so a bias may move, too. A convolution of a
concatenation is the sum of the convolutions of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.base import axis_in
from cpuconv.graph.ops.shaping import channels_moved
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, operand, shape_of, sole_reader
from cpuconv.graph.passes.weights import foldable
from cpuconv.problem.window import Window

_MIN_SAVED = 64  # multiplications per output that are worth adding one more plane


def _is_mixing(graph: Graph, node: Node | None) -> bool:
    """Whether a node is a Linear, or a 1x1 convolution of whole planes without groups, with constant weights."""
    if node is None or node.semantics is not None or not foldable(graph, node) or node.op == "ConvTranspose":
        return False
    if node.op == "Linear":
        return True
    w = shape_of(graph, node.inputs[1])
    window = Window.of(node.attributes, shape_of(graph, node.inputs[0])[2:], w[2:])
    ends = (*window.near, *window.far)
    return node["group"] == 1 == math.prod(w[2:]) and max(window.strides) == 1 and not any(ends)


def _matrix(graph: Graph, node: Node) -> np.ndarray:
    """Weights (outputs, inputs) of a node."""
    w = graph.constants[node.inputs[1]]
    return w.T if node.op == "Linear" else w.reshape(w.shape[:2])


def _bias(graph: Graph, node: Node, outputs: int) -> np.ndarray:
    bias = constant(graph, operand(node, 2))
    return np.zeros(outputs) if bias is None else bias.astype(np.float64)


# --- in front of a Resize -------------------------------------------------------------------------------------------


def _saves(graph: Graph, name: str) -> bool:
    """Whether a value is an enlarging Resize of planes alone, which a convolution should precede."""
    node = graph.producer(name)
    if node is None or node.op != "Resize" or node.semantics is not None or sole_reader(graph, name) is None:
        return False
    before, after = shape_of(graph, node.inputs[0]), shape_of(graph, name)
    scales, axes = constant(graph, operand(node, 2)), node["axes"]
    if axes is not None:
        planes = all(axis_in(axis, len(before)) > 1 for axis in axes)
    else:
        planes = before[:2] == after[:2] and (scales is None or bool((scales[:2] == 1).all()))
    extrapolates = node["coordinate_transformation_mode"] == "tf_crop_and_resize"
    if not planes or extrapolates or node["keep_aspect_ratio_policy"] != "stretch" or 0 in before + after:
        return False
    pixels = math.prod(after[2:])
    return bool(before[1] * (pixels - math.prod(before[2:])) >= _MIN_SAVED * pixels)


def _convolution(graph: Graph, node: Node) -> Rewrite | None:
    return (_before_resize(graph, node) or _merged(graph, node)) if _is_mixing(graph, node) else None


def _before_resize(graph: Graph, node: Node) -> Rewrite | None:
    (name, *_), rank = node.inputs, len(shape_of(graph, node.inputs[0]))
    concat = graph.producer(name)
    if concat is None or concat.op != "Concat" or concat["axis"] % rank != 1 or sole_reader(graph, name) is None:
        concat = None
    parts = concat.inputs if concat else (name,)
    resized = [at for at, part in enumerate(parts) if _saves(graph, part)]
    producers = [each for at in resized if (each := graph.producer(parts[at])) is not None]
    if not producers:
        return None
    maker = Maker(graph, *producers, *([concat] if concat else []), node, origin=node.origin)
    ends = np.cumsum([shape_of(graph, part)[1] for part in parts])
    weights, bias = np.split(graph.constants[node.inputs[1]], ends[:-1], axis=1), operand(node, 2)

    def sums(x: str, at: Sequence[int], part: str, bias: str) -> str:
        weight = maker.constant(np.concatenate([weights[each] for each in at], axis=1), f"{part}.weight")
        return maker.node("Conv", x, weight, bias, part=part, **node.attributes)

    kept, terms = [at for at in range(len(parts)) if at not in resized], list[str]()
    if kept:
        names = [parts[at] for at in kept]
        x = names[0] if len(names) == 1 else maker.node("Concat", *names, part="kept", axis=1)
        terms.append(sums(x, kept, "kept.sums", bias))
    for at, producer in zip(resized, producers, strict=True):
        small = sums(producer.inputs[0], [at], f"small{at}", "" if terms else bias)
        terms.append(_resize(maker, producer, small, f"part{at}" if len(parts) > 1 else ""))
    total = terms[0]
    for at, term in enumerate(terms[1:], 2):
        total = maker.node("Add", total, term, part=f"sum{at}" if at < len(terms) else "")
    return maker.done()


def _resize(maker: Maker, node: Node, x: str, part: str) -> str:
    """Add the same Resize of another tensor, along the axes of its plane alone."""
    axes, stated = node["axes"], list(node.inputs[1:])
    for at in range(1, len(stated)) if axes is None else ():
        numbers = constant(maker.graph, stated[at])
        if numbers is not None and numbers.size:
            stated[at] = maker.constant(numbers[2:], f"{part}.stated{at}")
    planes = list(range(2, len(shape_of(maker.graph, node.inputs[0])))) if axes is None else axes
    return maker.node("Resize", x, *stated, part=part, **{**node.attributes, "axes": planes})


# --- maps that follow each other ------------------------------------------------------------------------------------


def _merged(graph: Graph, node: Node) -> Rewrite | None:
    """Multiply the weights of a map with those of the one before it."""
    name, movers = node.inputs[0], list[Node]()
    rows = node.op == "Linear"  # whether channels are the last axis
    while sole_reader(graph, name) is not None and (producer := graph.producer(name)) is not None:
        if not (turned := _moved(graph, producer, rows)):
            break
        movers.append(producer)
        rows, name = turned == "rows", producer.inputs[0]
    first = graph.producer(name)
    if (
        first is None
        or sole_reader(graph, name) is None
        or not _is_mixing(graph, first)
        or (first.op == "Linear") != rows
    ):
        return None
    before, after = _matrix(graph, first), _matrix(graph, node)
    if after.shape[0] * before.shape[1] >= before.size + after.size:
        return None
    maker = Maker(graph, first, *reversed(movers), node, origin=node.origin)
    with np.errstate(all="ignore"):
        wide = after.astype(np.float64)
        bias = wide @ _bias(graph, first, before.shape[0]) + _bias(graph, node, len(after))
        weight, bias = (each.astype(before.dtype) for each in (wide @ before.astype(np.float64), bias))
    if not np.isfinite(weight).all() or not np.isfinite(bias).all():
        return None
    taps = graph.constants[first.inputs[1]].shape[2:]
    constants = [
        maker.constant(np.ascontiguousarray(weight.T) if rows else weight.reshape(*weight.shape, *taps), "weight")
    ]
    constants += [maker.constant(bias, "bias")] if bias.any() else []
    x = maker.node(first.op, first.inputs[0], *constants, part="map" if movers else "", **first.attributes)
    for at, mover in enumerate(reversed(movers), 1):
        part = f"moved{at}" if at < len(movers) else ""
        if mover.op == "Transpose":
            x, rows = maker.node("Transpose", x, part=part, **mover.attributes), not rows
        else:
            shape = list(shape_of(graph, mover.outputs[0]))
            shape[-1 if rows else 1] = len(after)
            x = maker.reshape(x, shape, part)
    return maker.done()


def _moved(graph: Graph, node: Node, rows: bool) -> str:
    """Where channels were before data movement, "rows" (last) or "planes" (second); "" if they do not stay an axis."""
    if node.semantics is not None or node.op not in ("Reshape", "Transpose"):
        return ""
    before, after = (shape_of(graph, name) for name in (node.inputs[0], node.outputs[0]))
    if node.op == "Reshape":
        kept = before[-1:] == after[-1:] if rows else before[:2] == after[:2]
        return ("rows" if rows else "planes") if kept else ""
    turned = ("last" if rows else "second") in channels_moved(node, len(before))
    return ("planes" if rows else "rows") if turned else ""


run = Pass(
    "channel_mixing",
    __doc__,
    ({"Conv": _convolution, "Linear": lambda graph, node: _merged(graph, node) if _is_mixing(graph, node) else None},),
    needs=("weights",),
    undoes=("views",),
)
