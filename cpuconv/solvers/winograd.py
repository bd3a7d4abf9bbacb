"""Winograd convolution F(m×n, r×s): r·s·m·n/((m+r-1)·(n+s-1)) times fewer multiplications.

Sources: Winograd, "Arithmetic Complexity of Computations" (1980); Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (CVPR 2016); points after Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd
Convolution" (TOMS 2020). Each axis has its own tile size; an axis whose kernel is 1 is not transformed. A dilated
convolution is a dense one in each phase of the plane.

With float16 sums, transforms are in float16, too, eight channels per vector, with tiles whose matrices round little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from baselib.data_classes import dataclass
from cpuconv.elements import F16, F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.steps import MicroRef, Operands, Space, Step
from cpuconv.kernels.emit.product import BY_NAME, product_of
from cpuconv.kernels.packing.packed_formats import RoundedToHalf
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.transforms.winograd import (
    WinogradTransform,
    WinogradWeights,
    winograd_in,
    winograd_out,
    winograd_weights,
)
from cpuconv.problem.activation import Activation
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked, tiled_call, transformed, winograd_tiles, words
from cpuconv.solvers.shared.solver import Solver
from cpuconv.solvers.shared.tiled_call import Transform
from cpuconv.solvers.shared.transformed import Planes, Size
from cpuconv.solvers.shared.winograd_tiles import able_forms, constants, error, figures_of, outer, tile_sizes


@dataclass(frozen=True)
class Params:
    """Transform and GEMM of a candidate.

    Attributes
    ----------
    rows, cols : int
            Output tile.
    v : int
            Weight vectors per GEMM tile.
    n : int
            Tiles per GEMM tile.
    block : int
            Tiles per block, whose transforms stay in L2.
    chunk : int
            Weight panels per pass over a block.
    """

    rows: int
    cols: int
    v: int
    n: int
    block: int
    chunk: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require a transform for the kernel; bfloat16 is widened to float32, and float16 fills whole vectors."""
    types, block = problem.types, isa.block(F16)
    if types.sum == F16 and (product_of(types, isa) is None or types.x != F16):
        return f"no instruction sums {types} in {F16}"
    if types.sum == F16 and (types.y != F16 or problem.cg % block or problem.kg % block):
        return f"{problem.cg} and {problem.kg} channels of {types} do not fill vectors of {block} {F16}"
    why = None if types.sum == F16 else transformed.why_not_floats(types)
    return why or winograd_tiles.why_not(problem, isa, BY_NAME[_product(problem)])


def _product(problem: ConvProblem) -> str:
    """Name of the dot-product kind that multiplies components."""
    return "fmla_f16" if problem.types.sum == F16 else "fma"


def _planes(problem: ConvProblem, m: Size) -> Planes:
    return Planes(math.prod(outer(problem, m)), product=_product(problem))


def is_closed(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether the transforms are among those for networks with open sizes."""
    return problem.types.sum == F32 and (params.rows, params.cols) in figures_of(problem.r, problem.s, True)[0]


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tile sizes by the model, with a few GEMM tiles and block sizes each."""
    for m in tile_sizes(problem):
        yield from _of_size(problem, isa, m)


def alike(problem: ConvProblem, isa: Isa, params: Params) -> Iterator[Params]:
    """Candidates that give equal bits: those of the same tile size, even if it is not one of the fastest or larger than
    the plane."""
    m = params.rows, params.cols
    if m in figures_of(problem.r, problem.s)[0] and error(problem, m) <= transformed.largest_error(problem):
        yield from _of_size(problem, isa, m)


def _of_size(problem: ConvProblem, isa: Isa, m: Size) -> Iterator[Params]:
    for sizes in transformed.sizes(problem, isa, machine(), m, _planes(problem, m), dilation=problem.dilation):
        yield Params(*m, *sizes)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost` over all tile sizes, in seconds."""
    able, forms = able_forms(problem)
    each = winograd_tiles.rates(problem.r, problem.s, problem.cg, problem.kg, machine, _product(problem))
    return transformed.bound(problem, machine, forms.tiles, each.some(able))


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: products, operations and memory accesses of transforms, traffic of weights, a charge for the
    error.

    The charge selects the more accurate one of two tiles that take nearly as long.
    """
    m = params.rows, params.cols
    return transformed.cost(winograd_tiles.form(problem, m, machine, _planes(problem, m)), params)


def least_work(problem: ConvProblem, params: Params) -> tuple[int, int]:
    """Operations and weight bytes of the products in the transformed domain."""
    m = params.rows, params.cols
    return transformed.least_work(problem, _planes(problem, m), m, problem.dilation)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel blocks."""
    return blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: G·w·Gᵀ in float64, then [group][a·a][panel][C of a group][v][lanes of K], float32 or float16."""
    m = params.rows, params.cols
    weights = winograd_tiles.weights(problem, m, isa)
    form = transformed.widened(problem, transformed.packing(problem, params.v, isa, _planes(problem, m), weights))
    return RoundedToHalf(form) if problem.types.sum == F16 else form


def closed_tiles(isa: Isa, r: int, s: int, activation: Activation | None, residual: bool = False) -> list[MicroRef]:
    """Transforms of a float32 convolution for planes of any size: of weights, forward, and inverse."""
    found: dict[MicroRef, None] = {}
    for rows, cols in figures_of(r, s, True)[0]:
        down, across = constants(rows, r), constants(cols, s)
        found[MicroRef(winograd_weights, WinogradWeights(isa.lanes, down[1], across[1]))] = None
        found[MicroRef(winograd_in, WinogradTransform(isa.lanes, down[2], across[2]))] = None
        back = WinogradTransform(isa.lanes, down[0], across[0], residual, activation)
        found[MicroRef(winograd_out, back)] = None
    return list(found)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the tile driver."""
    m = params.rows, params.cols
    a = outer(problem, m)
    down, across = constants(params.rows, problem.r), constants(params.cols, problem.s)
    types, halves = problem.types, problem.types.sum == F16
    forward = WinogradTransform(isa.lanes, down[2], across[2], element=types.x, halves=halves)
    ending = operands.residual is not None, problem.activation
    backward = WinogradTransform(isa.lanes, down[0], across[0], *ending, element=types.y, halves=halves)
    micro = MicroRef(winograd_in, forward), MicroRef(winograd_out, backward)
    last = None if halves else words.last_of(problem, isa, micro[1])
    transform = Transform(m, a, _planes(problem, m), *micro, dilation=problem.dilation, last=last)
    return [tiled_call.step(problem, params, transform, isa, space, operands)]


SOLVER = Solver(
    name="winograd",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
    accuracy="standard",
    rounding=("rows", "cols"),
    low_precision=True,
    least_work=least_work,
    multiplies=F32,
    alike=alike,
    is_closed=is_closed,
)
