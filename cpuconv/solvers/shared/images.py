"""Images of one pixel each, as the rows or the columns of one image, so that a tile has pixels of several.

Such are layers behind a global pooling that are written as convolutions, and squeeze-and-excitation in batches.
"""

from __future__ import annotations

from dataclasses import replace

from cpuconv.kernels.binding.steps import Operand, Operands
from cpuconv.problem.problem import ConvProblem


def are_pixels(problem: ConvProblem) -> bool:
    """Whether there are several images, each of one pixel that is multiplied once.

    Where something is added it must lie as the output does, which images of arrays that differ need not.
    """
    ones = (problem.h, problem.w, problem.r, problem.s) == (1, 1, 1, 1) and not any(problem.pads)
    return problem.n > 1 and ones and not problem.residual


def as_rows(problem: ConvProblem) -> ConvProblem:
    """One image of as many rows as there are images, where these are pixels."""
    return replace(problem, n=1, h=problem.n, stride=(1, 1)) if are_pixels(problem) else problem


def as_columns(problem: ConvProblem) -> ConvProblem:
    """One image of as many columns as there are images, where these are pixels."""
    return replace(problem, n=1, w=problem.n, stride=(1, 1)) if are_pixels(problem) else problem


def operands_as_rows(problem: ConvProblem, operands: Operands) -> Operands:
    """The operands of `as_rows`."""
    return _turned(operands, "h") if are_pixels(problem) else operands


def operands_as_columns(problem: ConvProblem, operands: Operands) -> Operands:
    """The operands of `as_columns`."""
    return _turned(operands, "w") if are_pixels(problem) else operands


def _turned(operands: Operands, axis: str) -> Operands:
    """The operands, whose images follow each other along an axis of the plane."""

    def view(operand: Operand) -> Operand:
        return replace(operand, strides=operand.strides._replace(**{axis: operand.strides.n}))

    return replace(operands, x=view(operands.x), y=view(operands.y))
