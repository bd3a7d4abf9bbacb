"""Direct convolution in channel blocks: every sum over C·R·S stays in registers, no im2col buffer.

Sources: Zhang, Franchetti, Low, "High Performance Zero-Overhead Direct Convolutions" (ICML 2018); Georganas et al.,
"Anatomy of High-Performance Deep Learning Convolutions" (SC 2018). Where there is padding, or the input is not in
channel blocks, the input rows of an output row block are packed into a padded band that stays in L2.
"""

from __future__ import annotations

from collections.abc import Iterator

from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.convolutions.convolve import BLOCKED_BAND, NO_BAND
from cpuconv.kernels.copies.views import is_blocked
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import blocked, geometry, words
from cpuconv.solvers.shared.solver import Solver

Params = geometry.Params


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require that channel blocks are not shared by groups, in float32."""
    return blocked.whole_groups(problem, isa)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model, each with bands of a few sizes; a single tile where `pointwise` is equivalent."""
    most = 1 if (problem.r, problem.s) == (1, 1) and not any(problem.pads) else 6
    for tile in geometry.best_tiles(problem, isa, problem.oh, problem.ow, most):
        for block in blocked.row_blocks(problem, isa, tile):
            yield Params(tile.v, tile.rows, tile.cols, block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: FMAs and stores, copies into bands, or traffic."""
    return blocked.bound(problem, machine, problem.oh, problem.ow, band=needs_band(problem, machine.isa))


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs of the tiles, copies into bands, and traffic of weights and activations."""
    return blocked.cost(problem, params, machine, problem.oh, problem.ow, band=needs_band(problem, machine.isa))


def needs_band(problem: ConvProblem, isa: Isa) -> bool:
    """Whether the input must be copied into bands, as the kernel cannot read it in place."""
    return any(problem.pads) or problem.in_layout != blocked.layout(isa, problem.types.x)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: any float32 input, through bands; channel blocks of other types; channel blocks as output."""
    plain = problem.types == ALL_F32
    return None if plain else blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: [group][panel][C/lanes][R][S][lanes of C][v][lanes of K]; the last block of C may be shorter.

    Where groups share channel blocks they are merged, and blocks of C have the 32-bit groups of a segment.
    """
    return words.packing(problem, isa, params.v)


offset = words.offset


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the convolution driver."""
    in_place = not any(problem.pads) and is_blocked(isa.lanes, words.operands_in_words(problem, operands).x.strides)
    return [blocked.convolve_step(problem, params, isa, space, operands, NO_BAND if in_place else BLOCKED_BAND)]


SOLVER = Solver(
    name="direct",
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
