"""1x1 convolution of pixels whose channels lie side by side, read and written in place: a product of matrices.

Source: the GEMM tile after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008). A
pixel is a row of a matrix; a tile reads some rows at once, scalar by scalar, and writes whole vectors of their outputs.
The distances between rows are constants of its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.steps import MicroRef, Operand, Operands, Space, Step
from cpuconv.kernels.packing.packed_formats import Panels
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.products.convolve import NO_BAND
from cpuconv.kernels.products.tiling import tiles
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared import blocked

NAME = "channels_last"
ACCURACY = "exact"
ROUNDING = ()
_BLOCK_SHARES = (0.5, 0.08)  # of L2: pixels of a block under all weight panels


@dataclass(frozen=True)
class Params:
    """A tile and its pixels.

    Attributes
    ----------
    v : int
        Weight vectors of a tile.
    n : int
        Pixels of a tile.
    block : int
        Tiles of pixels that pass under all weights before the next ones do.
    """

    v: int
    n: int
    block: int

    @property
    def as_blocked(self) -> blocked.Params:
        """The same for the kernel that all blocked convolutions share: the plane is one row."""
        return blocked.Params(self.v, 1, self.n, self.block)


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """1x1 pixel by pixel, output channels in whole vectors, where an activation has its channels last already."""
    if not is_plain(problem):
        return "output pixels are not input pixels"
    if "NHWC" not in (problem.in_layout, problem.out_layout):
        return "neither input nor output has its channels last"
    if problem.kg % isa.lanes:
        return f"{problem.kg} output channels of a group do not fill vectors of {isa.lanes}"
    return blocked.aligned_groups(problem, isa)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """The best tiles by the model, each with blocks of pixels that stay in L2 or in L1, or no blocks."""
    sizes, pixels = blocked.geometry(problem, isa), problem.oh * problem.ow
    for tile in tiles(isa, sizes.vectors, 1, pixels, sizes.reduction, most=6):
        largest = (int(share * machine().l2 / (tile.cols * problem.cg * F32.bytes)) for share in _BLOCK_SHARES)
        for block in sorted({min(divide(pixels, tile.cols), max(1, size)) for size in largest}, reverse=True):
            yield Params(tile.v, tile.cols, block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """FMA slots and stores, and the traffic."""
    return blocked.bound(problem, machine, 1, problem.oh * problem.ow, band=False)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """FMA slots of the tiles and the traffic of weights and activations."""
    return blocked.cost(problem, params.as_blocked, machine, 1, problem.oh * problem.ow, band=False)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Channels last in and out."""
    return "NHWC", "NHWC"


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[group][panel][C][v][lanes of K]."""
    return Panels.of(problem, isa, params.v)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the convolve kernel, for which `lanes` channels of a pixel are a block of channels."""
    x, y = (_in_vectors(each, isa) for each in (operands.x, operands.y))
    views = Operands(x, y, _in_vectors(operands.residual, isa) if operands.residual else None)
    step = blocked.convolve_step(problem, params.as_blocked, isa, space, views, NO_BAND, flat=True)
    pixels = {"xs": operands.x.strides.w // F32.bytes, "ys": operands.y.strides.w // F32.bytes}
    gemms = {name: value for name, value in step.args.items() if isinstance(value, MicroRef)}
    apart = {name: replace(gemm, tile=replace(gemm.tile, **pixels)) for name, gemm in gemms.items()}
    return [replace(step, args=step.args | apart)]


def _in_vectors(operand: Operand, isa: Isa) -> Operand:
    """The same view with channels counted in vectors."""
    strides = operand.strides
    return replace(operand, strides=strides._replace(block=isa.lanes, cb=isa.lanes * strides.cb, c=strides.cb))
