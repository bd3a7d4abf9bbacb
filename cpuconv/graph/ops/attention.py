"""Scaled dot-product attention: softmax(q k · scale + mask) v.

Source: Vaswani et al., "Attention Is All You Need" (2017); PyTorch's `scaled_dot_product_attention`. It is not ONNX's
operator: rewrites make it of matrix multiplications and Softmax. Keys are columns, as MatMul takes them. For integers,
they make QuantizedAttention.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.conv.choice.activation_products import fastest
from cpuconv.conv.choice.target import Target
from cpuconv.elements import BF16, F32, OF_DTYPE
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import EXACT, REQUIRED, Arrays, Inputs, Op, broadcast_shapes, given
from cpuconv.graph.ops.matrix import matmul_shape
from cpuconv.graph.ops.shaping import axis_order
from cpuconv.kernels.attention import int8_step
from cpuconv.kernels.attention.int8_step import attention_int8_step
from cpuconv.kernels.attention.step import IN_FLOAT32, AttentionProblem, attention_step, seconds, takes_bf16
from cpuconv.kernels.binding.steps import Ref, Step
from cpuconv.kernels.binding.tensor_view import DENSE, FLOAT32, STRIDED, TensorView, stored_as
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.emit.product import Product
from cpuconv.kernels.products.matmul_int8 import MOST, contiguous
from cpuconv.problem.attention import QuantizedAttention, attention


def _shape(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the result before its axes are permuted."""
    return matmul_shape(matmul_shape(q, k), v)


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    q, k, v, *masks = inputs
    scores = matmul_shape(q.shape, k.shape)
    for mask in filter(None, masks):
        if broadcast_shapes(scores, mask.shape) != scores or mask.shape[-1:] != scores[-1:]:
            raise ValueError(f"a mask of shape {mask.shape} does not broadcast to scores of shape {scores}")
    shape = _shape(q.shape, k.shape, v.shape)
    if node["perm"] is not None:
        shape = tuple(shape[axis] for axis in axis_order(node, len(shape)))
    return [Value(shape, node.attributes.get("y", q.dtype))]


def _reference(node: Node, arrays: Arrays) -> np.ndarray:
    q, k, v, mask = *arrays[:3], given(arrays, 3)
    y = attention(q, k, v, mask, node["scale"], node["zero_rows"])
    return y if node["perm"] is None else y.transpose(node["perm"])


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offers of float32 products, or of the fastest kind that accuracy and precision permit.

    Where operands are rounded to bfloat16, queries, keys and values may be bfloat16, and the result, if its rows stay
    the last axis.
    """
    if inputs[0].dtype != FLOAT32 or any(0 in each.shape for each in inputs if each is not None):
        return []
    shapes = [each.shape for each in inputs[:3]]

    def time(*kinds: Product, x: str = STRIDED, y: str = DENSE) -> float:
        read, written = stored_as(x, FLOAT32), stored_as(y, FLOAT32)
        q, k, v = (TensorView.plain(Ref(""), shape, read) for shape in shapes)
        result = TensorView.plain(Ref(""), _shape(*shapes), written)
        return seconds(target, AttentionProblem.of(q, k, v, None, result, node["scale"]), kinds)

    (least, detail), perm = fastest(target, time, shapes[2][-2], attention=True), node["perm"]
    if detail is None or not detail.rounds:
        return [Offer((*[STRIDED] * 3, DENSE)[: len(inputs)], (DENSE,), least, detail)]
    goals = target.forms(DENSE) if perm is None or perm[-1] == len(perm) - 1 else (DENSE,)
    return [
        Offer((*[read] * 3, DENSE)[: len(inputs)], (written,), time(*detail.kinds, x=read, y=written), detail)
        for read, written in itertools.product(target.forms(STRIDED), goals)
    ]


def _dense(call: Call, view: TensorView, steps: list[Step]) -> TensorView:
    """Copy a tensor to contiguous workspace; append the calls to `steps`."""
    copy = TensorView.plain(call.space.reserve(view.size), view.shape, view.dtype)
    steps += move_tensor(call.target, call.space, view, copy)
    return copy


def _result(call: Call) -> TensorView:
    """View the result with its axes as before the permutation."""
    y, perm = call.y, call.node["perm"]
    axes = range(len(y.shape)) if perm is None else [perm.index(axis) for axis in range(len(perm))]
    return replace(y, shape=tuple(y.shape[axis] for axis in axes), strides=tuple(y.strides[axis] for axis in axes))


def _lower(call: Call) -> list[Step]:
    q, k, v, mask = (call.given(at) for at in range(4))
    assert q is not None and k is not None and v is not None
    y, steps = _result(call), list[Step]()
    if mask is not None and mask.strides[-1] != F32.bytes:
        mask = _dense(call, mask, steps)
    form = call.node["scale"], call.node["zero_rows"]
    problem = AttentionProblem.of(q, k, v, mask, y, *form)
    if BF16 in (problem.x_type, problem.y_type) and not takes_bf16(problem):
        q, k, v = (_dense(call, view, steps) for view in (q, k, v))
        problem = AttentionProblem.of(q, k, v, mask, y, *form)
    detail = call.offer.detail
    kinds = detail.kinds if detail and takes_bf16(problem) else IN_FLOAT32
    return [*steps, attention_step(call.target, call.space, problem, kinds)]


# --- quantised ------------------------------------------------------------------------------------------------------


def _given(node: Node, operands: Sequence[Any]) -> QuantizedAttention:
    return QuantizedAttention.of(node.attributes, [each.dtype for each in operands[:3]], len(operands) - 3)


def _infer_quantised(node: Node, inputs: Inputs) -> list[Value]:
    _given(node, inputs)
    values, perm = _infer(node, inputs), node["perm"]
    if any(len(each.shape) < 2 for each in inputs[:3]) or perm is not None and perm[-1] != len(perm) - 1:
        raise ValueError("operands must be matrices, and rows of the result its last axis")
    return values


def _quantised_reference(node: Node, arrays: Arrays) -> np.ndarray:
    q, k, v, *masks = arrays
    y = _given(node, arrays).result(q, k, v, masks)
    return y if node["perm"] is None else y.transpose(node["perm"])


def _offers_quantised(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    q, k, v, *masks = (each.shape for each in inputs)
    if any(0 in shape for shape in (q, k, v)) or any(shape[-1] > MOST for shape in (q, k)):
        return []
    time = int8_step.seconds(target, q, k, v, len(masks), OF_DTYPE[node["y"]])
    return [Offer((*[STRIDED] * 3, *[DENSE] * len(masks)), (DENSE,), time)]


def _lower_quantised(call: Call) -> list[Step]:
    q, k, v, *masks = (each for each in call.inputs if each is not None)
    steps: list[Step] = []
    axes = (1, 2, 2, *[1] * len(masks))
    made = (contiguous(call.target, call.space, *each, steps) for each in zip((q, k, v, *masks), axes, strict=True))
    q, k, v, *masks = made
    return [
        *steps,
        attention_int8_step(call.target, call.space, (q, k, v), masks, _result(call), _given(call.node, call.inputs)),
    ]


_NUMBERS = {"scales": REQUIRED, "zero_points": REQUIRED, "score_type": REQUIRED, "weight_type": REQUIRED, "y": REQUIRED}
_INTEGERS = "q: uint8|int8, k: uint8|int8, v: uint8|int8, mask*: float32 -> y: uint8|int8|float32"

OPS = (
    Op(
        "ScaledDotProductAttention",
        _infer,
        _reference,
        {"scale": 1.0, "perm": None, "zero_rows": ""},
        offers=_offers,
        lower=_lower,
        signature="q: float32, k: float32, v: float32, mask?: float32 -> y: float32",
        own=True,
        product=True,
    ),
    Op(
        "QuantizedAttention",
        _infer_quantised,
        _quantised_reference,
        {**_NUMBERS, "perm": None},
        **EXACT,
        offers=_offers_quantised,
        lower=_lower_quantised,
        signature=_INTEGERS,
        own=True,
    ),
)
