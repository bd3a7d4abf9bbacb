"""Batched int8 MatMul of two activations: operands are widened to int16 less their zero points; sums are int32.

The kernel is that of `matmul_pairs`. Every x86 CPU has an instruction that multiplies and adds pairs of int16
(`vpmaddwd`, `vpdpwssd`), exact for all int8 and uint8. Sums are requantised or converted to float32 before they are
stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, S32, Element
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.copies.rounding import PAIR
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.product import as_seen, pair_product
from cpuconv.kernels.products.matmul_pairs import pairs_step
from cpuconv.kernels.products.matrices import MatmulProblem, sizes_of
from cpuconv.kernels.products.row_strips import best_tile
from cpuconv.kernels.products.widening import WidenTile, widen_rows
from cpuconv.problem.integers import divide
from cpuconv.problem.quantization import bounds

# maximum depth for which int32 holds the sums of any int8 or uint8 less their zero points
MOST = (1 << 31) // (255 * 255)
_WIDEN_CYCLES, _PACK_CYCLES = 1.5, 2.0  # per vector: to widen int8, and to store 32-bit groups to a panel
_CALL_CYCLES = 300.0  # overhead per matrix of the batch


@dataclass(frozen=True)
class Scales:
    """Quantisation: zero points of the operands, `factor` from int32 sums to results, and the results' zero point."""

    a_zero: int
    b_zero: int
    factor: float
    zero: int = 0


def seconds(processor: Processor, a: Sequence[int], b: Sequence[int], y: Element) -> float:
    """Modelled time of a MatMul of tensors of shapes `a` and `b`, in seconds."""
    isa = processor.isa
    stack, rows, depth, columns = sizes_of(tuple(a), tuple(b), (False, False))
    items, words, vectors = math.prod(stack), divide(depth, PAIR), divide(columns, isa.lanes)
    packing = _WIDEN_CYCLES * (rows * divide(depth, isa.lanes) + depth * vectors) + _PACK_CYCLES * words * vectors
    cycles = items * (best_tile(as_seen(isa, pair_product(isa)), rows, words, columns)[0] + packing + _CALL_CYCLES)
    moved = items * (rows * depth + depth * columns + rows * columns * y.bytes)
    return machine().seconds(cycles, processor.threads) + processor.moving(moved)


def int8_matmul_steps(
    processor: Processor, space: Space, a: TensorView, b: TensorView, y: TensorView, scales: Scales
) -> list[Step]:
    """Make the steps of an int8 MatMul with NumPy's semantics. Operands that are contiguous along none of their matrix
    axes are copied first.

    y is dense.
    """
    steps: list[Step] = []
    a = contiguous(processor, space, a, 1, steps)
    b = contiguous(processor, space, b, min(len(b.shape), 2), steps)
    work = MatmulProblem.of(a, b, y).merged
    given: Args = {
        "narrow_left": MicroRef(widen_rows, WidenTile(processor.isa.lanes, a.element)),
        "narrow_right": MicroRef(widen_rows, WidenTile(processor.isa.lanes, b.element)),
        "numbers": _numbers(processor.isa.lanes, y.element, scales),
        "left_zero": scales.a_zero,
        "right_zero": scales.b_zero,
    }
    instruction = pair_product(processor.isa)
    return [*steps, pairs_step(processor, space, work, instruction, given, x=a.element, y=y.element)]


def contiguous(processor: Processor, space: Space, x: TensorView, axes: int, steps: list[Step]) -> TensorView:
    """x if its elements are adjacent along one of the last `axes`; else a copy, whose calls are appended to `steps`."""
    if any(step == x.element.bytes or size == 1 for step, size in zip(x.strides[-axes:], x.shape[-axes:], strict=True)):
        return x
    copied = TensorView.plain(space.reserve(x.size), x.shape, x.dtype)
    steps += move_tensor(processor, space, x, copied)
    return copied


def _numbers(lanes: int, y: Element, scales: Scales) -> np.ndarray:
    """The rows of the epilogue's parameters, equal for all columns."""
    rows = {"bias": 0.0, "scale": scales.factor, "shift": 0.0, "zero": scales.zero}
    rows |= dict(zip(("low", "high"), (0, 0) if y == F32 else bounds(y), strict=True))
    made = np.array([rows[name] for name in Epilogue(S32, y).rows], np.float32)
    return np.repeat(made, lanes).view(np.int64)
