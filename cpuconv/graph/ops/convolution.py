"""Convolution and its transpose, over any number of spatial axes.

Source: ONNX operators Conv and ConvTranspose. Both are sums over the taps of a window. A convolution reads the input
through the window, a transposed convolution writes its output through it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.conv.choice.layout_candidates import layout_candidates, restored, solvable
from cpuconv.conv.choice.target import Target
from cpuconv.conv.embedded import with_computed_weights
from cpuconv.elements import OF_DTYPE, S32
from cpuconv.errors import ArgumentError
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import EXACT, REQUIRED, Arrays, Inputs, Op, given
from cpuconv.graph.ops.solver_calls import offer, steps
from cpuconv.kernels.binding.steps import Operands, Step
from cpuconv.kernels.binding.tensor_view import CHANNELS_LAST, TensorView, image_shape
from cpuconv.problem import activation as activations
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.quantized_epilogue import apply_epilogue
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.problem.window import Window, split_padding, stated_pads
from cpuconv.symbolic.sizes import is_symbolic


def output_of(
    node: Node, x: tuple[int, ...], w: tuple[int, ...], bias: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Infer the shape of a convolution's output.

    Raises
    ------
    ValueError
        Shapes or attributes are inconsistent.
    """
    if len(x) != len(w) or tuple(node["kernel_shape"] or w[2:]) != w[2:]:
        raise ValueError(f"a kernel of {node['kernel_shape']} and weights {w}")
    if x[1] != w[1] * node["group"] or w[0] % node["group"]:
        raise ValueError(f"{x[1]} channels and weights {w} in {node['group']} groups")
    _check_bias(bias, w[0])
    return (x[0], w[0], *Window.of(node.attributes, x[2:], w[2:]).outputs)


def _check_bias(bias: tuple[int, ...] | None, channels: int) -> None:
    if bias is not None and bias != (channels,):
        raise ValueError(f"a bias of shape {bias} for {channels} channels")


def _infer_conv(node: Node, inputs: Inputs) -> list[Value]:
    x, w, bias, residual = *inputs[:2], given(inputs, 2), given(inputs, 3)
    shape = output_of(node, x.shape, w.shape, bias and bias.shape)
    if residual is not None and residual.shape != shape:
        raise ValueError(f"the residual is not of shape {shape}")
    return [Value(shape, x.dtype)]


def convolved(node: Node, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Compute y[n, k, o] = sum over c, t of w[k, c, t] x[n, c, o * stride + t * dilation - pad], within groups."""
    window = Window.of(node.attributes, x.shape[2:], w.shape[2:])
    n, groups, k = len(x), node["group"], len(w)
    image = x.reshape(n, groups, w.shape[1], *x.shape[2:])
    taps = w.reshape(groups, k // groups, w.shape[1], *w.shape[2:])
    y = np.zeros((n, groups, k // groups, *window.outputs), x.dtype)
    for tap, out, read in window.taps():
        y[out] += _mixed(taps[tap], image[read])
    return y.reshape(n, k, *window.outputs)


def conv(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute activation(convolution + bias + residual).

    The residual is the optional fourth input. The attribute `activation` is one of `cpuconv.problem.activation`. ONNX
    has neither; graph rewrites add them.
    """
    bias, residual = given(arrays, 2), given(arrays, 3)
    y = _biased(convolved(node, *arrays[:2]), bias)
    return activations.apply(y if residual is None else y + residual, node["activation"])


def problem_of(node: Node, inputs: Inputs) -> ConvProblem | None:
    """Convert a node to a 1-D or 2-D convolution problem; None if it is none, its bias is computed, or its weights are
    computed and not float32 or of open sizes."""
    x, w, bias = *inputs[:2], given(inputs, 2)
    types = ALL_F32
    if node.op == "QuantizedConv":
        types = Types(OF_DTYPE[x.dtype], OF_DTYPE[w.dtype], S32, OF_DTYPE[node["y"]])
    if x.dtype != types.x.outside or (bias is not None and bias.array is None):
        return None
    if w.array is None and (types != ALL_F32 or any(map(is_symbolic, (*w.shape, node["group"]))) or 0 in w.shape):
        return None
    if len(x.shape) not in (3, 4) or not x.shape[0]:
        return None
    window = Window.of(node.attributes, x.shape[2:], w.shape[2:])
    n, c, h, width = image_shape(x.shape)
    k, _, r, s = image_shape(w.shape)
    (top, left), (bottom, right) = ((0, *ends)[-2:] for ends in (window.near, window.far))
    (step_h, step_w), (gap_h, gap_w) = ((1, *steps)[-2:] for steps in (window.strides, window.dilations))
    try:
        return ConvProblem(
            n, c, h, width, k, r, s,
            stride=(step_h, step_w),
            pads=(top, bottom, left, right),
            dilation=(gap_h, gap_w),
            groups=node["group"],
            activation=node["activation"],
            residual=given(inputs, 3) is not None,
            types=types,
        )  # fmt: skip
    except ArgumentError:  # an empty convolution, or negative padding
        return None


def conv_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offers in channel blocks or plain layouts for input and output; the residual has the output's form."""
    problem = problem_of(node, inputs)
    able = problem is not None and (problem.types == ALL_F32 or solvable(problem))
    if not able or problem is None:
        return []
    if inputs[1].array is not None:
        return [offer(each, inputs, CHANNELS_LAST) for each in layout_candidates(problem, target)]
    found = map(with_computed_weights, layout_candidates(problem, target))
    return [offer(each, inputs, CHANNELS_LAST) for each in found if each is not None]


def restored_conv(node: Node, inputs: Inputs, target: Target, record: Mapping[str, Any], same: bool) -> Offer | None:
    """Restore the offer of a record."""
    problem = problem_of(node, inputs)
    found = None if problem is None or inputs[1].array is None else restored(problem, target, record, same, free=True)
    return None if found is None else offer(found, inputs, CHANNELS_LAST)


def lower_conv(call: Call) -> list[Step]:
    """Make the solver's kernel calls."""
    x, w, bias, residual = (call.given(at) for at in range(4))
    assert x is not None and w is not None
    weight: np.ndarray | TensorView
    if w.array is None:
        weight = replace(w, strides=(*w.strides[:2], w.strides[2] if len(w.shape) == 4 else 0, w.strides[-1]))
    else:
        weight = w.array if len(w.shape) == 4 else w.array[:, :, None]
    operands = Operands(x.operand, call.outputs[0].operand, residual.operand if residual else None)
    scales = quantization(call.node) if call.node.op == "QuantizedConv" else None
    return steps(call, operands, weight, bias.array if bias else None, quantization=scales)


# --- quantised convolution ------------------------------------------------------------------------------------------


def _infer_quantized(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(_infer_conv(node, [*inputs[:2], None, None])[0].shape, node["y"])]


def quantization(node: Node) -> Quantization:
    """Quantization of a QuantizedConv or QuantizedLinear."""
    numbers = {name: node[name] for name in SCALES}
    alone = {name: value.item() for name, value in numbers.items() if isinstance(value, np.ndarray) and value.size == 1}
    return Quantization(**numbers | alone)


def quantized_conv(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute an integer convolution and its epilogue: scales, bias, residual and activation, to type `y`.

    The operator is not ONNX's. Zero points of weights are subtracted beforehand; an int32 bias is in units of sums.
    """
    x, w, bias, residual = (given(arrays, at) for at in range(4))
    problem = problem_of(node, [value if value is None else Value.of(value) for value in arrays])
    if problem is None:
        raise ValueError("the operands do not form an integer convolution with this epilogue")
    sums = convolved(node, x.astype(np.float64) - node["x_zero_point"], w.astype(np.float64)).astype(np.int64)
    added = residual if residual is None else residual.reshape(problem.out_shape)
    return apply_epilogue(sums.reshape(problem.out_shape), bias, problem, added, quantization(node)).reshape(sums.shape)


def window_of_transpose(node: Node, x: tuple[int, ...], w: tuple[int, ...]) -> Window:
    """Window of the corresponding convolution, whose outputs are the node's inputs."""
    rank = len(x) - 2
    strides, dilations = tuple(node["strides"] or [1] * rank), tuple(node["dilations"] or [1] * rank)
    extra = node["output_padding"] or [0] * rank
    reach = [(taps - 1) * gap + 1 for taps, gap in zip(w[2:], dilations, strict=True)]
    full = [
        (size - 1) * step + span + more for size, step, span, more in zip(x[2:], strides, reach, extra, strict=True)
    ]
    sizes = node["output_shape"] and node["output_shape"][-rank:]
    if not sizes and node["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
        sizes = [size * step for size, step in zip(x[2:], strides, strict=True)]
    if sizes:
        total = [all_ - size for all_, size in zip(full, sizes, strict=True)]
        near, far = split_padding(total, node["auto_pad"] != "SAME_UPPER")
    else:
        near, far = stated_pads(node.attributes, rank)
        sizes = [all_ - a - b for all_, a, b in zip(full, near, far, strict=True)]
    if any(size < 0 for size in sizes):
        raise ValueError(f"padding {(*near, *far)} is wider than the output")
    return Window(tuple(sizes), w[2:], strides, dilations, tuple(near), tuple(far), x[2:])


def _infer_transpose(node: Node, inputs: Inputs) -> list[Value]:
    x, w = inputs[:2]
    if x.shape[1] != w.shape[0] or w.shape[0] % node["group"]:
        raise ValueError(f"{x.shape[1]} channels and weights {w.shape} in {node['group']} groups")
    if tuple(node["kernel_shape"] or w.shape[2:]) != w.shape[2:]:
        raise ValueError(f"a kernel of {node['kernel_shape']} and weights {w.shape}")
    window = window_of_transpose(node, x.shape, w.shape)
    bias = given(inputs, 2)
    _check_bias(bias and bias.shape, w.shape[1] * node["group"])
    return [Value((x.shape[0], w.shape[1] * node["group"], *window.sizes), x.dtype)]


def conv_transpose(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute y[n, k, i * stride + t * dilation - pad] += w[c, k, t] x[n, c, i], within groups, + bias."""
    x, w, bias = *arrays[:2], given(arrays, 2)
    window = window_of_transpose(node, x.shape, w.shape)
    n, groups, k = len(x), node["group"], w.shape[1] * node["group"]
    image = x.reshape(n, groups, len(w) // groups, *x.shape[2:])
    taps = np.swapaxes(w.reshape(groups, len(w) // groups, *w.shape[1:]), 1, 2)
    y = np.zeros((n, groups, w.shape[1], *window.sizes), x.dtype)
    for tap, read, out in window.taps():
        y[out] += _mixed(taps[tap], image[read])
    return _biased(y.reshape(n, k, *window.sizes), bias)


def _mixed(weight: np.ndarray, patch: np.ndarray) -> np.ndarray:
    """Contribution of one tap: (groups, K', C') times (N, groups, C', spatial...), summed over C'."""
    n, groups, channels, *spatial = patch.shape
    product = np.ascontiguousarray(weight) @ patch.reshape(n, groups, channels, math.prod(spatial))
    return product.reshape(n, groups, weight.shape[1], *spatial)


def _biased(y: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    return y if bias is None else y + bias.reshape(-1, *[1] * (y.ndim - 2))


ATTRIBUTES = {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None}

_SOLVED: dict[str, Any] = {"offers": conv_offers, "restored": restored_conv, "lower": lower_conv}
_FLOATS = "x: float32 (N C P...), w: float32 (K D W...), bias?: float32 (K), added?: float32 (N K Q...)"
_FLOATS += " -> y: float32 (N K Q...)"
_INTEGERS = "x: uint8|int8 (N C P...), w: int8|int16 (K D W...), bias?: int32|float32 (K), added?: =y (N K Q...)"
_INTEGERS += " -> y: uint8|int8|int32|float32 (N K Q...)"

SCALES = {
    "x_scale": REQUIRED, "x_zero_point": 0, "w_scale": REQUIRED, "y_scale": None, "y_zero_point": 0,
    "residual_scale": None, "residual_zero_point": 0, "y_least": None, "y_most": None,
}  # fmt: skip
_QUANTIZED = {**ATTRIBUTES, "activation": None, "y": REQUIRED, **SCALES}
_STATED = {"output_padding": None, "output_shape": None}
_FLOAT: dict[str, Any] = {"product": True, "window": True}

OPS = (
    Op(
        "QuantizedConv", _infer_quantized, quantized_conv, _QUANTIZED, **EXACT, **_SOLVED, signature=_INTEGERS, own=True
    ),
    Op("Conv", _infer_conv, conv, {**ATTRIBUTES, "activation": None}, **_SOLVED, signature=_FLOATS, **_FLOAT),
    Op("ConvTranspose", _infer_transpose, conv_transpose, {**ATTRIBUTES, **_STATED}, **_FLOAT),
)
