"""The solvers: one algorithm a file, one line each in this table."""

from __future__ import annotations

from types import ModuleType

from cpuconv.solvers import direct, first_layer, pointwise, winograd

TABLE: tuple[ModuleType, ...] = (
    pointwise,
    direct,
    first_layer,
    winograd,
)
BY_NAME: dict[str, ModuleType] = {solver.NAME: solver for solver in TABLE}
