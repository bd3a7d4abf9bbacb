"""Algorithms that compute in float32 and are bfloat16 outside at most: which types they take, and their weights."""

from __future__ import annotations

from cpuconv.elements import BF16, F32
from cpuconv.kernels.packing.packed_formats import Widened
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types


def why_not(types: Types) -> str | None:
    """Why operands of those types are not computed as float32, or None."""
    if types.sum != F32 or not {types.x, types.w, types.y} <= {F32, BF16}:
        return f"its operands are {F32} or {BF16}, not {types}"
    return None


def widened(problem: ConvProblem, form: Packing) -> Packing:
    """The form, for weights of the problem's element."""
    return Widened(form) if problem.types.w == BF16 else form
