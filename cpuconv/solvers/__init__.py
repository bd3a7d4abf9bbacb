"""The solvers: one algorithm a file, one line each in this table."""

from __future__ import annotations

from types import ModuleType

from cpuconv.solvers import (
    channels_last,
    depthwise,
    direct,
    fft,
    first_layer,
    grouped,
    im2col,
    planar,
    pointwise,
    winograd,
)

TABLE: tuple[ModuleType, ...] = (
    pointwise,
    direct,
    first_layer,
    depthwise,
    grouped,
    winograd,
    fft,
    planar,
    channels_last,
    im2col,  # takes every problem
)
BY_NAME: dict[str, ModuleType] = {solver.NAME: solver for solver in TABLE}
