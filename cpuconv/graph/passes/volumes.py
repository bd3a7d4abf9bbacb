"""Convert 3-D convolutions, and operators between them, to operators on depth slices as images.

Pattern: 3-D Conv with constant weights. Let depth slices be images. Then tap t of the depth reads the slice
o * stride + t * dilation - pad for slice o of the result:

    y[o] = sum over t of w[t] x[o * stride + t * dilation - pad],

where slices out of range are zeros. This is one convolution with the slices as additional channels: overlapping views
of the slices of one volume, with zeros around them. With groups, it is the sum of one convolution per t. Equal up to
the order of sums and multiplications by zero. Quantised tensors stay integers, with the zero point instead of zeros.

Elementwise operators, Concat of channels and InstanceNormalization of such results compute on the slices, too: slices
stay images until another operator reads them. Pooling is that of planes, and then of the slices of a window. Equal up
to the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.convolution import window_of_transpose
from cpuconv.graph.ops.elementwise_forms import COMPARISONS, FORMS
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, constant, operand, shape_of
from cpuconv.graph.passes.scaled import Scaled
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.kernels.copies.tensor_views import Cut
from cpuconv.kernels.elementwise.driver import MAX_OPERANDS
from cpuconv.kernels.packing.phases import Axis
from cpuconv.problem.window import Window
from cpuconv.symbolic.sizes import greatest, sizes_array

_TO_SLICES, _TO_VOLUMES = [2, 0, 1, 3, 4], [1, 2, 0, 3, 4]  # (N, C, D, H, W) and (D, N, C, H, W)
_SWAPPED = [1, 0, 2, 3]  # (C, D, H, W) of a single volume and (D, C, H, W)


def rule(graph: Graph, node: Node, quantised: Sequence[Scaled] = ()) -> Rewrite | None:
    """Replace a 3-D convolution by convolutions of slices; its operands may be `quantised`: input and weights."""
    source, weight = (each.name for each in quantised) if quantised else node.inputs[:2]
    w = constant(graph, weight)
    if w is None or w.ndim != 5:
        return None
    shape = shape_of(graph, node.inputs[0])
    window = Window.of(node.attributes, shape[2:], w.shape[2:])
    depth, *plane = window.outputs
    if 0 in (*shape, depth, *plane):
        return None
    maker = Maker(graph, node)
    x, dtype = _images(maker, source, "slices"), graph.value(source).dtype
    outside = maker.constant(quantised[0].zero.reshape(()).astype(dtype), "outside") if quantised else ""
    pads = window.near[0], window.far[0]
    reads = [Cut(tap * window.dilations[0], depth, window.strides[0]) for tap in range(w.shape[2])]
    taps, weights = _taps(maker, x, shape, pads, reads, outside, node["group"] == 1), list(np.moveaxis(w, 2, 0))
    if len(taps) < len(weights):
        weights = [np.concatenate(weights, 1)]
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
    return _volumes(maker, y)


def _volumes(maker: Maker, images: str) -> Rewrite:
    """Replace the nodes by those of `maker`, whose result is `images`: the slices of the nodes' result."""
    n, c, d, *plane = shape_of(maker.graph, maker.output)
    if n == 1:  # images stay whole, so that channel blocks are transposed in one copy
        maker.reshape(maker.node("Transpose", images, part="volumes", perm=_SWAPPED), (n, c, d, *plane))
    else:
        maker.node("Transpose", maker.reshape(images, (d, n, c, *plane), "volumes"), perm=_TO_VOLUMES)
    return maker.done()


def _slices_of(graph: Graph, x: str) -> str:
    """The images whose volumes are `x`, by the nodes of `_volumes`; "" if there are none."""
    n, c, d, *plane = shape_of(graph, x)
    last = graph.producer(x)
    first = last and graph.producer(last.inputs[0])
    turn, split = (first, last) if n == 1 else (last, first)
    if not (turn and split and first and (turn.op, split.op) == ("Transpose", "Reshape")):
        return ""
    whole = shape_of(graph, first.inputs[0]) == (d * n, c, *plane)
    return first.inputs[0] if whole and turn["perm"] == (_SWAPPED if n == 1 else _TO_VOLUMES) else ""


def _images(maker: Maker, x: str, part: str) -> str:
    """Convert volumes (N, C, D, H, W) to their slices as images (D N, C, H, W)."""
    if images := _slices_of(maker.graph, x):
        return images
    n, c, d, h, w = shape_of(maker.graph, x)
    if n == 1:
        return maker.node("Transpose", maker.reshape(x, (c, d, h, w), f"{part}.turned"), part=part, perm=_SWAPPED)
    return maker.reshape(maker.node("Transpose", x, part=f"{part}.turned", perm=_TO_SLICES), (d * n, c, h, w), part)


def _taps(
    maker: Maker,
    x: str,
    shape: tuple[int, ...],
    pads: tuple[int, int],
    reads: Sequence[Cut],
    outside: str = "",
    joined: bool = True,
) -> list[str]:
    """Pad the volumes of a shape whose slices are the images `x`, and select slices; `joined`: as channels of one."""
    n, c, d, *plane = shape
    if any(pads):
        padding = maker.constant(sizes_array([pads[0] * n, 0, 0, 0, pads[1] * n, 0, 0, 0]), "pads")
        x = maker.node("Pad", x, padding, outside, part="padded")
    if joined and any(pads) and n == 1 < len(reads) and reads[1].start == 1:  # the padded images are contiguous
        return [maker.node("UnfoldImages", x, part="taps", kernel=len(reads), stride=reads[0].step)]
    each, taps = 1 if reads[0].step > 1 else n, []  # images per step; strided slices of volumes are not equidistant
    if each < n:
        x = maker.reshape(x, (d + sum(pads), n * c, *plane), "steps")
    for at, (start, count, step) in enumerate(reads):
        numbers = (start * each, (start + (count - 1) * step + 1) * each, 0, step)
        bounds = [maker.constant(sizes_array([number]), f"tap{at}.bound") for number in numbers]
        tap = maker.node("Slice", x, *bounds, part=f"tap{at}")
        taps.append(maker.reshape(tap, (count * n, c, *plane), f"tap{at}.images") if each < n else tap)
    return [maker.node("Concat", *taps, part="taps", axis=1)] if joined and len(taps) > 1 else taps


def transposed(graph: Graph, node: Node) -> Rewrite | None:
    """Replace a 3-D transposed convolution of one volume by one of its slices for each phase of the depth.

    Let u = q * stride + p with p < stride. As in the pass `transposed`, phase p of the full output is a convolution
    along the depth. Its taps are p + j * stride, in reverse order of j. The phases are interleaved.
    """
    (x, w, bias), shape = (*node.inputs, "")[:3], shape_of(graph, node.inputs[0])
    weight = constant(graph, w)
    if weight is None or weight.ndim != 5 or node["group"] != 1 or shape[0] != 1 or 0 in shape + weight.shape:
        return None
    window = window_of_transpose(node, shape, weight.shape)
    if any(near < 0 for near in window.near) or any(size < 1 for size in window.sizes) or window.dilations[0] > 1:
        return None
    axis = Axis.of(shape[2], weight.shape[2], window.strides[0], window.near[0], window.sizes[0])
    maker = Maker(graph, node)
    pads, reads = (axis.taps - 1 - axis.first, axis.last - axis.size), range(axis.taps)
    images = _images(maker, x, "slices")
    (images,) = _taps(maker, images, shape, pads, [Cut(tap, axis.places, 1) for tap in reads])
    full = np.moveaxis(np.pad(weight, [(0, 0), (0, 0), (axis.before, axis.behind), (0, 0), (0, 0)]), 2, 0)
    steps, gaps, kernel, near = window.strides[1:], window.dilations[1:], weight.shape[3:], window.near[1:]
    columns = zip(shape[3:], steps, kernel, gaps, near, window.sizes[1:], strict=True)
    more = [end + a - (size - 1) * step - (taps - 1) * gap - 1 for size, step, taps, gap, a, end in columns]
    attributes: dict[str, Any] = {"strides": steps, "dilations": gaps, "kernel_shape": kernel}
    attributes |= {"pads": [*near, 0, 0], "output_padding": more}
    taps = [maker.constant(np.concatenate(full[at :: axis.step][::-1]), "weight") for at in range(axis.step)]
    made = [maker.node("ConvTranspose", images, each, bias, part="phase", **attributes) for each in taps]
    y = maker.node("InterleaveImages", *made, part="phases") if len(made) > 1 else made[0]
    if (axis.begin, axis.end) != (0, axis.places * axis.step):
        bounds = [maker.constant(sizes_array([number]), "bound") for number in (axis.begin, axis.end, 0)]
        y = maker.node("Slice", y, *bounds, part="cropped")
    return _volumes(maker, y)


def _on_slices(graph: Graph, node: Node) -> Rewrite | None:
    """Compute an operator on slices if all of its operands are volumes of slices, or constant numbers per channel."""
    shape, attributes = shape_of(graph, node.outputs[0]), dict(node.attributes)
    norm = node.op == "InstanceNormalization"
    if len(shape) != 5 or len(node.outputs) > 1 or norm and attributes["epsilon"] <= 0:
        return None
    if node.op == "Concat" and attributes["axis"] % 5 != 1:
        return None
    attributes |= {"axis": 1} if node.op == "Concat" else {"volumes": shape[0]} if norm else {}
    maker, operands = Maker(graph, node), []
    for at, name in enumerate(node.inputs):
        array = constant(graph, name) if name else None
        if array is None and name:
            if node.op != "Concat" and shape_of(graph, name) != shape or not (images := _slices_of(graph, name)):
                return None
            operands.append(images)
        elif node.op == "Concat":
            return None
        elif array is None or norm or (array.size == 1 and array.ndim < 4):
            operands.append(name)
        elif array.ndim > 3 and array.size == array.shape[-4]:
            operands.append(maker.constant(array.reshape(array.shape[-4:-1]), f"operand{at}"))
        else:
            return None
    op = "VolumeNormalization" if norm else node.op
    return _volumes(maker, maker.node(op, *operands, part="slices", **attributes))


def _pooled(graph: Graph, node: Node) -> Rewrite | None:
    """Pool the planes of slices, then the slices of each window."""
    shape = shape_of(graph, node.inputs[0])
    if len(shape) != 5 or 0 in shape or len(node.outputs) > 1 or graph.value(node.inputs[0]).dtype != FLOAT32:
        return None
    window, maximum = Window.of(node.attributes, shape[2:], node["kernel_shape"]), node.op == "MaxPool"
    (depth, *plane), near, taps = window.outputs, window.near[0], window.kernel[0]
    step, gap = window.strides[0], window.dilations[0]
    far = greatest(0, (depth - 1) * step + (taps - 1) * gap + 1 - near - shape[2])
    if 0 in window.outputs or taps > MAX_OPERANDS or near < 0 or not maximum and (near, far) != (0, 0):
        return None
    maker = Maker(graph, node)
    attributes = {name: value and value[1:] for name in _SPATIAL if (value := node.attributes.get(name, ())) != ()}
    pads = node["pads"] and [*node["pads"][1:3], *node["pads"][4:]]
    x = _images(maker, node.inputs[0], "slices")
    x = maker.node(node.op, x, part="planes", **{**node.attributes, **attributes, "pads": pads})
    outside = maker.constant(np.array(-np.inf, np.float32), "outside") if maximum else ""
    reads = [Cut(tap * gap, depth, step) for tap in range(taps)]
    seen = _taps(maker, x, (*shape[:3], *plane), (near, far), reads, outside, False)
    return _volumes(maker, maker.node("Max" if maximum else "Mean", *seen, part="windows") if taps > 1 else seen[0])


_SPATIAL = "kernel_shape", "strides", "dilations"
_RULES = dict.fromkeys(("MaxPool", "AveragePool"), _pooled)
_RULES |= dict.fromkeys((*(FORMS.keys() - COMPARISONS.keys()), "Concat", "InstanceNormalization"), _on_slices)
run = Pass("volumes", __doc__, ({"Conv": rule, **_RULES},), needs=("convolutions",), undoes=("views", "epilogues"))
