"""Grouped convolution with several groups per channel block: lanes hold channels of adjacent groups.

An output lane needs every channel of its own group. In float32, with groups of 2^m lanes, these are the lanes l ^ i, so
the input vector is permuted 2^m - 1 times, and each permutation has its own weights. In narrower types a lane needs the
32-bit groups of its channels, which are shuffled to it; 16-bit floating-point types without a dot product are widened
to float32 first. Otherwise as depthwise convolution.
"""

from __future__ import annotations

from collections.abc import Iterator

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.emit.product import single_product_of
from cpuconv.kernels.packing.packed_formats import Mixed, Widened
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.packing.word_panels import GroupPanels
from cpuconv.kernels.windows.group_words import GroupWords
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import blocked, words
from cpuconv.solvers.shared.lanes import lane_set, lane_tiles, lanewise
from cpuconv.solvers.shared.solver import Solver


@dataclass(frozen=True)
class Params:
    """Tile of a grouped convolution.

    Attributes
    ----------
    rows, cols : int
            Output rows and columns of the tile.
    block : int
            Tile rows per packed band; 0: blocked input, read in place.
    """

    rows: int
    cols: int
    block: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require several groups per vector of sums: float32 with Cg = Kg, or other types in whole 32-bit groups."""
    if problem.cg == problem.kg == 1:
        return "groups are of one channel: depthwise"
    if problem.types != ALL_F32:
        return None if _mixes(problem, isa) else _why_not_words(problem, isa)
    if problem.cg != problem.kg:
        return f"groups have {problem.cg} input but {problem.kg} output channels"
    if not _share_evenly(problem, isa):
        return f"groups of {problem.cg} channels do not share blocks of {isa.lanes} evenly"
    return None


def _why_not_words(problem: ConvProblem, isa: Isa) -> str | None:
    groups = _words(problem, isa)
    if groups is None:
        return f"no product takes {problem.types.x} and {problem.types.w}"
    if problem.groups == 1 or problem.kg >= isa.lanes or not groups.chunk:
        return f"groups of {problem.cg} and {problem.kg} channels do not share vectors of {isa.lanes} sums evenly"
    return None


def _share_evenly(problem: ConvProblem, isa: Isa) -> bool:
    return problem.cg < isa.lanes and isa.lanes % problem.cg == 0


def _mixes(problem: ConvProblem, isa: Isa) -> bool:
    """Whether lanes receive single channels as float32, as 32-bit groups would have to be unpacked for each."""
    if problem.types == ALL_F32:
        return True
    product = single_product_of(problem.types, isa)
    floats = product is not None and product.packed == F32
    return floats and problem.cg == problem.kg and _share_evenly(problem, isa)


def _words(problem: ConvProblem, isa: Isa) -> GroupWords | None:
    """Shuffles of 32-bit groups to lanes; None if lanes receive channels, or no dot product takes the types."""
    if _mixes(problem, isa) or (product := single_product_of(problem.types, isa)) is None:
        return None
    return GroupWords(isa.lanes, problem.cg, problem.kg, product.name, problem.types.x)


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Offsets of input and weights, as `words.offset`."""
    return words.offset(problem, isa, single_product_of(problem.types, isa))


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model."""
    groups = _words(problem, isa)
    for shape in lanewise.shapes(problem, isa, groups.count if groups else problem.cg, 6, groups):
        yield Params(shape.rows, shape.cols, shape.block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: FMAs, or traffic without bands."""
    return lanewise.bound(problem, machine, _words(problem, machine.isa))


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs, loads and shuffles of the tiles, and traffic of activations."""
    return lanewise.cost(problem, _shape(problem, params, machine.isa), machine)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel blocks in place, or any float32 input through bands; channel blocks as output."""
    types = problem.types
    in_place = types != ALL_F32 or params is not None and not params.block
    return (blocked.layout(isa, types.x) if in_place else None), blocked.layout(isa, types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: [block][i][R][S][lanes]; 32-bit groups as [vector][i][R][S][part][lanes][elements]."""
    groups = _words(problem, isa)
    if groups is None:
        floats = Mixed(isa.lanes, problem.k, problem.cg, problem.r, problem.s)
        return floats if problem.types.w == F32 else Widened(floats, problem.types.w)
    return GroupPanels.of(problem, groups.product, groups.count * groups.elements, groups.starts)


def is_closed(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether the micro-kernel is among those for networks with open sizes."""
    return lane_set.is_member(problem, _shape(problem, params, isa), isa)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the lanewise kernel."""
    return [lanewise.step(problem, _shape(problem, params, isa), isa, space, operands)]


def _shape(problem: ConvProblem, params: Params, isa: Isa) -> lane_tiles.Shape:
    groups = _words(problem, isa)
    mix = groups.count if groups else problem.cg
    return lane_tiles.Shape(params.rows, params.cols, False, params.block, mix, groups)


SOLVER = Solver(
    name="grouped",
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
