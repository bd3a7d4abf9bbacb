"""int8 1x1 convolution of channel planes with few output channels: pixels in lanes, channel planes as output.

No reorder of the input is needed: four planes are interleaved in registers to the 32-bit groups that dot products take,
once per tile of output channels. `planar` does this for float32, which needs no interleaving.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.partition import parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, Operands, Space, Step
from cpuconv.kernels.convolutions import few
from cpuconv.kernels.convolutions.plane_words import PlaneWordsCall, plane_words
from cpuconv.kernels.convolutions.plane_words_tile import PlaneWordsTile, plane_words_strip
from cpuconv.kernels.emit.product import WORD
from cpuconv.kernels.packing.folded_words import FoldedWords
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared.solver import Solver

_PLANES = "NCHW"
_LINE = 64
_RUN_PIXELS = 2048  # pixels per unit of work
_STEP = 2  # groups of channels read simultaneously: as many planes as L1 has ways
_RUNS = 4  # units of work per thread, at least
_ISSUE = 4  # instructions per cycle
_LOADS = 16  # instructions to load four planes and interleave them
_EPILOGUE = 22  # epilogue and store instructions per vector of sums
_SEGMENT = 16  # loop instructions per four planes
_TILE = 20.0  # cycles per tile in addition to its instructions


@dataclass(frozen=True)
class Params:
    """Tile of `plane_words`.

    Attributes
    ----------
    n : int
            Output channels.
    wide : int
            Vectors of int8 per plane.
    """

    n: int
    wide: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require planes of at least a tile's pixels, a 1x1 kernel with stride 1, and one group."""
    if not is_plain(problem) or problem.groups != 1:
        return "output pixels are not input pixels of all channels"
    if problem.in_layout != _PLANES:
        return f"the input lies in {problem.in_layout}, not in planes"
    return few.why_not(problem, isa, WORD * isa.lanes)


offset = few.offset


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Evenly divided output channels, up to half of the registers; for one channel, also whole cache lines."""
    most = max(1, isa.registers // 2 // WORD)
    n = max(n for n in range(1, most + 1) if problem.k % n == 0)
    line = max(1, _LINE // (WORD * isa.lanes))
    for wide in sorted({1, line}, reverse=True):
        if (n * wide <= most or wide == 1) and wide * WORD * isa.lanes <= problem.oh * problem.ow:
            yield Params(n, wide)
    if n > 1 and line <= most and line * WORD * isa.lanes <= problem.oh * problem.ow:
        yield Params(1, line)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: products of whole vectors, or activations and weights read once."""
    least = few.cycles(problem, machine.isa, _vectors(problem, machine.isa))
    return machine.seconds(max(least, few.traffic(problem, machine)), problem.threads)


def _vectors(problem: ConvProblem, isa: Isa) -> float:
    """Vectors of 32-bit groups in the input."""
    return problem.n * problem.oh * problem.ow / isa.lanes * divide(problem.c, WORD)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: instructions of products, interleaving and epilogues, and traffic."""
    isa = machine.isa
    product = few.product(problem, isa)
    tiles = problem.n * divide(problem.oh * problem.ow, params.wide * WORD * isa.lanes) * (problem.k // params.n)
    each = few.instructions(product)
    segment = _SEGMENT + params.wide * (_LOADS + params.n * (WORD * each + product.parts))
    made = tiles * (divide(problem.c, WORD) * segment + params.wide * WORD * params.n * _EPILOGUE)
    floor = few.cycles(problem, isa, _vectors(problem, isa))
    cycles = max(floor, made / _ISSUE) + tiles * _TILE
    traffic = few.traffic(problem, machine)
    return machine.cost(floor, max(cycles, traffic) + 0.5 * min(cycles, traffic), problem.threads)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel planes."""
    return _PLANES, _PLANES


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[tile of K][four channels][n][part][lanes, all alike][elements]."""
    return _form(problem, params, isa)


def _form(problem: ConvProblem, params: Params, isa: Isa) -> FoldedWords:
    product = few.product(problem, isa)
    return FoldedWords(1, params.n, problem.k, problem.c, 1, 1, WORD, product.name, problem.types.w, isa.lanes)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the kernel."""
    types, form, x, y = problem.types, _form(problem, params, isa), operands.x.strides, operands.y.strides
    tile = PlaneWordsTile(
        lanes=isa.lanes,
        n=params.n,
        wide=params.wide,
        product=form.product,
        x=types.x,
        sum=types.sum,
        y=types.y,
        residual=operands.residual is not None,
        activation=problem.activation,
    )
    segments, pixels = divide(problem.c, WORD), problem.oh * problem.ow
    planes = np.minimum(np.arange(segments * WORD, dtype=np.int64), problem.c - 1) * x.cb
    steps = divide(segments, _STEP)
    first = replace(tile, suspend=True)
    tiles, number = divide(pixels, tile.pixels), problem.k // params.n
    run = _run(problem, tiles, tile.pixels)
    runs = divide(tiles, run)
    args: Args = {
        "strip": MicroRef(plane_words_strip, replace(tile, resume=steps > 1)),
        "strip_first": MicroRef(plane_words_strip, first) if steps > 1 else 0,
        "strip_middle": MicroRef(plane_words_strip, replace(first, resume=True)) if steps > 2 else 0,
        **operand_args(operands),
        **problem_args(plane_words, problem),
        "table": planes,
        "segments": segments,
        "steps": steps,
        "segment_bytes": form.tile // segments,
        "tiles": number,
        "tile_pixels": tile.pixels,
        "tile_channels": params.n,
        "tile_bytes": form.tile,
        "width": pixels,
        "runs": runs,
        "row_tiles": tiles,
        **worker_args("suspended", space, number * run * tile.suspended_vectors if steps > 1 else 0, problem.threads),
        "suspended_tile": run * tile.suspended_vectors,
        "x_image": x.n,
        "y_image": y.n,
        "y_plane": y.cb,
    }
    each = parts_each(problem, problem.n * runs)
    return [Step(plane_words, PlaneWordsCall(isa.lanes), args, each, clears_tail=True)]


def _run(problem: ConvProblem, tiles: int, pixels: int) -> int:
    """Tiles per unit of work: as many as keep the planes of a step in L1, fewer where threads share an image."""
    run = max(1, _RUN_PIXELS // pixels)
    return min(run, divide(tiles, _RUNS * problem.threads)) if problem.threads > 1 else run


SOLVER = Solver(
    name="plane_words",
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
