"""Convert transposed convolutions to convolutions, whose channels are then rearranged to pixels.

Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (arXiv:1609.07009).

Dilation d: the taps are every d-th tap of a larger kernel, with zeros between them. If the stride is 1, the convolution
is dilated as well and skips the zeros.

Results are equal, along one axis: with stride s and r taps, a transposed convolution adds w[t] x[i] to position
u = i s + t of its full output. Let u = q s + p with p < s. The taps that contribute to u are t = p + j s, j = q - i:

    full[q s + p] = sum over j of w[p + j s] x[q - j]:

For each phase p, this is a convolution of x with every s-th tap in reverse order; absent taps are zero. The phases are
channels of one convolution with ceil(r / s) taps. Interleaved, they are the full output, from which padding is cropped.
Zeros before the first tap shift the full output and its padding. They are added where padding thereby becomes a
multiple of the stride, which the convolution itself can omit, without more taps. The additional multiplications are by
zero weights; results only differ if inputs are infinite or NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.base import Inputs, given
from cpuconv.graph.ops.convolution import window_of_transpose
from cpuconv.graph.passes import volumes
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, operand
from cpuconv.graph.passes.scaled import dequantised
from cpuconv.kernels.packing.phases import Axis, phases


def rule(graph: Graph, node: Node) -> Rewrite | None:
    """Replace the node by a convolution, a shuffle and a crop, as far as they are needed.

    Its weights must be constant; they may be dequantised integers without zero points.
    """
    operands: Inputs = graph.operands(node)
    x, w, bias = *operands[:2], given(operands, 2)
    weight, added = (_known(graph, operand(node, at), node["group"]) for at in (1, 2))
    if weight is None or (bias is not None and (added is None or added.scale is not None)) or 0 in x.shape + w.shape:
        return None
    window = window_of_transpose(node, x.shape, w.shape)
    if any(near < 0 for near in window.near) or any(size < 1 for size in window.sizes):
        return None
    gaps = [gap if step == 1 else 1 for gap, step in zip(window.dilations, window.strides, strict=True)]
    spread = _spread(weight.array, window.dilations)
    axes = list(map(Axis.of, x.shape[2:], spread.shape[2:], window.strides, window.near, window.sizes))
    # Phases before channels keep channel blocks whole. With groups, each group must have its own channels.
    apart = node["group"] == 1
    channels, steps, places = w.shape[1] * node["group"], window.strides, [axis.places for axis in axes]
    maker = Maker(graph, node)
    many = math.prod(steps)

    def each_phase(vector: np.ndarray, part: str) -> str:
        return maker.constant(np.tile(vector, many) if apart else np.repeat(vector, many), part)

    taps = phases(spread, node["group"], axes, apart)[_every(gaps)]
    constants = [maker.constant(np.ascontiguousarray(taps), "weight")]
    if weight.scale is not None:
        zeros = np.zeros(channels, weight.array.dtype)
        scales = each_phase(np.broadcast_to(weight.scale, channels), "scale"), each_phase(zeros, "zero")
        constants = [maker.node("DequantizeLinear", constants[0], *scales, part="floats", axis=0)]
    if added is not None:
        constants.append(each_phase(added.array, "bias"))
    pads = [axis.taps - 1 - axis.first for axis in axes] + [axis.last - axis.size for axis in axes]
    kernel = list(taps.shape[2:])
    moves: list[tuple[str, list[str], dict[str, Any]]] = [
        ("Conv", constants, {"group": node["group"], "kernel_shape": kernel, "pads": pads, "dilations": gaps})
    ]
    if max(steps) > 1:
        moves += _shuffle(maker, (x.shape[0], channels), steps, places, apart)
    if any((axis.begin, axis.end) != (0, axis.places * axis.step) for axis in axes):
        at = ([axis.begin for axis in axes], [axis.end for axis in axes], range(2, 2 + len(axes)))
        parts = zip(("starts", "ends", "axes"), at, strict=True)
        moves.append(("Slice", [maker.constant(np.array(numbers), part) for part, numbers in parts], {}))
    name = node.inputs[0]
    for number, (op, others, attributes) in enumerate(moves, 1):
        name = maker.node(op, name, *others, part=op.lower() if number < len(moves) else "", **attributes)
    return maker.done()


def _every(gaps: Sequence[int]) -> tuple[Any, ...]:
    """Index of every n-th tap on the last axes."""
    return (..., *(slice(None, None, gap) for gap in gaps))


def _spread(weight: np.ndarray, dilations: Sequence[int]) -> np.ndarray:
    """Insert zeros between the dilated taps of weights (C, K, …)."""
    if max(dilations) == 1:
        return weight
    sizes = [(taps - 1) * gap + 1 for taps, gap in zip(weight.shape[2:], dilations, strict=True)]
    wide = np.zeros((*weight.shape[:2], *sizes), weight.dtype)
    wide[_every(dilations)] = weight
    return wide


class _Known(NamedTuple):
    """Constant, or integers with their dequantisation scales: one, or one per output channel."""

    array: np.ndarray
    scale: np.ndarray | None = None


def _known(graph: Graph, name: str, groups: int) -> _Known | None:
    """Weights (C, K/groups, …) or bias; None if not constant, or if integers have a zero point."""
    if (array := constant(graph, name)) is not None:
        return _Known(array)
    given = dequantised(graph, name)
    whole = None if given is None else constant(graph, given.name)
    if given is None or whole is None:
        return None
    if whole.ndim == 1:  # a bias
        return _Known((whole.astype(np.int64) - given.zero).astype(np.float32) * given.scale)
    if given.zero.any() or not (given.scale.size == 1 or given.axis in (1, 1 - whole.ndim)):
        return None
    return _Known(whole, given.scale if given.scale.size == 1 else np.tile(given.scale, groups))


def _shuffle(
    maker: Maker, ends: tuple[int, int], steps: tuple[int, ...], places: list[int], apart: bool
) -> list[tuple[str, list[str], dict[str, Any]]]:
    """Operators, with further inputs and attributes, that interleave phases; `apart`: phases precede channels."""
    rank = len(steps)
    if rank == 2 and steps[0] == steps[1]:
        return [("DepthToSpace", [], {"blocksize": steps[0], "mode": "DCR" if apart else "CRD"})]
    batch, channels = ends
    split = (batch, *steps, channels, *places) if apart else (batch, channels, *steps, *places)
    phase, channel = (1, 1 + rank) if apart else (2, 1)
    pairs = [(2 + rank + axis, phase + axis) for axis in range(rank)]
    merged = [size * step for size, step in zip(places, steps, strict=True)]
    return [
        ("Reshape", [maker.constant(np.array(split), "split")], {}),
        ("Transpose", [], {"perm": [0, channel, *itertools.chain(*pairs)]}),
        ("Reshape", [maker.constant(np.array([batch, channels, *merged]), "merged")], {}),
    ]


# The weights of a ConvTranspose take the operators behind it, before pixels are rearranged.
run = Pass(
    "transposed",
    __doc__,
    ({"ConvTranspose": volumes.transposed}, {"ConvTranspose": rule}),
    needs=("weights",),
    undoes=("views",),
)
