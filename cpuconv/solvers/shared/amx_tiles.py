"""Tiles, cost and driver call of AMX convolutions in channel blocks, for problems whose groups fill blocks."""

from __future__ import annotations

from collections.abc import Iterator

from baselib.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.convolutions.convolve import BLOCKED_BAND, NO_BAND
from cpuconv.kernels.copies.views import is_blocked
from cpuconv.kernels.emit.product import WORD, Product, matrix_product_of
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.products.matrix_strip import fits, shapes
from cpuconv.kernels.products.tiling import Tile
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked, geometry, words
from layouts import Strides


@dataclass(frozen=True)
class Params:
    """Tile and plane of an AMX convolution.

    Attributes
    ----------
    v, rows, cols, block : int
            Fields of `geometry.Params`.
    flat : int
            1: the plane is one row of pixels, including those between two output rows where input rows are longer. Tile
            registers are then full on narrow planes.
    """

    v: int
    rows: int
    cols: int
    block: int
    flat: int

    @property
    def as_blocked(self) -> geometry.Params:
        """Convert parameters to those of the driver that all blocked convolutions share."""
        return geometry.Params(self.v, self.rows, self.cols, self.block)


def _product(problem: ConvProblem, product: Product | None) -> Product:
    found = product or matrix_product_of(problem.types)
    assert found is not None  # set by `applicable` of the solvers
    return found


def _band(problem: ConvProblem) -> int:
    return BLOCKED_BAND if any(problem.pads) else NO_BAND


def _contiguous(problem: ConvProblem, isa: Isa) -> Strides:
    line = problem.w * isa.lanes * WORD
    return Strides(0, isa.lanes, problem.h * line, WORD, line, isa.lanes * WORD)


def _pitch(problem: ConvProblem, isa: Isa) -> int:
    """Outputs from row to row of a plane that is one row; 0: the rows of a contiguous input are not so."""
    return blocked.row_pitch(problem, isa, _contiguous(problem, isa), _band(problem))


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Full tile registers, with two weight registers before one; planes in rows, and as one row."""
    counts = words.vector_counts(problem, isa) or ()
    vectors = divide(problem.kg, isa.lanes)
    sizes = [v for v in (2, 1, 4) if v in counts and v < 2 * vectors]
    pitch, pixel = _pitch(problem, isa), words.words(problem, isa.lanes) * WORD
    whole = blocked.largest_block(problem.h, problem.w * pixel) == problem.h  # a band has all rows
    plain = problem.r * problem.s == 1 and pitch == problem.ow and not any(problem.pads)
    for v in sizes:
        if pitch and (whole or plain):
            for _, cols in shapes(1, (problem.oh - 1) * pitch + problem.ow):
                if fits(v, 1, cols):
                    total = divide((problem.oh - 1) * pitch + problem.ow, cols)
                    size = cols * pixel * problem.types.w.parts  # the parts of a pixel are pixels
                    yield Params(v, 1, cols, blocked.largest_block(total, size), 1)
        for rows, cols in () if plain else shapes(problem.oh, problem.ow):
            if fits(v, rows, cols):
                for block in blocked.row_blocks(problem, isa, Tile(v, rows, cols)):
                    yield Params(v, rows, cols, block, 0)


def bound(problem: ConvProblem, machine: Machine, product: Product | None = None) -> float:
    """Lower bound of `cost`, in seconds: products at peak rate, or traffic; `product`: default that of the types."""
    return blocked.bound(problem, machine, problem.oh, problem.ow, band=False, product=_product(problem, product))


def cost(problem: ConvProblem, params: Params, machine: Machine, product: Product | None = None) -> Cost:
    """Modelled time: the longer of products and epilogues of the tiles, bands, and traffic."""
    height, width = problem.oh, problem.ow
    if params.flat:
        height, width = 1, (problem.oh - 1) * _pitch(problem, machine.isa) + problem.ow
    band = _band(problem) != NO_BAND
    return blocked.cost(
        problem, params.as_blocked, machine, height, width, band=band, product=_product(problem, product)
    )


def packing(problem: ConvProblem, params: Params, isa: Isa, product: Product | None = None) -> Packing:
    """Packed weights: [group][panel][C block][R][S][32-bit groups of the block][v][lanes of K]."""
    return words.packing(problem, isa, params.v, _product(problem, product))


def bind(
    problem: ConvProblem,
    params: Params,
    isa: Isa,
    space: Space,
    operands: Operands,
    product: Product | None = None,
) -> Step:
    """One parallel call of the convolution driver."""
    x = words.operands_in_words(problem, operands).x
    band = NO_BAND if not any(problem.pads) and is_blocked(isa.lanes, x.strides) else BLOCKED_BAND
    flat, own = bool(params.flat), _product(problem, product)
    return blocked.convolve_step(problem, params.as_blocked, isa, space, operands, band, flat, own)
