"""The solvers: one algorithm a file, one line each in this table."""

from __future__ import annotations

from cpuconv.isa import Isa
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers import (
    amx,
    channels_last,
    depthwise,
    depthwise_taps,
    direct,
    fft,
    first_layer,
    folded,
    grouped,
    im2col,
    patches,
    planar,
    plane_words,
    pointwise,
    row_patches,
    split_bf16,
    strassen,
    winograd,
    winograd_integer,
    winograd_split,
)
from cpuconv.solvers.shared.float16_sums import with_float16_sums
from cpuconv.solvers.shared.solver import Solver

TABLE: tuple[Solver, ...] = (
    pointwise.SOLVER,
    direct.SOLVER,
    amx.SOLVER,
    first_layer.SOLVER,
    row_patches.SOLVER,
    depthwise.SOLVER,
    depthwise_taps.SOLVER,
    grouped.SOLVER,
    winograd.SOLVER,
    strassen.SOLVER,
    split_bf16.SOLVER,
    winograd_split.SOLVER,
    winograd_integer.SOLVER,
    fft.SOLVER,
    folded.SOLVER,
    planar.SOLVER,
    plane_words.SOLVER,
    channels_last.SOLVER,
    im2col.SOLVER,  # takes every problem of float32
    patches.SOLVER,  # and of other types
    *map(
        with_float16_sums,
        (pointwise.SOLVER, direct.SOLVER, row_patches.SOLVER, channels_last.SOLVER, patches.SOLVER, winograd.SOLVER),
    ),
    with_float16_sums(depthwise.SOLVER, across_groups=True),
)
BY_NAME: dict[str, Solver] = {solver.name: solver for solver in TABLE}


def why_not(solver: Solver, problem: ConvProblem, isa: Isa) -> str | None:
    """Why a solver cannot run a problem, in words, or None."""
    types = problem.types
    if types != ALL_F32 and not (solver.in_parts if types.in_parts else solver.low_precision):
        return f"it computes {ALL_F32}, not {types}"
    return solver.applicable(problem, isa)
