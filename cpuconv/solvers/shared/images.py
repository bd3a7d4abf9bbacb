"""A batch of images of one pixel each, viewed as rows or columns of one image, so that a tile covers several images.

They occur in layers after global pooling that are written as convolutions, and in squeeze-and-excitation in batches.
"""

from __future__ import annotations

from dataclasses import replace

from cpuconv.kernels.binding.steps import Operand, Operands
from cpuconv.problem.problem import ConvProblem


def are_pixels(problem: ConvProblem) -> bool:
    """Whether there are several images, and each has one pixel and one window position.

    A residual must have the strides of the output; batches of different arrays may differ.
    """
    ones = (problem.h, problem.w, problem.r, problem.s) == (1, 1, 1, 1) and not any(problem.pads)
    return problem.n > 1 and ones and not problem.residual


def as_rows(problem: ConvProblem) -> ConvProblem:
    """View the images of one pixel as the rows of one image."""
    return replace(problem, n=1, h=problem.n, stride=(1, 1)) if are_pixels(problem) else problem


def as_columns(problem: ConvProblem) -> ConvProblem:
    """View the images of one pixel as the columns of one image."""
    return replace(problem, n=1, w=problem.n, stride=(1, 1)) if are_pixels(problem) else problem


def operands_as_rows(problem: ConvProblem, operands: Operands) -> Operands:
    """Operands of the problem of `as_rows`."""
    return _along(operands, "h") if are_pixels(problem) else operands


def operands_as_columns(problem: ConvProblem, operands: Operands) -> Operands:
    """Operands of the problem of `as_columns`."""
    return _along(operands, "w") if are_pixels(problem) else operands


def _along(operands: Operands, axis: str) -> Operands:
    """Operands whose images are adjacent along an axis of the plane."""

    def view(operand: Operand) -> Operand:
        return replace(operand, strides=operand.strides._replace(**{axis: operand.strides.n}))

    return replace(operands, x=view(operands.x), y=view(operands.y))
