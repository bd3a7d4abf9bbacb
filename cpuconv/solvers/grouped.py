"""Grouped convolution with several groups in a channel block: lanes hold groups side by side.

An output lane needs every channel of its own group: with groups of 2^m lanes these are the lanes l ^ i, so the input
vector is permuted 2^m - 1 times and each permutation has weights of its own. Like depthwise convolution otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.packing.packed_formats import Mixed
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked, lanewise

NAME = "grouped"
ACCURACY = "exact"
ROUNDING = ()
SHARED_VECTORS = True


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
    """As many input as output channels a group, several groups a block."""
    if problem.cg != problem.kg:
        return f"groups have {problem.cg} input but {problem.kg} output channels"
    if problem.cg == 1:
        return "groups are of one channel: depthwise"
    if problem.cg >= isa.lanes or isa.lanes % problem.cg:
        return f"groups of {problem.cg} channels do not share blocks of {isa.lanes} evenly"
    return None


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """The best tiles by the model."""
    for shape in lanewise.shapes(problem, isa, mix=problem.cg, most=6):
        yield Params(shape.rows, shape.cols, shape.block)


bound = lanewise.bound


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """FMA, load and shuffle slots of the tiles, and the traffic of activations."""
    return lanewise.cost(problem, _shape(problem, params), machine)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Blocked input in place or any input through bands; output in blocks."""
    in_place = params is not None and not params.block
    return (blocked.layout(isa) if in_place else None), blocked.layout(isa)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[block][i][R][S][lanes]."""
    return Mixed(isa.lanes, problem.k, problem.cg, problem.r, problem.s)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the lanewise kernel."""
    return [lanewise.step(problem, _shape(problem, params), isa, space, operands)]


def _shape(problem: ConvProblem, params: Params) -> lanewise.Shape:
    return lanewise.Shape(params.rows, params.cols, False, params.block, problem.cg)
