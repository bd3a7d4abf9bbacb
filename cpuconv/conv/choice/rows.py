"""Matrix multiplications as 1x1 convolutions: the rows of the left operand are the pixels of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cpuconv.conv.choice.layout_candidates import solvable
from cpuconv.conv.choice.target import Target
from cpuconv.elements import F32, Element
from cpuconv.kernels.binding.steps import Operand
from cpuconv.kernels.binding.tensor_view import TensorView, narrow_element
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from layouts import Strides


def rows_problem(shape: Sequence[int], columns: int, **fields: Any) -> ConvProblem:
    """The 1x1 convolution that multiplies rows, an operand of `shape`, by a matrix with `columns` columns.

    The first of several axes is the height, the others are the width. One row is one pixel.
    """
    *rows, depth = shape
    high, wide = (rows[0], math.prod(rows[1:])) if len(rows) > 1 else (1, math.prod(rows))
    layout = "NHWC" if high * wide > 1 else "NCHW"
    return ConvProblem(1, depth, high, wide, columns, 1, 1, in_layout=layout, out_layout=layout, **fields)


def rows_operand(place: TensorView) -> Operand:
    """Convert rows to the pixels of an image."""
    if math.prod(place.shape[:-1]) == 1:  # strides of a single pixel are irrelevant: use those of a dense plane
        h = w = place.dtype.itemsize
    else:
        h, w = place.strides[0], place.strides[-2]
    return Operand(place.ref, Strides(place.size, 1, place.strides[-1], 0, h, w))


def of_rows(problem: ConvProblem, target: Target, results: Sequence[Element] | None = None) -> list[ConvProblem]:
    """The problem in float32, and with bfloat16 or float16 rows if the target allows that and kernels support it.

    `results` are the types of its output with these, by default float32 and that of the rows. Sums with a residual stay
    float32: it is the sum of many layers, whose roundings would add up.
    """
    x = narrow_element(target.blocks())
    if problem.types != ALL_F32 or problem.in_layout != "NHWC" or x is None:
        return [problem]
    outputs = (y for y in results or (F32, x) if y == F32 or not problem.residual)
    narrow = (replace(problem, types=Types(x, x, F32, y)) for y in outputs)
    return [problem, *filter(solvable, narrow)]
