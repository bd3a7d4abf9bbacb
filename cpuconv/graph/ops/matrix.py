"""Matrix multiplication.

Source: ONNX operators Gemm, MatMul and Einsum. Integers are multiplied exactly. Linear is not ONNX's: rewrites make it
of matrix multiplications with constant weights. It runs as a convolution of an image whose pixels are the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.conv.choice.activation_products import fastest
from cpuconv.conv.choice.layout_candidates import in_own_layouts, restored
from cpuconv.conv.choice.rows import of_rows, rows_operand, rows_problem
from cpuconv.conv.choice.target import PRECISION_BF16, Target
from cpuconv.conv.recipe import padded_bias
from cpuconv.elements import BF16, F16, F32, Element, represents_exactly
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Op, broadcast_shapes, given
from cpuconv.graph.ops.solver_calls import offer, steps
from cpuconv.isa.features import rounds_to_half
from cpuconv.kernels.binding.steps import Operands, Step
from cpuconv.kernels.binding.tensor_view import DENSE, FLOAT32, STRIDED
from cpuconv.kernels.emit.product import FMA, Product
from cpuconv.kernels.products import matmul_pairs
from cpuconv.kernels.products.matmul import matmul_step, seconds
from cpuconv.kernels.products.matmul_pairs import bf16_matmul_step
from cpuconv.kernels.products.matrices import MatmulProblem, sizes_of
from cpuconv.kernels.products.matvec import linear_step, packing
from cpuconv.problem import activation as activations
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Output shape by NumPy's rules: vectors are a row on the left and a column on the right, batches broadcast."""
    if a[-1] != b[-2 if len(b) > 1 else 0]:
        raise ValueError("the inner sizes differ")
    return (*broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _infer_matmul(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(matmul_shape(inputs[0].shape, inputs[1].shape), inputs[0].dtype)]


def _infer_gemm(node: Node, inputs: Inputs) -> list[Value]:
    a, b, c = *inputs[:2], given(inputs, 2)
    left = a.shape[::-1] if node["transA"] else a.shape
    right = b.shape[::-1] if node["transB"] else b.shape
    if len(left) != 2 or len(right) != 2:
        raise ValueError("both operands must be matrices")
    shape = matmul_shape(left, right)
    if c is not None and broadcast_shapes(shape, c.shape) != shape:
        raise ValueError(f"the third does not broadcast to {shape}")
    return [Value(shape, a.dtype)]


def gemm(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute alpha A B + beta C, with A and B transposed by their attributes."""
    a, b, c = *arrays[:2], given(arrays, 2)
    y = node["alpha"] * ((a.T if node["transA"] else a) @ (b.T if node["transB"] else b))
    return y if c is None else y + node["beta"] * c


def _infer_einsum(node: Node, inputs: Inputs) -> list[Value]:
    """Infer the sizes of the output's letters; the axes of an ellipsis broadcast."""
    operands, arrow, result = node["equation"].replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    stacks = []
    for term, value in zip(operands.split(","), inputs, strict=True):
        before, dots, behind = term.partition("...")
        end = len(value.shape) - len(behind)
        stacks.append(value.shape[len(before) : end] if dots else ())
        named = (*value.shape[: len(before)], *value.shape[end:]) if dots else value.shape
        for letter, size in zip(before + behind, named, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(f"the axis {letter!r} has sizes {sizes[letter]} and {size}")
    if not arrow:
        result = "..." + "".join(sorted(letter for letter in sizes if operands.count(letter) == 1))
    before, dots, behind = result.partition("...")
    stack = broadcast_shapes(*stacks) if dots else ()
    return [Value((*map(sizes.get, before), *stack, *map(sizes.get, behind)), inputs[0].dtype)]


def matmul_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer for MatMul of two activations, with any strides."""
    a, b, c = *inputs[:2], given(inputs, 2)
    scaled = c is not None or node.attributes.get("alpha", 1.0) != 1.0
    weights = b.array is not None and len(b.shape) == 2  # of Linear
    if scaled or weights or a.dtype != FLOAT32 or 0 in a.shape + b.shape:
        return []
    transposed, forms = _transposed(node), (STRIDED, STRIDED, *[""] * (len(inputs) - 2))
    sizes = sizes_of(a.shape, b.shape, transposed)

    def time(kind: Product) -> float:
        return seconds(target, *sizes, transposed[1]) if kind == FMA else matmul_pairs.seconds(target, *sizes, kind)

    return [Offer(forms, (DENSE,), *fastest(target, time, sizes[2]))]


def _transposed(node: Node) -> tuple[bool, bool]:
    """Whether each operand is transposed."""
    return bool(node.attributes.get("transA", 0)), bool(node.attributes.get("transB", 0))


def lower_matmul(call: Call) -> list[Step]:
    """Make one kernel call for the whole batch."""
    a, b, *_ = call.inputs
    assert a is not None and b is not None
    product = MatmulProblem.of(a, b, call.y, _transposed(call.node))
    detail = call.offer.detail
    narrowed = bf16_matmul_step(call.target, call.space, product, *detail.kinds) if detail else None
    return [narrowed or matmul_step(call.target, call.space, product)]


def infer_linear(node: Node, inputs: Inputs) -> list[Value]:
    """Infer rows with as many columns as the weights."""
    x, w, bias, residual = *inputs[:2], given(inputs, 2), given(inputs, 3)
    if len(w.shape) != 2 or x.shape[-1] != w.shape[0]:
        raise ValueError("the inner sizes differ")
    shape = (*x.shape[:-1], w.shape[1])
    if (bias is not None and bias.shape != shape[-1:]) or (residual is not None and residual.shape != shape):
        raise ValueError(f"the residual does not broadcast to {shape}")
    return [Value(shape, x.dtype)]


def linear(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute activation(x W + bias + residual): (..., K) times (K, N)."""
    x, w, bias, residual = *arrays[:2], given(arrays, 2), given(arrays, 3)
    y = x @ w
    y = y if bias is None else y + bias
    return activations.apply(y if residual is None else y + residual, node["activation"])


def _has_kernel(inputs: Inputs) -> bool:
    x, w, bias = *inputs[:2], given(inputs, 2)
    known = w.array is not None and (bias is None or bias.array is not None)
    return x.dtype == FLOAT32 and known and 0 not in x.shape + w.shape


def _is_stream(inputs: Inputs) -> bool:
    """Whether there is a single row, for which weights are read only once."""
    shape = inputs[0].shape
    return len(shape) > 1 and math.prod(shape[:-1]) == 1


def _stored_as(weights: np.ndarray, target: Target) -> Element:
    """Smallest type that holds the weights exactly; else the type to which the target's precision rounds them."""
    able = (F16, BF16) if rounds_to_half() else (BF16,)
    exact = (each for each in able if represents_exactly(each, weights))
    return next(exact, BF16 if target.precision == PRECISION_BF16 else F32)


@dataclass(frozen=True)
class Streamed:
    """Detail of an offer for a single row, with the type in which the weights are stored."""

    w: Element

    @property
    def multiplied(self) -> str:
        """Types of the multiplication, if they are not all float32."""
        return "" if self.w == F32 else f"{F32}:{self.w}:{F32}"

    def recorded(self) -> dict[str, str]:
        """Plain values that `restored_linear` reads."""
        return {"weights": self.w.name}


def _stream(inputs: Inputs, target: Target, w: Element) -> Offer:
    forms = (DENSE, "", "", DENSE if given(inputs, 3) is not None else "")
    seconds = target.moving(math.prod(inputs[1].shape) * w.bytes)
    return Offer(forms[: len(inputs)], (DENSE,), seconds, Streamed(w))


def _rows(node: Node, inputs: Inputs) -> ConvProblem:
    added = given(inputs, 3) is not None
    return rows_problem(inputs[0].shape, inputs[1].shape[1], activation=node["activation"], residual=added)


def linear_offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offers with rows of channels as input and output; a single row streams the weights."""
    if not _has_kernel(inputs):
        return []
    if _is_stream(inputs):
        return [_stream(inputs, target, _stored_as(inputs[1].array, target))]
    return [offer(in_own_layouts(problem, target), inputs) for problem in of_rows(_rows(node, inputs), target)]


def restored_linear(node: Node, inputs: Inputs, target: Target, record: Mapping[str, Any], same: bool) -> Offer | None:
    """Restore the offer of a record."""
    if not _has_kernel(inputs):
        return None
    if _is_stream(inputs):  # the type of weights is not searched again: that would read them all
        w = next((each for each in (F32, BF16, F16) if record.get("weights") == each.name), None)
        return None if w is None else _stream(inputs, target, w)
    known = (restored(problem, target, record, same) for problem in of_rows(_rows(node, inputs), target))
    found = next(filter(None, known), None)
    return None if found is None else offer(found, inputs)


def lower_linear(call: Call) -> list[Step]:
    """Make the solver's kernel calls, or that of a single row."""
    if not isinstance(call.offer.detail, Streamed):
        return rows_steps(call)
    x, w, bias, residual = (call.given(at) for at in range(4))
    assert x is not None and w is not None and w.array is not None
    element = call.offer.detail.w
    form, weight = packing(call.target.isa, *w.shape, w=element), w.array.T[:, :, None, None]
    matrix = call.constants.packed(
        call.node.inputs[1], ("transposed", 1, form), lambda: form.pack(weight, call.target.threads)
    )
    kept = call.constants.keep(padded_bias(w.shape[1], bias.array if bias else None))
    activation = activations.normalize(call.node["activation"])
    return [linear_step(call.target, x, matrix, call.outputs[0], kept, residual, activation, element)]


def rows_steps(call: Call, quantization: Quantization | None = None) -> list[Step]:
    """Make the solver's kernel calls for a convolution whose pixels are rows."""
    x, w, bias, residual = (call.given(at) for at in range(4))
    assert x is not None and w is not None and w.array is not None
    operands = Operands(rows_operand(x), rows_operand(call.y), rows_operand(residual) if residual else None)
    weight, known = w.array.T[:, :, None, None], bias.array if bias else None
    return steps(call, operands, weight, known, "transposed", quantization)


def einsum(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute sums of products as the equation states."""
    return np.einsum(node["equation"], *arrays, optimize=True)


_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
_MATMUL: dict[str, Any] = {"offers": matmul_offers, "lower": lower_matmul, "product": True}
_SOLVED: dict[str, Any] = {"offers": linear_offers, "restored": restored_linear, "lower": lower_linear}
_TENSORS = "a: float32, b: float32 -> y: float32"
_ROWS = "x: float32 (R... K), w: float32 (K N), bias?: float32 (N), added?: float32 (R... N) -> y: float32 (R... N)"
_SOLVED |= {"signature": _ROWS, "product": True, "rowwise": True}

OPS = (
    Op("MatMul", _infer_matmul, lambda node, arrays: arrays[0] @ arrays[1], **_MATMUL, signature=_TENSORS),
    Op("Gemm", _infer_gemm, gemm, _GEMM, **_MATMUL, signature=_TENSORS),
    Op("Linear", infer_linear, linear, {"activation": None}, **_SOLVED, own=True),
    Op("Einsum", _infer_einsum, einsum, {"equation": REQUIRED}, product=True),
)
