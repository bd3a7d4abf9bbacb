"""Convolution of bytes to few output channels: vectors along input channels, sums folded across lanes, planes out.

Solvers with output channels in lanes use one lane of a vector for each. Here a vector of channels of a pixel meets the
weights of each output channel, as in a product of a matrix and a vector; folding costs as much as a few products, once
for all taps and channels of a pixel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.partition import parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, Operands, Space, Step
from cpuconv.kernels.convolutions import few
from cpuconv.kernels.convolutions.folded import FoldedCall, folded
from cpuconv.kernels.convolutions.folded_tile import FoldedTile, folded_strip
from cpuconv.kernels.copies.views import plane
from cpuconv.kernels.emit.product import WORD, Product
from cpuconv.kernels.packing.folded_words import FoldedWords
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared import blocked, words
from cpuconv.solvers.shared.solver import Solver

_LAST = "NHWC"
_MOST_TOGETHER = 8  # output channels of a tile
_RUN_TILES = 64  # of a plane that is one row: those of a unit
_RUNS = 4  # of such a plane, for each of several workers, at least
_BESIDE = 6  # registers beside sums and pixels: weights, flips, what becomes of pixels, and a constant
_ISSUE = 4  # instructions a cycle
_FOLDING = 3  # instructions to make one vector of two
_ENDING = 24  # instructions to end a vector of sums and to store it
_LOOP = 6  # instructions around a segment
_TILE = 20.0  # cycles a tile, beside its instructions
_EDGE = 5.0  # cycles to copy a vector of a window


@dataclass(frozen=True)
class Params:
    """A folded tile.

    Attributes
    ----------
    n : int
        Output channels of a tile.
    """

    n: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Integers without groups, to at most a vector of output channels, of which a row of output pixels fills one."""
    return few.why_not(problem, isa, isa.lanes)


offset = few.offset


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """All output channels in a tile, or equal parts of them."""
    able = [n for n in range(min(problem.k, _MOST_TOGETHER), 0, -1) if problem.k % n == 0]
    yield from map(Params, able[:2])


def _at_once(isa: Isa, n: int, product: Product) -> int:
    """Pixels that are summed side by side: so many sums fill half of the registers."""
    room = isa.registers // (4 if product.cuts > 1 else 2)
    return next(count for count in (16, 8, 4, 2, 1) if count <= isa.lanes and (count * n <= room or count == 1))


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Products of whole vectors, or activations and weights once."""
    least = few.cycles(problem, machine.isa, _vectors(problem, machine.isa))
    return machine.seconds(max(least, few.traffic(problem, machine)), problem.threads)


def _vectors(problem: ConvProblem, isa: Isa) -> int:
    """Vectors of the input that output pixels meet."""
    return problem.n * problem.oh * problem.ow * problem.r * problem.s * divide(problem.c, isa.block(problem.types.x))


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Instructions of products, of folding and of endings, edges, and the traffic."""
    isa = machine.isa
    product = few.product(problem, isa)
    at_once, vectors = _at_once(isa, params.n, product), _vectors(problem, isa)
    made = vectors * problem.k * few.instructions(product)
    loads = vectors * (problem.k / params.n + problem.k * product.parts / at_once)
    loops = vectors / at_once * problem.k / params.n * _LOOP
    height, width = few.row(problem)
    tiles = problem.n * height * divide(width, isa.lanes) * problem.k
    ended = tiles * ((isa.lanes - 1) * _FOLDING + _ENDING)
    floor = few.cycles(problem, isa, vectors)
    cycles = max(floor, (made + loads + loops + ended) / _ISSUE) + tiles / params.n * _TILE
    cycles += problem.k / params.n * _edges(problem, isa)
    traffic = few.traffic(problem, machine)
    return machine.cost(floor, max(cycles, traffic) + 0.5 * min(cycles, traffic), problem.threads)


def _edges(problem: ConvProblem, isa: Isa) -> float:
    """Cycles to copy the windows that meet padding."""
    if not any(problem.pads):
        return 0.0
    inside, tiles = Inside.of(problem, isa.lanes, 0), divide(problem.ow, isa.lanes)
    copied = problem.oh * tiles - (inside.tiles[1] - inside.tiles[0]) * (inside.rows[1] - inside.rows[0])
    vectors = ((isa.lanes - 1) * problem.stride[1] + problem.effective_kernel[1]) * problem.r
    return problem.n * copied * vectors * divide(problem.c, isa.block(problem.types.x)) * _EDGE


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Channel blocks in, or channels last where the input has them so; planes out."""
    last = problem.in_layout == _LAST
    one = problem.k == 1 and problem.out_layout == _LAST  # a plane, too
    return _LAST if last else blocked.layout(isa, problem.types.x), _LAST if one else "NCHW"


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[tile of K][R][S][block of C][n][part][lanes][elements]."""
    return _form(problem, params, isa)


def _form(problem: ConvProblem, params: Params, isa: Isa) -> FoldedWords:
    product = few.product(problem, isa)
    sizes = problem.k, problem.c, problem.r, problem.s
    return FoldedWords(isa.lanes, params.n, *sizes, words.group(problem), product.name, problem.types.w)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the folded kernel."""
    lanes, types, form = isa.lanes, problem.types, _form(problem, params, isa)
    product = few.product(problem, isa)
    x, y, vector = operands.x.strides, operands.y.strides, WORD * lanes
    (height, width), stride = few.row(problem), problem.stride[1]
    if is_plain(problem):
        _, _, (x, y) = plane(problem.oh, problem.ow, x, y)
    at_once = _at_once(isa, params.n, product)
    tile = FoldedTile(
        lanes=lanes,
        n=params.n,
        at_once=at_once,
        step=x.w * stride,
        product=product.name,
        x=types.x,
        sum=types.sum,
        y=types.y,
        again=product.flipped and (params.n + 1) * at_once > isa.registers - _BESIDE,
        residual=operands.residual is not None,
        activation=problem.activation,
    )
    block = isa.block(types.x)
    blocks = divide(problem.c, block)
    starts = np.arange(blocks, dtype=np.int64) * (x.cb * block if x.block == 1 else x.cb)
    beyond = blocks * vector - problem.c if x.block == 1 else 0  # bytes that are read after a pixel's
    inside = Inside.of(problem, lanes, beyond)
    window = (lanes - 1) * stride + problem.effective_kernel[1]
    line = window * vector
    tiles = divide(width, lanes)
    least = _RUNS * problem.threads if problem.threads > 1 else 1
    runs = height if height > 1 else max(divide(tiles, _RUN_TILES), min(tiles, least))
    copied = (inside.tiles, inside.rows) != ((0, tiles), (0, height))
    args: Args = {
        "strip": MicroRef(folded_strip, tile),
        "strip_edge": MicroRef(folded_strip, replace(tile, step=vector * stride)) if copied else 0,
        **operand_args(operands),
        "table": _table(problem, starts, x.h * problem.dilation[0], x.w),
        "table_edge": _table(problem, np.arange(blocks) * problem.r * line, line, vector) if copied else 0,
        "segments": problem.r * problem.s * blocks,
        "starts": starts,
        "blocks": blocks,
        "last_bytes": vector - beyond,
        "window": window,
        **worker_args("edge", space, blocks * problem.r * line if copied else 0, problem.threads),
        "fill": words.FILL,
        "tiles": problem.k // params.n,
        "tile_pixels": lanes,
        "tile_channels": params.n,
        "tile_bytes": form.tile,
        "height": height,
        "width": width,
        "runs": runs,
        "row_tiles": tiles,
        "inner": inside.tiles[0],
        "inner_end": inside.tiles[1],
        "inner_rows": inside.rows[0],
        "inner_rows_end": inside.rows[1],
        **problem_args(folded, problem),
        **({"in_height": 1, "in_width": width} if is_plain(problem) else {}),
        "x_image": x.n,
        "x_h": x.h,
        "x_w": x.w,
        "y_image": y.n,
        "y_plane": y.cb,
        "y_line": y.h,
        "y_pixel": types.y.bytes,
    }
    units = problem.n * runs * (problem.k // params.n)
    return [Step(folded, FoldedCall(lanes), args, parts_each(problem, units), clears_tail=True)]


def _table(problem: ConvProblem, starts: np.ndarray, line: int, pixel: int) -> np.ndarray:
    """Distances in bytes to each block of channels at each tap, whose rows are so many bytes apart."""
    rows, columns = np.arange(problem.r) * line, np.arange(problem.s) * problem.dilation[1] * pixel
    return (rows[:, None, None] + columns[:, None] + starts).ravel().astype(np.int64)


class Inside(NamedTuple):
    """Tiles of a row, and rows, whose windows lie inside the input: from, and until before."""

    tiles: tuple[int, int]
    rows: tuple[int, int]

    @classmethod
    def of(cls, problem: ConvProblem, lanes: int, beyond: int) -> Inside:
        """Those of a problem whose last `beyond` bytes of pixels are not the input's where the input ends."""
        height, width = few.row(problem)
        (stride_h, stride), (top, _, left, _) = problem.stride, problem.pads
        reach_h, reach_w = problem.effective_kernel
        reach = (lanes - 1) * stride + reach_w
        starts = [min(tile * lanes, width - lanes) * stride - left for tile in range(divide(width, lanes))]
        if height == 1 and is_plain(problem):
            return cls(_range([start + reach <= width - divide(beyond, problem.c) for start in starts]), (0, 1))
        rows = [row * stride_h - top for row in range(height)]
        below = [(problem.h - row - reach_h) * problem.w * problem.c for row in rows]
        return cls(
            _range([start >= 0 and start + reach <= problem.w for start in starts]),
            _range([row >= 0 and under >= beyond for row, under in zip(rows, below, strict=True)]),
        )


def _range(inside: list[bool]) -> tuple[int, int]:
    """The range of those that are, which follow one another."""
    found = list(itertools.compress(range(len(inside)), inside))
    return (found[0], found[-1] + 1) if found else (0, 0)


SOLVER = Solver(
    name="folded",
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
