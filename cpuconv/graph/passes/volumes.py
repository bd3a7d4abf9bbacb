"""Convert 3-D convolutions to 2-D convolutions, with the depth slices of a window as channels.

Pattern: 3-D Conv with constant weights. Let depth slices be images. Then tap t of the depth reads the slice
o * stride + t * dilation - pad for slice o of the result:

    y[o] = sum over t of w[t] x[o * stride + t * dilation - pad],

where slices out of range are zeros. This is one convolution with the slices as additional channels. With groups, it is
the sum of one convolution per t. Equal up to the order of sums and multiplications by zero. Slices stay images between
such convolutions. Quantised tensors stay integers, with the zero point instead of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, operand, shape_of
from cpuconv.graph.passes.scaled import Scaled
from cpuconv.problem.reference import overlap
from cpuconv.problem.window import Window

_TO_SLICES, _TO_VOLUMES = [2, 0, 1, 3, 4], [1, 2, 0, 3, 4]  # (N, C, D, H, W) and (D, N, C, H, W)


def rule(graph: Graph, node: Node, quantised: Sequence[Scaled] = ()) -> Rewrite | None:
    """Replace a 3-D convolution by convolutions of slices; its operands may be `quantised`: input and weights."""
    source, weight = (each.name for each in quantised) if quantised else node.inputs[:2]
    w = constant(graph, weight)
    if w is None or w.ndim != 5:
        return None
    shape = shape_of(graph, node.inputs[0])
    window = Window.of(node.attributes, shape[2:], w.shape[2:])
    depth, *plane = window.outputs
    read = [
        overlap(tap * window.dilations[0] - window.near[0], window.strides[0], shape[2], depth)
        for tap in range(w.shape[2])
    ]
    if shape[0] == 0 or 0 in plane or not all(out.stop > out.start for out, _ in read):
        return None
    maker = Maker(graph, node)
    x, batch, dtype = _images(maker, source, "slices"), shape[0], graph.value(source).dtype
    outside = maker.constant(quantised[0].zero.reshape(()).astype(dtype), "outside") if quantised else ""
    taps = [_moved(maker, x, shape, depth, *pair, outside, f"tap{at}") for at, pair in enumerate(read)]
    weights = list(np.moveaxis(w, 2, 0))
    if node["group"] == 1 and len(taps) > 1:
        taps, weights = [maker.node("Concat", *taps, part="taps", axis=1)], [np.concatenate(weights, 1)]
    attributes = {
        **node.attributes,
        "auto_pad": "NOTSET",
        "kernel_shape": window.kernel[1:],
        "strides": window.strides[1:],
        "dilations": window.dilations[1:],
        "pads": [*window.near[1:], *window.far[1:]],
        "activation": None,
    }
    y = operand(node, 3) and _images(maker, node.inputs[3], "residual")
    for at, (tap, weight) in enumerate(zip(taps, weights, strict=True), 1 - len(taps)):
        both = [tap, maker.constant(np.ascontiguousarray(weight), "weight")]
        if quantised:
            both = [
                maker.node("DequantizeLinear", name, *means.inputs[1:], part="numbers", **means.attributes)
                for name, means in zip(both, filter(None, map(graph.producer, node.inputs[:2])), strict=True)
            ]
        ending = attributes if at else {**attributes, "activation": node["activation"]}
        y = maker.node("Conv", *both, "" if at else operand(node, 2), y, part="images", **ending)
    if batch == 1:  # images stay whole, so that channel blocks are transposed in one copy
        maker.reshape(maker.node("Transpose", y, part="volumes", perm=[1, 0, 2, 3]), (1, len(w), depth, *plane))
    else:
        y = maker.reshape(y, (depth, batch, len(w), *plane), "volumes")
        maker.node("Transpose", y, perm=_TO_VOLUMES)
    return maker.done()


def _images(maker: Maker, x: str, part: str) -> str:
    """Convert volumes (N, C, D, H, W) to their slices as images (D N, C, H, W)."""
    n, c, d, h, w = shape_of(maker.graph, x)
    if n == 1:
        return maker.node("Transpose", maker.reshape(x, (c, d, h, w), f"{part}.turned"), part=part, perm=[1, 0, 2, 3])
    return maker.reshape(maker.node("Transpose", x, part=f"{part}.turned", perm=_TO_SLICES), (d * n, c, h, w), part)


def _moved(
    maker: Maker, x: str, shape: tuple[int, ...], depth: int, out: slice, read: slice, outside: str, part: str
) -> str:
    """Select the slices `read` as the slices `out` of `depth`, with zeros around them."""
    n, c, d, h, w = shape
    each = 1 if read.step > 1 else n  # images per step; strided slices of several volumes are not equidistant
    if each < n:
        x = maker.reshape(x, (d, n * c, h, w), f"{part}.slices")
    numbers = (read.start * each, read.stop * each, 0, read.step)
    bounds = [maker.constant(np.array([number]), f"{part}.bound{at}") for at, number in enumerate(numbers)]
    x = maker.node("Slice", x, *bounds, part=f"{part}.read")
    if each < n:
        x = maker.reshape(x, ((out.stop - out.start) * n, c, h, w), f"{part}.images")
    pads = np.array([out.start * n, 0, 0, 0, (depth - out.stop) * n, 0, 0, 0])
    return maker.node("Pad", x, maker.constant(pads, f"{part}.pads"), outside, part=part)


run = Pass("volumes", __doc__, ({"Conv": rule},), needs=("convolutions",), undoes=("views",))
