"""Depthwise convolution in channel blocks or channels last: a lane is a channel, no arithmetic crosses lanes.

Source: the register tile over outputs after Zhang, Lo, Lu, "High Performance Depthwise and Pointwise Convolutions on
Mobile Devices" (AAAI 2020): weights in registers, each input vector loaded once for all the outputs it touches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F16, F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.packing.packed_formats import Panels, Rounded, Widened
from cpuconv.kernels.packing.packing import Filters, Packing
from cpuconv.kernels.products.gemm_halves import BLOCK
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import blocked, words
from cpuconv.solvers.shared.lanes import lane_set, lane_tiles, lanewise
from cpuconv.solvers.shared.solver import Solver

_EXACT = 1 << 24  # largest integer up to which float32 is exact
_LARGEST_WEIGHT = 255  # largest magnitude of int16 weights, which are uint8 less their zero point


@dataclass(frozen=True)
class Params:
    """Tile of a depthwise convolution.

    Attributes
    ----------
    rows, cols : int
            Output rows and columns of the tile.
    held : int
            1: the weights of the whole kernel stay in registers; 0: those of one kernel row at a time.
    block : int
            Tile rows per packed band; 0: blocked input, read in place.
    """

    rows: int
    cols: int
    held: int
    block: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require one input and one output channel per group."""
    if (why := words.why_not(problem, isa)) is not None:
        return why
    if (problem.cg, problem.kg) != (1, 1):
        return f"groups are of {problem.cg} input and {problem.kg} output channels, not 1 and 1"
    if problem.types.sum == F16 and (problem.types.y != F16 or problem.r * problem.s > BLOCK):
        return f"outputs are {problem.types.y}, not f16, or {problem.r}x{problem.s} taps more than {BLOCK}"
    if not _sums_are_exact(problem):
        return f"sums of {problem.r}x{problem.s} products of {problem.types.x} and {problem.types.w} exceed floats"
    return None


def _sums_are_exact(problem: ConvProblem) -> bool:
    """Whether float32 represents every sum of the integers exactly."""
    types = problem.types
    if not types.sum.integer:
        return True
    largest = [
        max(abs(int(end)) for end in (np.iinfo(each.dtype).min, np.iinfo(each.dtype).max))
        for each in (types.x, types.w)
    ]
    largest[1] = min(largest[1], _LARGEST_WEIGHT)
    return problem.r * problem.s * largest[0] * largest[1] < _EXACT


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Offsets that kernels add to input and weights: zeros."""
    return 0, 0


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model."""
    for shape in lanewise.shapes(problem, isa, mix=1, most=8):
        yield Params(shape.rows, shape.cols, int(shape.held), shape.block)


bound = lanewise.bound


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs and loads of the tiles, and traffic of activations."""
    return lanewise.cost(problem, _shape(params), machine)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channels last, if input and output are and channels fill vectors. Otherwise channel blocks as
    output, and as input channel blocks in place or, in float32, any layout through bands.
    """
    types = problem.types
    if lanewise.channels_last(problem, isa):
        return "NHWC", "NHWC"
    in_place = types != ALL_F32 or params is not None and not params.block
    return (blocked.layout(isa, types.x) if in_place else None), blocked.layout(isa, types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: [vector][R][S][lanes], all channels one group, float32, or float16 with float16 sums."""
    lanes = lanewise.sum_lanes(problem, isa)
    floats = Panels(Filters(lanes, 1, 1, problem.k), 1, problem.r, problem.s, 1, problem.r * problem.s)
    form = floats if problem.types.w == F32 else Widened(floats, problem.types.w)
    return Rounded(form, F16) if problem.types.sum == F16 else form


def is_closed(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether the micro-kernel is among those for networks with open sizes."""
    return not lanewise.channels_last(problem, isa) and lane_set.is_member(problem, _shape(params), isa)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the lanewise driver."""
    return [lanewise.step(problem, _shape(params), isa, space, operands)]


def _shape(params: Params) -> lane_tiles.Shape:
    return lane_tiles.Shape(params.rows, params.cols, bool(params.held), params.block)


SOLVER = Solver(
    name="depthwise",
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
    is_closed=is_closed,
)
