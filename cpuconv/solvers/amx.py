"""Convolution in channel blocks on AMX's tile registers: 1x1 in place, others directly from bands.

Source: Intel's optimisation reference manual, chapter on AMX; the loops are those of direct convolution after Georganas
et al., "Anatomy of High-Performance Deep Learning Convolutions" (SC 2018).
"""

from __future__ import annotations

from collections.abc import Iterator

from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.emit.product import matrix_product_of
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import amx_tiles, blocked
from cpuconv.solvers.shared.merged import merged, packed
from cpuconv.solvers.shared.solver import Solver

Params = amx_tiles.Params


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require types that AMX multiplies; groups that share channel blocks are merged."""
    if matrix_product_of(problem.types) is None:
        return f"AMX, where there is any, does not multiply {problem.types.x} by {problem.types.w}"
    return blocked.aligned_groups(_merged(problem, isa), isa)


def _merged(problem: ConvProblem, isa: Isa) -> ConvProblem:
    """Problem whose groups fill channel blocks."""
    return merged(problem, isa, blocked.aligned_groups)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Full tile registers; planes in rows, and as one row."""
    return amx_tiles.candidates(_merged(problem, isa), isa)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: products at peak rate, or traffic."""
    return amx_tiles.bound(_merged(problem, machine.isa), machine)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: products or epilogues of the tiles, bands, and traffic."""
    return amx_tiles.cost(_merged(problem, machine.isa), params, machine)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel blocks."""
    return blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: [group][panel][C block][R][S][32-bit groups of the block][v][lanes of K]."""
    form = amx_tiles.packing(_merged(problem, isa), params, isa)
    return packed(form, problem, isa, blocked.aligned_groups)


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Offsets that kernels add to input and weights: zeros, as AMX multiplies signed and unsigned int8."""
    return 0, 0


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the convolution driver."""
    return [amx_tiles.bind(_merged(problem, isa), params, isa, space, operands)]


SOLVER = Solver(
    name="amx",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
    low_precision=True,
    offset=offset,
    shared_vectors=True,
)
