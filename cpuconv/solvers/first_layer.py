"""First layers: few input channels, read as planes (NCHW), so that no lane holds padding channels.

Source: the NCHW-input convolutions of oneDNN and MLAS. The reduction runs over (channel, kernel row) segments of whole
kernel rows, and every sum stays in registers. The input rows of an output row block are packed, with their padding,
into a planar band that stays in L1 or L2. The input may have any layout.
"""

from __future__ import annotations

from collections.abc import Iterator

from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.convolutions.convolve import PLANAR_BAND
from cpuconv.kernels.packing.packed_formats import Panels
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.products.tiling import tiles
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked, geometry
from cpuconv.solvers.shared.solver import Solver

_MAX_KERNEL_COLUMNS = 32  # kernel columns, which are unrolled
_DISTANT_PLANES = 0.08  # share of the estimated time added where input channels fill a block: each is on another plane

Params = geometry.Params


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require output groups of whole channel blocks, and kernel rows short enough to unroll."""
    if problem.groups > 1 and problem.kg % isa.lanes:
        return f"groups of {problem.kg} output channels share blocks of {isa.lanes}"
    if problem.s > _MAX_KERNEL_COLUMNS:
        return f"the kernel is {problem.s} wide, more than {_MAX_KERNEL_COLUMNS}"
    return None


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model, each with bands of a few sizes; a single tile where channels would fill blocks."""
    sizes = geometry.geometry(problem, isa)
    most = 5 if problem.cg < isa.lanes else 1
    for tile in tiles(isa, sizes.vectors, problem.oh, problem.ow, sizes.reduction, most):
        for block in blocked.row_blocks(problem, isa, tile):
            yield Params(tile.v, tile.rows, tile.cols, block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: FMAs and stores, copies into bands, or traffic."""
    return blocked.bound(problem, machine, problem.oh, problem.ow, band=True, planar=True)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs of the tiles, copies into bands, and traffic of weights and activations.

    Planes of many channels are far apart. Measured against `direct` on a Xeon, with 16 to 512 input channels, this
    costs up to 17% with 2x2 and 3x3 kernels, and 10 to 39% with 1x1 kernels.
    """
    plain = blocked.cost(problem, params, machine, problem.oh, problem.ow, band=True, planar=True)
    return plain.plus(_DISTANT_PLANES * plain.estimate) if problem.cg >= machine.isa.lanes else plain


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: any input; channel blocks as output."""
    return None, blocked.layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: [group][panel][C][R][S][v][lanes of K]."""
    return Panels.of(problem, isa, params.v, planar=True)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the convolution driver on planar bands."""
    return [blocked.convolve_step(problem, params, isa, space, operands, PLANAR_BAND)]


SOLVER = Solver(
    name="first_layer",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
)
