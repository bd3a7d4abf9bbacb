"""1x1 convolution in channel blocks: a GEMM whose operands are already packed.

Source: the GEMM tile after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008).
With stride 1 the plane is one row of pixels. With a larger stride the tile reads every other pixel in place. A batch of
images of one pixel each is treated as one image, so that a tile covers pixels of several images.
"""

from __future__ import annotations

from collections.abc import Iterator

from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.convolutions.convolve import NO_BAND
from cpuconv.kernels.emit.product import WORD
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked, geometry, images, words
from cpuconv.solvers.shared.solver import Solver

_BLOCK_SHARES = (0.5, 0.08)  # shares of L2 for the pixels of a block, which all weight panels read

Params = geometry.Params


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require a 1x1 kernel without padding."""
    if (problem.r, problem.s) != (1, 1):
        return f"the kernel is {problem.r}x{problem.s}, not 1x1"
    if any(problem.pads):
        return "there is padding"
    return blocked.whole_groups(problem, isa)


def plane(problem: ConvProblem) -> tuple[int, int]:
    """Height and width of the plane that is divided into tiles."""
    if images.are_pixels(problem):
        return problem.n, 1
    return (1, problem.oh * problem.ow) if _is_row(problem) else (problem.oh, problem.ow)


def _is_row(problem: ConvProblem) -> bool:
    """Whether the plane is one row. Images of one pixel become a row, at any distance from each other."""
    return problem.stride == (1, 1) and not images.are_pixels(problem)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model, each with blocks of pixels that fit into L2 or L1, or without blocks."""
    height, width = plane(problem)
    channels = divide(problem.cg, words.group(problem))
    for tile in geometry.best_tiles(images.as_rows(problem), isa, height, width, most=6):
        total = divide(width, tile.cols) if height == 1 else divide(height, tile.rows)
        pixels = tile.cols if height == 1 else tile.rows * width
        largest = [int(share * machine().l2 / (pixels * channels * WORD)) for share in _BLOCK_SHARES]
        for block in sorted({min(total, max(1, size)) for size in largest}, reverse=True):
            yield Params(tile.v, tile.rows, tile.cols, block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: FMAs and stores, or traffic."""
    return blocked.bound(images.as_rows(problem), machine, *plane(problem), band=False)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs of the tiles, and traffic of weights and activations."""
    return blocked.cost(images.as_rows(problem), params, machine, *plane(problem), band=False)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel blocks."""
    return blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: [group][panel][C][v][lanes of K]."""
    return words.packing(images.as_rows(problem), isa, params.v)


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Offsets of input and weights, as `words.offset`."""
    return words.offset(images.as_rows(problem), isa)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the convolution driver on the input in place."""
    rows, views = images.as_rows(problem), images.operands_as_rows(problem, operands)
    return [blocked.convolve_step(rows, params, isa, space, views, NO_BAND, flat=_is_row(problem))]


SOLVER = Solver(
    name="pointwise",
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
