"""The solvers: one algorithm a file, one line each in this table."""

from __future__ import annotations

from types import ModuleType

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
    winograd,
    winograd_integer,
)

TABLE: tuple[ModuleType, ...] = (
    pointwise,
    direct,
    amx,
    first_layer,
    row_patches,
    depthwise,
    depthwise_taps,
    grouped,
    winograd,
    winograd_integer,
    fft,
    folded,
    planar,
    plane_words,
    channels_last,
    im2col,  # takes every problem of float32
    patches,  # and of other types
)
BY_NAME: dict[str, ModuleType] = {solver.NAME: solver for solver in TABLE}


def why_not(solver: ModuleType, problem: ConvProblem, isa: Isa) -> str | None:
    """Why a solver cannot run a problem, in words, or None."""
    if problem.types != ALL_F32 and not getattr(solver, "TYPED", False):
        return f"it computes {ALL_F32}, not {problem.types}"
    return solver.applicable(problem, isa)
