"""1x1 convolution in channels-last layout, read and written in place: a matrix multiplication.

Source: the GEMM tile after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (TOMS 2008). A
pixel is a row of a matrix. A tile broadcasts elements of several rows and stores whole vectors of their outputs; the
row strides are constants of its code. bfloat16 and int8 rows are read as 32-bit groups. AMX reads rows into whole tile
registers, so their channels must fill these: bytes after a row may not be readable. A batch of images of one pixel each
is treated as one image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.convolutions.convolve import NO_BAND
from cpuconv.kernels.emit.product import WORD, Product, matrix_product_of
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.products.matrix_strip import fits, shapes
from cpuconv.kernels.products.tiling import tiles
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import blocked, gemm_call, geometry, images, words
from cpuconv.solvers.shared.solver import Solver

_BLOCK_SHARES = (0.5, 0.08)  # shares of L2 for the pixels of a block, which all weight panels read


Params = gemm_call.Params


def _as_blocked(params: Params) -> geometry.Params:
    """Convert parameters to those of the blocked driver, in which the plane is one row."""
    return geometry.Params(params.v, 1, params.n, params.block)


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require a 1x1 kernel with stride 1, whole vectors of output channels, and a channels-last input or output."""
    if (why := words.why_not(problem, isa)) is not None:
        return why
    if not is_plain(problem):
        return "output pixels are not input pixels"
    if "NHWC" not in (problem.in_layout, problem.out_layout):
        return "neither input nor output has its channels last"
    if problem.kg % isa.block(problem.types.y):
        return f"{problem.kg} output channels of a group do not fill vectors of {isa.block(problem.types.y)}"
    if problem.types != ALL_F32 and (why := _why_not_typed(problem, isa)) is not None:
        return why
    return blocked.aligned_groups(problem, isa)


def _why_not_typed(problem: ConvProblem, isa: Isa) -> str | None:
    if not problem.in_layout == problem.out_layout == "NHWC":
        return "of other types than float32 it computes rows, channels last in and out"
    product = _product(problem, isa)
    step = words.group(problem) * (isa.lanes if product.matrix else product.words_at_once(isa.lanes))
    return f"{problem.c} input channels do not fill words of {step}" if problem.c % step else None


def _product(problem: ConvProblem, isa: Isa) -> Product:
    return matrix_product_of(problem.types) or words.product(images.as_columns(problem), isa)


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Offsets of input and weights, as `words.offset`."""
    return words.offset(images.as_columns(problem), isa)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model, each with blocks of pixels that fit into L2 or L1, or without blocks."""
    problem = images.as_columns(problem)
    pixels = problem.oh * problem.ow
    for v, n in _tiles(problem, isa, pixels):
        largest = (int(share * machine().l2 / (n * problem.cg * problem.types.x.bytes)) for share in _BLOCK_SHARES)
        for block in sorted({min(divide(pixels, n), max(1, size)) for size in largest}, reverse=True):
            yield Params(v, n, block)


def _tiles(problem: ConvProblem, isa: Isa, pixels: int) -> list[tuple[int, int]]:
    """Candidate tiles, as (weight vectors, pixels)."""
    product, counts = _product(problem, isa), words.vector_counts(problem, isa)
    sizes = geometry.geometry(problem, isa, product)
    if product.matrix:
        sides = [v for v in (2, 1, 4) if v in (counts or ()) and v < 2 * sizes.vectors]
        return [(v, n) for v in sides for _, n in shapes(1, pixels) if fits(v, 1, n)]
    found = tiles(words.seen(isa, product), sizes.vectors, 1, pixels, sizes.reduction, 6, counts)
    return [(tile.v, tile.cols) for tile in found]


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: FMAs and stores, or traffic."""
    own, problem = _product(problem, machine.isa), images.as_columns(problem)
    return blocked.bound(problem, machine, 1, problem.oh * problem.ow, band=False, product=own)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs of the tiles, and traffic of weights and activations."""
    own, problem = _product(problem, machine.isa), images.as_columns(problem)
    return blocked.cost(problem, _as_blocked(params), machine, 1, problem.oh * problem.ow, band=False, product=own)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channels last."""
    return "NHWC", "NHWC"


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: [group][panel][C][v][lanes of K]."""
    return words.packing(problem, isa, params.v, _product(problem, isa))


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the convolution driver, with `lanes` adjacent channels as a channel block."""
    types, own = problem.types, _product(problem, isa)
    operands, problem = images.operands_as_columns(problem, operands), images.as_columns(problem)
    x, y = words.in_vectors(operands.x, isa, types.x), words.in_vectors(operands.y, isa, types.y)
    x = replace(x, strides=x.strides._replace(h=problem.w * isa.lanes * WORD))  # the plane is one row of vectors
    views = Operands(x, y, words.in_vectors(operands.residual, isa, types.y) if operands.residual else None)
    step = blocked.convolve_step(problem, _as_blocked(params), isa, space, views, NO_BAND, flat=True, product=own)
    pixels = {"xs": operands.x.strides.w // WORD, "ys": operands.y.strides.w // WORD}
    return [gemm_call.with_pixel_distances(step, pixels)]


SOLVER = Solver(
    name="channels_last",
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
)
