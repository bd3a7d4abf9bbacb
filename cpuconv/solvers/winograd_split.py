"""Winograd convolution by products of bfloat16 parts on AMX.

The forward transform stores the parts of its components, and packed weights are parts of transformed weights. AMX sums
their products into float32 that the inverse transform reads.

Sources: those of `winograd` and `shared.split_products`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from baselib.data_classes import dataclass
from cpuconv.elements import BF16
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.steps import MicroRef, Operands, Space, Step
from cpuconv.kernels.emit.product import SPLIT
from cpuconv.kernels.packing.packed_formats import TransformedParts
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.transforms.winograd import WinogradTransform, winograd_in, winograd_out
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked, split_products, tiled_call, transformed, winograd_tiles
from cpuconv.solvers.shared.solver import Solver
from cpuconv.solvers.shared.split_products import ERROR, PART_CYCLES, label
from cpuconv.solvers.shared.tiled_call import Transform
from cpuconv.solvers.shared.transformed import Planes, Size
from cpuconv.solvers.shared.winograd_tiles import constants, outer

_SIZES = 2  # tile sizes that become candidates for each number of products


@dataclass(frozen=True)
class Params:
    """Products of parts per float32 product (3 or 6), and the fields of `winograd.Params`."""

    products: int
    rows: int
    cols: int
    v: int
    n: int
    block: int
    chunk: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require bfloat16 on AMX, a transform for the kernel, and channels in whole blocks of bfloat16."""
    if (why := split_products.why_not()) is not None:
        return why
    if problem.cg % isa.block(BF16):
        return f"{problem.cg} channels do not fill blocks of {isa.block(BF16)}"
    return winograd_tiles.why_not(problem, isa, SPLIT[min(SPLIT)])


def _planes(problem: ConvProblem, products: int, m: Size) -> Planes:
    return Planes(math.prod(outer(problem, m)), product=SPLIT[products].name)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tile sizes for three and for six products, with a few GEMM tiles and block sizes each."""
    for products in SPLIT:
        for m in winograd_tiles.tile_sizes(problem, ERROR[products])[:_SIZES]:
            planes = _planes(problem, products, m)
            for sizes in transformed.sizes(problem, isa, machine(), m, planes, dilation=problem.dilation):
                yield Params(products, *m, *sizes)


def _split_operations(products: int, machine: Machine) -> float:
    """Transform operations that take as long as splitting one vector."""
    return SPLIT[products].parts * PART_CYCLES * machine.isa.fma_rate / winograd_tiles.slots(machine)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost` over all tile sizes, in seconds."""
    found = []
    for products in SPLIT:
        able, forms = winograd_tiles.able_forms(problem, more=ERROR[products])
        kernel, split = (problem.r, problem.s, problem.cg, problem.kg), _split_operations(products, machine)
        each = winograd_tiles.rates(*kernel, machine, SPLIT[products].name, split)
        found += [transformed.bound(problem, machine, forms.tiles, each.some(able))] if len(able) else []
    return min(found, default=math.inf)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: that of Winograd convolution, with transforms and products of parts."""
    m, split = (params.rows, params.cols), _split_operations(params.products, machine)
    planes, more = _planes(problem, params.products, m), ERROR[params.products]
    return transformed.cost(winograd_tiles.form(problem, m, machine, planes, more, split), params)


def least_work(problem: ConvProblem, params: Params) -> tuple[int, int]:
    """Operations and weight bytes of the products in the transformed domain."""
    m = params.rows, params.cols
    planes = _planes(problem, params.products, m)
    flops, weight_bytes = transformed.least_work(problem, planes, m, problem.dilation)
    return params.products * flops, weight_bytes


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel blocks."""
    return blocked.layout(isa), blocked.layout(isa)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: G·w·Gᵀ as [group][a·a][panel][C block][part][pair of C][v][lanes of K][2]."""
    m = params.rows, params.cols
    planes, transform = Planes(math.prod(outer(problem, m))), winograd_tiles.weights(problem, m, isa)
    form = transformed.packing(problem, params.v, isa, planes, transform)
    return TransformedParts(form, SPLIT[params.products].parts, isa.block(BF16))


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the tile driver."""
    m: Size = params.rows, params.cols
    down, across = constants(params.rows, problem.r), constants(params.cols, problem.s)
    forward = WinogradTransform(isa.lanes, down[2], across[2], parts=SPLIT[params.products].parts)
    backward = WinogradTransform(isa.lanes, down[0], across[0], operands.residual is not None, problem.activation)
    micro = MicroRef(winograd_in, forward), MicroRef(winograd_out, backward)
    transform = Transform(m, outer(problem, m), _planes(problem, params.products, m), *micro, dilation=problem.dilation)
    return [tiled_call.step(problem, params, transform, isa, space, operands)]


SOLVER = Solver(
    name="winograd_split",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
    accuracy="standard",
    rounding=("products", "rows", "cols"),
    least_work=least_work,
    multiplies=BF16,
    product_label=label,
)
