"""Algorithms that compute in float32, whatever floats are outside: which types they take, and their weights."""

from __future__ import annotations

from cpuconv.elements import F32
from cpuconv.kernels.packing.packed_formats import Widened
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types


def why_not(types: Types) -> str | None:
    """Why operands of those types are not computed as float32, or None."""
    if types.sum != F32 or any(each.integer for each in (types.x, types.w, types.y)):
        return f"its operands are floats, and sums {F32}, not {types}"
    return None


def widened(problem: ConvProblem, form: Packing) -> Packing:
    """The form, for weights of the problem's element."""
    return form if problem.types.w == F32 else Widened(form, problem.types.w)
