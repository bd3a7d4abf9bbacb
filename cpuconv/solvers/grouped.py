"""Grouped convolution with several groups in a channel block: lanes hold groups side by side.

An output lane needs every channel of its own group. Of floats, with groups of 2^m lanes, these are the lanes l ^ i, so
the input vector is permuted 2^m - 1 times and each permutation has weights of its own. Of narrower types a lane needs
the words of its group, which are shuffled to it; floats of 16 bits that no product takes as words become float32 first.
Like depthwise convolution otherwise.
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
    """A grouped tile.

    Attributes
    ----------
    rows, cols : int
        Outputs of a tile.
    block : int
        Tile rows of a packed band; 0: blocked input, read in place.
    """

    rows: int
    cols: int
    block: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Several groups a vector of sums: of float32 as many input as output channels, else as lie in whole words."""
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
    """Whether channels reach lanes one by one, as floats: where words would be taken apart for each of them."""
    if problem.types == ALL_F32:
        return True
    product = single_product_of(problem.types, isa)
    floats = product is not None and product.packed == F32
    return floats and problem.cg == problem.kg and _share_evenly(problem, isa)


def _words(problem: ConvProblem, isa: Isa) -> GroupWords | None:
    """How words reach lanes; None: channels do, or no product takes words."""
    if _mixes(problem, isa) or (product := single_product_of(problem.types, isa)) is None:
        return None
    return GroupWords(isa.lanes, problem.cg, problem.kg, product.name, problem.types.x)


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """As `words.offset`."""
    return words.offset(problem, isa, single_product_of(problem.types, isa))


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """The best tiles by the model."""
    groups = _words(problem, isa)
    for shape in lanewise.shapes(problem, isa, groups.count if groups else problem.cg, 6, groups):
        yield Params(shape.rows, shape.cols, shape.block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """FMA slots, and the traffic without bands."""
    return lanewise.bound(problem, machine, _words(problem, machine.isa))


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """FMA, load and shuffle slots of the tiles, and the traffic of activations."""
    return lanewise.cost(problem, _shape(problem, params, machine.isa), machine)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Blocked input in place or any input of float32 through bands; output in blocks."""
    types = problem.types
    in_place = types != ALL_F32 or params is not None and not params.block
    return (blocked.layout(isa, types.x) if in_place else None), blocked.layout(isa, types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[block][i][R][S][lanes]; of words [vector][i][R][S][part][lanes][elements]."""
    groups = _words(problem, isa)
    if groups is None:
        floats = Mixed(isa.lanes, problem.k, problem.cg, problem.r, problem.s)
        return floats if problem.types.w == F32 else Widened(floats, problem.types.w)
    return GroupPanels.of(problem, groups.product, groups.count * groups.elements, groups.starts)


def is_closed(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether its micro-kernel is of the set for networks with open sizes."""
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
