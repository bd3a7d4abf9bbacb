"""1x1 convolution by one level of Strassen's algorithm: seven matrix multiplications of half the size instead of eight.

Sources: Strassen, "Gaussian Elimination is not Optimal" (1969), in Winograd's form with 15 additions; Huang, Smith,
Henry and van de Geijn, "Strassen's Algorithm Reloaded" (SC 2016). Rows are divided into even and odd pixels, channels
into even and odd blocks. So additions are those of 2x2 tiles, and the driver is that of Winograd convolution: sums of
activations, seven GEMMs, and sums of products with the epilogue. Sums of weights are packed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.steps import MicroRef, Operand, Operands, Space, Step
from cpuconv.kernels.packing.packed_formats import BlockPairs
from cpuconv.kernels.packing.packing import Filters, Packing
from cpuconv.kernels.transforms.strassen import (
    ADDITIONS,
    PRODUCTS,
    StrassenTransform,
    StrassenWeights,
    strassen_in,
    strassen_out,
    strassen_weights,
)
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared import blocked, images, tiled_call, transformed
from cpuconv.solvers.shared.solver import Solver
from cpuconv.solvers.shared.tiled_call import Transform
from cpuconv.solvers.shared.transformed import Form, Forms, Planes, Size

_PLANES = Planes(PRODUCTS)
_TILE: Size = (2, 2)
_L2_SHARES = (0.35, 1.0)  # shares of L2 for the sums of a block
_AMPLIFICATION = 3.0  # error over that of a direct sum: root of the summed variances of the products in an output


@dataclass(frozen=True)
class Params:
    """The GEMM of each product: v weight vectors × n pairs of pixels a tile; pairs whose sums stay in L2 (`block`);
    weight panels whose products are formed at a time (`chunk`)."""

    v: int
    n: int
    block: int
    chunk: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require a 1x1 kernel with stride 1, one group, and pairs of channel blocks up to the largest stated error."""
    if not is_plain(problem):
        return "output pixels are not input pixels"
    if problem.groups > 1:
        return "there are several groups"
    if problem.c % (2 * isa.lanes) or problem.k % (2 * isa.lanes):
        return f"{problem.c} and {problem.k} channels are not in pairs of blocks of {isa.lanes}"
    if error(problem) > transformed.LARGEST_ERROR:
        return f"the sums are of {problem.c} channels, too many for its error"
    return None


def _is_rows(problem: ConvProblem) -> bool:
    """Whether the channels of a pixel are adjacent, instead of in channel blocks."""
    return "NHWC" in (problem.in_layout, problem.out_layout) or images.are_pixels(problem)


def _halves(problem: ConvProblem) -> ConvProblem:
    """Problem with half as many channels, whose planes are pixels × the two halves."""
    rows, problem = _is_rows(problem), images.as_columns(problem)
    pixels = problem.h * problem.w
    h, w = (pixels, 2) if rows else (2, pixels)
    return replace(problem, c=problem.c // 2, k=problem.k // 2, h=h, w=w)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Blocks of a third of L2, of all L2, and of all pixel pairs, with a few GEMM tiles each."""
    for sizes in transformed.sizes(_halves(problem), isa, machine(), _TILE, _PLANES, _L2_SHARES, fused_share=math.inf):
        yield Params(*sizes)


def error(problem: ConvProblem) -> float:
    """Stated error for unit-normal data, relative to the largest output, as `winograd.error`."""
    return transformed.error_of_sums(problem) * _AMPLIFICATION


def _operations(machine: Machine) -> tuple[float, float]:
    """Additions per tile, forward and back, in FMA slots; at least one cycle each."""
    before, after = (max(1.0, machine.isa.fma_rate) * count for count in ADDITIONS)
    return before, after


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: products at full speed or weights read once, transforms, activations."""
    halves = _halves(problem)
    one, tiles = np.full(1, PRODUCTS), np.full(1, transformed.tile_grid(halves, _TILE)[2])
    before, after = (np.full(1, slots) for slots in _operations(machine))
    rates = transformed.rates(halves.c, halves.k, machine, Forms(tiles, one, one, before, after))
    return transformed.bound(halves, machine, tiles, rates)


@functools.lru_cache(maxsize=64)
def _form(problem: ConvProblem, machine: Machine) -> Form:
    """Cost terms that all candidates of a problem share."""
    charge = transformed.charge(error(problem))
    return transformed.form(_halves(problem), machine, _TILE, _PLANES, _operations(machine), charge=charge)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs of products, additions and memory accesses of transforms, weights, a charge for the error.

    At least the time to read the weights from memory: they are 7/4 of a layer's, and those of networks are not cached.
    """
    form = _form(problem, machine)
    found = transformed.cost(form, params)
    packed = problem.weight_bytes * PRODUCTS / 4
    reading = packed / machine.isa.dram_rate + transformed.APART * form.floor
    return replace(found, estimate=max(found.estimate, machine.seconds(reading, problem.threads) * form.charge))


def least_work(problem: ConvProblem, params: Params) -> tuple[int, int]:
    """Operations and packed weight bytes."""
    return transformed.least_work(_halves(problem), _PLANES, _TILE)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channels last, or channel blocks; equal for input and output."""
    name = "NHWC" if "NHWC" in (problem.in_layout, problem.out_layout) else blocked.layout(isa)
    return name, name


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: sums in float64, then [product][panel][C / 2][v][lanes of K / 2] in float32."""
    filters = Filters(isa.lanes, params.v, 1, problem.k // 2)
    transform = MicroRef(strassen_weights, StrassenWeights(isa.lanes))
    return BlockPairs(filters, problem.c // 2, 2, 2, PRODUCTS, 0, transform)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the tile driver."""
    rows = _is_rows(problem)
    views, halves = images.operands_as_columns(problem, operands), _halves(problem)

    def paired(operand: Operand) -> Operand:
        strides = operand.strides
        step = isa.lanes // strides.block * strides.cb
        return replace(operand, strides=strides._replace(cb=2 * step, h=strides.w if rows else step))

    added = paired(views.residual) if views.residual else None
    back = StrassenTransform(isa.lanes, not rows, added is not None, problem.activation)
    micro = MicroRef(strassen_in, StrassenTransform(isa.lanes, not rows)), MicroRef(strassen_out, back)
    transform = Transform(_TILE, _TILE, _PLANES, *micro)
    step = tiled_call.step(halves, params, transform, isa, space, Operands(paired(views.x), paired(views.y), added))
    return [replace(step, tile=replace(step.tile, rows=2))]


SOLVER = Solver(
    name="strassen",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
    accuracy="standard",
    least_work=least_work,
)
