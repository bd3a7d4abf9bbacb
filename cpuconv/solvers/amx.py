"""Convolution in channel blocks on AMX's tile registers: 1x1 in place, others directly from bands.

Source: Intel's optimisation reference manual, chapter on AMX; the loops are those of direct convolution after Georganas
et al., "Anatomy of High-Performance Deep Learning Convolutions" (SC 2018).
"""

from __future__ import annotations

from collections.abc import Iterator

from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.copies.views import is_blocked
from cpuconv.kernels.emit.product import Product, matrix_product_of
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.products.convolve import BLOCKED_BAND, NO_BAND
from cpuconv.kernels.products.matrix_strip import fits, shapes
from cpuconv.kernels.products.tiling import Tile
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared import blocked, words

NAME = "amx"
ACCURACY = "exact"
ROUNDING = ()
TYPED = True
Params = blocked.Params


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Types that AMX multiplies; groups must not share channel blocks."""
    if matrix_product_of(problem.types) is None:
        return f"AMX, where there is any, does not multiply {problem.types.x} by {problem.types.w}"
    return blocked.aligned_groups(problem, isa)


def _product(problem: ConvProblem) -> Product:
    found = matrix_product_of(problem.types)
    assert found is not None  # `applicable` has asked
    return found


def plane(problem: ConvProblem) -> tuple[int, int]:
    """Height and width of the plane that tiles cover."""
    return (1, problem.oh * problem.ow) if is_plain(problem) else (problem.oh, problem.ow)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Full tile registers, two of weights before one."""
    counts = words.vector_counts(problem, isa) or ()
    height, width = plane(problem)
    vectors = divide(problem.kg, isa.lanes)
    for v in (2, 1, 4):
        for rows, cols in shapes(height, width):
            if v not in counts or v >= 2 * vectors or not fits(v, rows, cols):
                continue
            if height == 1:
                total = divide(width, cols)
                pixel = words.words(problem, isa.lanes) * 4
                blocks = [blocked.largest_block(total, cols * pixel)]
            else:
                blocks = blocked.row_blocks(problem, isa, Tile(v, rows, cols))
            for block in blocks:
                yield Params(v, rows, cols, block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Products at the peak, and the traffic."""
    return blocked.bound(problem, machine, *plane(problem), band=False, product=_product(problem))


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Products or endings of the tiles, whichever take longer, bands, and the traffic."""
    band = not is_plain(problem) and any(problem.pads)
    return blocked.cost(problem, params, machine, *plane(problem), band=band, product=_product(problem))


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Blocks in and out."""
    return blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[group][panel][C block][R][S][words of the block][v][lanes of K]."""
    return words.packing(problem, isa, params.v, _product(problem))


def offset(problem: ConvProblem, isa: Isa) -> int:
    """AMX multiplies bytes of either sign as they are."""
    return 0


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the convolve kernel."""
    x = words.operands_in_words(problem, operands).x
    band = NO_BAND if not any(problem.pads) and is_blocked(isa.lanes, x.strides) else BLOCKED_BAND
    flat = is_plain(problem)
    return [blocked.convolve_step(problem, params, isa, space, operands, band, flat, _product(problem))]
