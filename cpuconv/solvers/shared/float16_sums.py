"""float16 convolutions whose sums are float16 within short blocks of the reduction, on Arm CPUs with FEAT_FP16.

Each derives from another solver by setting the problem's type of sums to float16: `fmla` multiplies twice as many
elements (`products/gemm_halves.py` states the error). Source: Arm's architecture reference manual, FEAT_FP16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cpuconv.elements import F16
from cpuconv.isa import Isa
from cpuconv.kernels.emit.product import product_of
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared.solver import Solver

ACCURACY = "fast"  # with blocks of 128 terms, errors are near 2e-3 of the largest output on unit-normal data
_VECTORS = 2  # 32-bit vectors of output channels per vector of float16 sums


def _with_sums(problem: ConvProblem) -> ConvProblem:
    """Problem with float16 sums."""
    return replace(problem, types=replace(problem.types, sum=F16))


def _why_not(problem: ConvProblem, isa: Isa, across_groups: bool) -> str | None:
    """Reason why float16 sums are not possible, or None."""
    types = problem.types
    if not types.x == types.w == F16:
        return f"it multiplies float16, not {types.x} by {types.w}"
    if product_of(_with_sums(problem).types, isa) is None:
        return "this CPU does not add float16"
    vectors = divide(problem.kg, isa.lanes)
    if not across_groups and (vectors < _VECTORS or problem.groups > 1 and vectors % _VECTORS):
        return f"{problem.kg} output channels of a group do not fill vectors of float16"
    return None


def with_float16_sums(solver: Solver, *, across_groups: bool = False) -> Solver:
    """Solver with float16 sums derived from `solver`; `across_groups`: a vector has one channel of each group."""

    def of_problem(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def given(problem: ConvProblem, *others: Any) -> Any:
            return method(_with_sums(problem), *others)

        return given

    def applicable(problem: ConvProblem, isa: Isa) -> str | None:
        return _why_not(problem, isa, across_groups) or solver.applicable(_with_sums(problem), isa)

    names = "candidates", "bound", "cost", "layouts", "packing", "bind", "offset", "least_work", "alike", "is_closed"
    own = ((name, getattr(solver, name)) for name in names)
    methods: dict[str, Any] = {name: method and of_problem(method) for name, method in own}
    return replace(
        solver,
        name=f"{solver.name}_f16",
        applicable=applicable,
        accuracy=ACCURACY,
        multiplies=None,
        **methods,
    )
