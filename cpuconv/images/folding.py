"""Fold the last steps of a picture's conversion into the network, so that it is written in the type of the first layer.

An input that only QuantizeLinear reads becomes its integers, and one of uint8 that is cast to float32 becomes float32.
With ``precision="bfloat16"``, the input of a convolution becomes bfloat16. Scale and mean move into the weights where
no output reads padding, which is zero after the mean is subtracted; or if the mean is zero. Then pixels are written as
they are, which bfloat16 represents exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import PRECISION_BF16, Target
from cpuconv.elements import BF16, F32, S8, S32, U8
from cpuconv.graph import ops
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.passes.halves import wide_name
from cpuconv.images.image import Image
from cpuconv.images.preprocessing import Numbers
from cpuconv.kernels.emit.product import product_of
from cpuconv.problem.types import Types

_NEAR_TIE = 5e-5  # of a step: distance from .5 within which float32 may round to the other side
_INT8 = (S8.dtype, U8.dtype)
_NOT_PADDED = ("NOTSET", "VALID")


def folded(graph: Graph, images: Any, target: Target) -> tuple[Graph, dict[str, Numbers]]:
    """The graph with inputs of other types, and the scale and shift per channel of each such input."""
    made: dict[str, Numbers] = {}
    for name, image in images.items() if isinstance(images, Mapping) else ():
        value = graph.value(name)
        shape = value.shape or ()
        axis = next((axis for axis in (1, 3) if len(shape) == 4 and shape[axis] in (1, 3)), None)
        known = name in graph.inputs and value.dtype in (F32.dtype, U8.dtype) and not graph.is_output(name)
        if axis is None or not known or not isinstance(image, Image):
            continue  # refused, or taken as it is
        channels = int(shape[axis] or 0)
        image.check_channels(channels, f"images[{name!r}]")
        stated = np.array(image.numbers(channels))
        pixels = np.concatenate([np.repeat(np.arange(256)[:, None], channels, 1), stated[None, :, 0]])
        numbers, widened = stated[:, 1:], _widened(graph, name, pixels, stated[:, 1:])
        if value.dtype == U8.dtype and widened is None:
            continue
        graph = widened or graph
        found = _quantised(graph, name, pixels, numbers, target)
        if found is None and axis == 1:
            found = _rounded(graph, name, numbers, target)
        if found is not None:
            graph, numbers = found
        if found is not None or widened is not None:
            made[name] = tuple((float(scale), float(shift)) for scale, shift in numbers)
    return graph, made


def _without(graph: Graph, name: str, dtype: np.dtype) -> Graph:
    """The graph without the readers of an input, which has their results and this dtype."""
    readers = graph.users(name)
    names = {node.outputs[0]: name for node in readers}
    gone = {id(node) for node in readers}
    nodes = tuple(node.reads(names) for node in graph.nodes if id(node) not in gone)
    return replace(graph, nodes=nodes, values={**graph.values, name: Value(graph.value(name).shape, dtype)})


def _widened(graph: Graph, name: str, pixels: np.ndarray, numbers: np.ndarray) -> Graph | None:
    """The graph whose input is float32 in place of uint8; None unless Cast alone reads it, and nothing is rounded.

    `pixels` are all values of pixels and the fill value, per channel.
    """
    casts = [node for node in graph.users(name) if node.op == "Cast" and node["to"] == F32.dtype]
    if graph.value(name).dtype != U8.dtype or len(casts) != len(graph.users(name)):
        return None
    made = pixels * numbers[:, 0] + numbers[:, 1]
    rounded = (made != np.clip(np.rint(made), 0, 255)).any() or any(graph.is_output(node.outputs[0]) for node in casts)
    return None if rounded else _without(graph, name, F32.dtype)


def _quantised(
    graph: Graph, name: str, pixels: np.ndarray, numbers: np.ndarray, target: Target
) -> tuple[Graph, np.ndarray] | None:
    """The graph without the QuantizeLinear of an input; None if other nodes read it, or roundings might differ."""
    readers = graph.users(name)
    forms = {_step_of(graph, node, name) for node in readers}
    if len(forms) != 1 or (form := forms.pop()) is None:
        return None
    step, zero, dtype = form
    made = np.stack([numbers[:, 0] / step, numbers[:, 1] / step + zero], 1)
    ends = np.iinfo(dtype)
    steps = np.clip(pixels * made[:, 0] + made[:, 1], ends.min, ends.max)
    if not (np.abs(steps - np.floor(steps) - 0.5) > _NEAR_TIE).all():
        return None
    graph = _without(graph, name, dtype)
    product = product_of(Types(U8, S8, S32, S32), target.isa)
    wanted = S8 if product is not None and product.x == S8 else U8
    moved = None if dtype == wanted.dtype else _of_other_sign(graph, name, wanted.dtype)
    if moved is None:
        return graph, made
    return moved, made + [0, 128 if wanted == U8 else -128]


def _step_of(graph: Graph, node: Node, name: str) -> tuple[float, int, np.dtype] | None:
    """Scale, zero point and dtype of a QuantizeLinear of `name` per tensor; None for other nodes."""
    if node.op != "QuantizeLinear" or node.semantics is not None or graph.is_output(node.outputs[0]):
        return None
    scale, zero = (graph.constants.get(each) for each in (*node.inputs[1:], "", "")[:2])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or zero.dtype not in _INT8:
        return None
    if node.inputs[0] != name or not {*node.inputs[1:]}.isdisjoint(graph.defaults) or not scale.item() > 0:
        return None
    return float(scale.item()), int(zero.item()), zero.dtype


def _of_other_sign(graph: Graph, name: str, dtype: np.dtype) -> Graph | None:
    """The graph whose input has the other signedness, if only DequantizeLinear with zero points reads it."""
    readers, constants, nodes = graph.users(name), {}, []
    for node in readers:
        zero = graph.constants.get(node.inputs[2]) if node.op == "DequantizeLinear" and len(node.inputs) > 2 else None
        if zero is None or node.semantics is not None:
            return None
        other = f"{node.inputs[2]} of {name}"
        constants[other] = (zero.astype(np.int16) + (128 if dtype == U8.dtype else -128)).astype(dtype)
        nodes.append(node.reads({node.inputs[2]: other}))
    return graph.replaced(readers, nodes, constants, {name: Value(graph.value(name).shape, dtype)})


def _rounded(graph: Graph, name: str, numbers: np.ndarray, target: Target) -> tuple[Graph, np.ndarray] | None:
    """The graph whose input is bfloat16; None unless a convolution that multiplies bfloat16 reads it alone."""
    readers, multiplies = graph.users(name), any(dot.x == BF16 for dot in target.isa.dots)
    if target.precision != PRECISION_BF16 or target.node_precisions or not multiplies or len(readers) != 1:
        return None
    (node,) = readers
    weights = None if node.op != "Conv" or node.semantics is not None else _weights(graph, node)
    if weights is None:
        return None
    weight, bias = weights
    wide, constants = wide_name(name), {}
    operands = [wide, *node.inputs[1:]]
    shifts = numbers[:, 1].any()
    if not shifts or not any(node["pads"] or ()) and node["auto_pad"] in _NOT_PADDED:
        groups = node["group"]
        by_group = weight.astype(np.float64).reshape(groups, -1, *weight.shape[1:])
        scale, shift = numbers.T.reshape(2, groups, 1, -1, 1, 1)
        operands[1] = f"{node.inputs[1]} of {name}"
        constants[operands[1]] = (by_group * scale).reshape(weight.shape).astype(np.float32)
        if shifts:
            total = (by_group * shift).sum(axis=(2, 3, 4)).ravel() + (0 if bias is None else bias)
            operands[2:] = [f"bias of {name}"]
            constants[operands[2]] = total.astype(np.float32)
        numbers = np.array([(1.0, 0.0)] * len(numbers))
    value = graph.value(name)
    cast = ops.TABLE["Cast"].node([name], [wide], name, to=F32.dtype)
    conv = replace(node, inputs=tuple(operands))
    values = {name: Value(value.shape, BF16.outside), wide: value}
    return graph.replaced([node], [cast, conv], constants, values), numbers


def _weights(graph: Graph, node: Node) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Constant weights (outputs, inputs, height, width) and bias of a convolution that no caller can replace."""
    names = [each for each in node.inputs[1:3] if each]
    arrays = [graph.constants.get(each) for each in names]
    first = arrays[0]
    if first is None or first.ndim != 4 or first.dtype != F32.dtype or not {*names}.isdisjoint(graph.defaults):
        return None
    if len(arrays) == 1:
        return first, None
    return None if arrays[1] is None else (first, arrays[1])
