"""Minimum work of an algorithm on a problem: operations and bytes for the roofline.

Solvers define the operations and weights that they count; activations are the same for all.
"""

from __future__ import annotations

import math

from autotune.machine.roofline import DTYPE, Work
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import BF16, F16, F32, S8, S16, U8, Element
from cpuconv.problem.problem import ConvProblem

DTYPES: dict[Element, str] = {F32: DTYPE, F16: "float16", BF16: "bfloat16", U8: "int8", S8: "int8", S16: "int16"}
"""Data type by element, as roofs name the type in which it is multiplied."""


def work(problem: ConvProblem, candidate: Candidate) -> Work:
    """Operations and bytes of a candidate on a problem."""
    flops, weights = candidate.solver.least_work(problem, candidate.params)
    element = candidate.solver.multiplies or problem.types.x
    return Work(flops, touched_bytes(problem), weights, problem.out_bytes, DTYPES[element])


def work_of(problem: ConvProblem, name: str) -> Work | None:
    """Operations and bytes of a candidate given by name; None if no solver has this name."""
    try:
        return work(problem, Candidate.parse(name))
    except (ValueError, ArithmeticError):  # unknown solver, or invalid parameters
        return None


def touched_bytes(problem: ConvProblem) -> int:
    """Size of the input rows and columns that some output reads, in bytes; strides may skip others."""
    counts = []
    sizes = (problem.h, problem.w), (problem.oh, problem.ow), (problem.r, problem.s)
    for size, outputs, taps, step, gap, pad in zip(
        *sizes, problem.stride, problem.dilation, (problem.pads[0], problem.pads[2]), strict=True
    ):
        places = {output * step + tap * gap - pad for output in range(outputs) for tap in range(taps)}
        counts.append(len(places & set(range(size))))
    return problem.n * problem.c * math.prod(counts) * problem.types.x.bytes
