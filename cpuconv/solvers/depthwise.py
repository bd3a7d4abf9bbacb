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

_EXACT = 1 << 24  # integers that float32 holds
_LARGEST_WEIGHT = 255  # of int16 weights, which are uint8 ones less their zero point


@dataclass(frozen=True)
class Params:
    """A depthwise tile.

    Attributes
    ----------
    rows, cols : int
        Outputs of a tile.
    held : int
        1: the weights of the whole kernel stay in registers; 0: those of one kernel row at a time.
    block : int
        Tile rows of a packed band; 0: blocked input, read in place.
    """

    rows: int
    cols: int
    held: int
    block: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """One input and one output channel a group."""
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
    """Whether sums of floats hold every sum of the integers."""
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
    """Integers are multiplied as they are."""
    return 0, 0


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """The best tiles by the model."""
    for shape in lanewise.shapes(problem, isa, mix=1, most=8):
        yield Params(shape.rows, shape.cols, int(shape.held), shape.block)


bound = lanewise.bound


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """FMA and load slots of the tiles, and the traffic of activations."""
    return lanewise.cost(problem, _shape(params), machine)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Channels last, if both are and channels fill vectors. Else blocked output, and blocked input in place or, of
    float32, any input through bands.
    """
    types = problem.types
    if lanewise.channels_last(problem, isa):
        return "NHWC", "NHWC"
    in_place = types != ALL_F32 or params is not None and not params.block
    return (blocked.layout(isa, types.x) if in_place else None), blocked.layout(isa, types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[vector][R][S][lanes]: panels of one vector, all channels one group, of floats, or of float16 for such sums."""
    lanes = lanewise.sum_lanes(problem, isa)
    floats = Panels(Filters(lanes, 1, 1, problem.k), 1, problem.r, problem.s, 1, problem.r * problem.s)
    form = floats if problem.types.w == F32 else Widened(floats, problem.types.w)
    return Rounded(form, F16) if problem.types.sum == F16 else form


def is_closed(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether its micro-kernel is of the set for networks with open sizes."""
    return not lanewise.channels_last(problem, isa) and lane_set.is_member(problem, _shape(params), isa)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the lanewise kernel."""
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
