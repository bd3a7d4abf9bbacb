"""The least work of an algorithm on a problem: the roofline's operations and bytes.

Winograd and FFT count products and weights in their own domain, the others those of the direct sum. Lanes without a
channel do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from autotune.machine.roofline import Work
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import F32
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import fft, winograd
from cpuconv.solvers.shared import transformed
from cpuconv.solvers.shared.transformed import Planes

Size = tuple[int, int]


def work(problem: ConvProblem, candidate: Candidate) -> Work:
    """The operations and bytes of a candidate on a problem."""
    special = _TRANSFORMS.get(candidate.solver.NAME)
    if special is None:
        flops, weights = problem.flops, problem.weight_bytes
    else:
        planes, tile, step = special(problem, candidate.params)
        pairs = problem.cg * problem.k
        flops = 2 * pairs * planes.products * transformed.tile_grid(problem, tile, step)[2]
        weights = pairs * planes.count * F32.bytes
    return Work(flops, touched_bytes(problem), weights, problem.out_bytes)


def work_of(problem: ConvProblem, name: str) -> Work | None:
    """The same for a candidate's name; None for a name that no solver has."""
    try:
        return work(problem, Candidate.parse(name))
    except (ValueError, ArithmeticError):  # no such solver or parameters, or none that make sense
        return None


def touched_bytes(problem: ConvProblem) -> int:
    """Bytes of the rows and columns of the input that some output reads; strides may skip others."""
    counts = []
    sizes = (problem.h, problem.w), (problem.oh, problem.ow), (problem.r, problem.s)
    for size, outputs, taps, step, gap, pad in zip(
        *sizes, problem.stride, problem.dilation, (problem.pads[0], problem.pads[2]), strict=True
    ):
        places = {output * step + tap * gap - pad for output in range(outputs) for tap in range(taps)}
        counts.append(len(places & set(range(size))))
    return problem.n * problem.c * math.prod(counts) * problem.types.x.bytes


def _winograd(problem: ConvProblem, params: winograd.Params) -> tuple[Planes, Size, Size]:
    tile = params.rows, params.cols
    return Planes(math.prod(winograd.outer(problem, tile))), tile, problem.dilation


def _fft(problem: ConvProblem, params: fft.Params) -> tuple[Planes, Size, Size]:
    return fft.planes(params.rows, params.cols, params.products), fft.outputs(problem, params.rows, params.cols), (1, 1)


# For the algorithms that multiply in another domain: components of a tile, outputs of a tile, and their distance.
_TRANSFORMS: dict[str, Callable[[ConvProblem, Any], tuple[Planes, Size, Size]]] = {
    winograd.NAME: _winograd,
    fft.NAME: _fft,
}
