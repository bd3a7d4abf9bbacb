"""int8 convolution with few output channels: vector lanes hold input channels, and sums are reduced across lanes.

Other solvers hold output channels in lanes, so that few channels leave most lanes idle. Here a vector of input channels
of a pixel is multiplied by the weights of each output channel, as in a matrix-vector product. Reducing a sum across
lanes costs as much as a few products, once per pixel for all taps and channels. The output is channel planes.
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
_MAX_CHANNELS = 8  # output channels per tile
_RUN_TILES = 64  # tiles per unit of work, where a plane is one row
_RUNS = 4  # units of work of such a plane per thread, at least
_OTHER_REGISTERS = 6  # registers besides sums and pixels: weights, sign flips, converted pixels, and a constant
_ISSUE = 4  # instructions per cycle
_REDUCTION = 3  # instructions to reduce two vectors to one
_EPILOGUE = 24  # epilogue and store instructions per vector of sums
_LOOP = 6  # loop instructions per segment
_TILE = 20.0  # cycles per tile in addition to its instructions
_EDGE = 5.0  # cycles to copy one vector of a window


@dataclass(frozen=True)
class Params:
    """Tile of a convolution with reduced sums.

    Attributes
    ----------
    n : int
            Output channels of the tile.
    """

    n: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require integers, one group, at most a vector of output channels, and output rows of at least one vector."""
    return few.why_not(problem, isa, isa.lanes)


offset = few.offset


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """All output channels in one tile, or divided evenly."""
    able = [n for n in range(min(problem.k, _MAX_CHANNELS), 0, -1) if problem.k % n == 0]
    yield from map(Params, able[:2])


def _pixels_per_pass(isa: Isa, n: int, product: Product) -> int:
    """Pixels that are summed simultaneously: as many as fill half of the registers with sums."""
    room = isa.registers // (4 if product.cuts > 1 else 2)
    return next(count for count in (16, 8, 4, 2, 1) if count <= isa.lanes and (count * n <= room or count == 1))


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: products of whole vectors, or activations and weights read once."""
    least = few.cycles(problem, machine.isa, _vectors(problem, machine.isa))
    return machine.seconds(max(least, few.traffic(problem, machine)), problem.threads)


def _vectors(problem: ConvProblem, isa: Isa) -> int:
    """Input vectors that all output pixels read."""
    return problem.n * problem.oh * problem.ow * problem.r * problem.s * divide(problem.c, isa.block(problem.types.x))


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: instructions of products, reductions and epilogues, edges, and traffic."""
    isa = machine.isa
    product = few.product(problem, isa)
    at_once, vectors = _pixels_per_pass(isa, params.n, product), _vectors(problem, isa)
    made = vectors * problem.k * few.instructions(product)
    loads = vectors * (problem.k / params.n + problem.k * product.parts / at_once)
    loops = vectors / at_once * problem.k / params.n * _LOOP
    height, width = few.row(problem)
    tiles = problem.n * height * divide(width, isa.lanes) * problem.k
    ended = tiles * ((isa.lanes - 1) * _REDUCTION + _EPILOGUE)
    floor = few.cycles(problem, isa, vectors)
    cycles = max(floor, (made + loads + loops + ended) / _ISSUE) + tiles / params.n * _TILE
    cycles += problem.k / params.n * _edges(problem, isa)
    traffic = few.traffic(problem, machine)
    return machine.cost(floor, max(cycles, traffic) + 0.5 * min(cycles, traffic), problem.threads)


def _edges(problem: ConvProblem, isa: Isa) -> float:
    """Cycles to copy the windows that overlap padding."""
    if not any(problem.pads):
        return 0.0
    inside, tiles = Inside.of(problem, isa.lanes, 0), divide(problem.ow, isa.lanes)
    copied = problem.oh * tiles - (inside.tiles[1] - inside.tiles[0]) * (inside.rows[1] - inside.rows[0])
    vectors = ((isa.lanes - 1) * problem.stride[1] + problem.effective_kernel[1]) * problem.r
    return problem.n * copied * vectors * divide(problem.c, isa.block(problem.types.x)) * _EDGE


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel blocks or, if the input is so, channels last as input; channel planes as output."""
    last = problem.in_layout == _LAST
    one = problem.k == 1 and problem.out_layout == _LAST  # one channel last is a plane, too
    return _LAST if last else blocked.layout(isa, problem.types.x), _LAST if one else "NCHW"


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[tile of K][R][S][block of C][n][part][lanes][elements]."""
    return _form(problem, params, isa)


def _form(problem: ConvProblem, params: Params, isa: Isa) -> FoldedWords:
    product = few.product(problem, isa)
    sizes = problem.k, problem.c, problem.r, problem.s
    return FoldedWords(isa.lanes, params.n, *sizes, words.group(problem), product.name, problem.types.w)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the kernel."""
    lanes, types, form = isa.lanes, problem.types, _form(problem, params, isa)
    product = few.product(problem, isa)
    x, y, vector = operands.x.strides, operands.y.strides, WORD * lanes
    (height, width), stride = few.row(problem), problem.stride[1]
    if is_plain(problem):
        _, _, (x, y) = plane(problem.oh, problem.ow, x, y)
    at_once = _pixels_per_pass(isa, params.n, product)
    tile = FoldedTile(
        lanes=lanes,
        n=params.n,
        at_once=at_once,
        step=x.w * stride,
        product=product.name,
        x=types.x,
        sum=types.sum,
        y=types.y,
        again=product.flipped and (params.n + 1) * at_once > isa.registers - _OTHER_REGISTERS,
        residual=operands.residual is not None,
        activation=problem.activation,
    )
    block = isa.block(types.x)
    blocks = divide(problem.c, block)
    starts = np.arange(blocks, dtype=np.int64) * (x.cb * block if x.block == 1 else x.cb)
    beyond = blocks * vector - problem.c if x.block == 1 else 0  # bytes read past the end of a pixel
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
    """Offsets in bytes to each channel block at each tap, given the bytes per row (`line`) and pixel."""
    rows, columns = np.arange(problem.r) * line, np.arange(problem.s) * problem.dilation[1] * pixel
    return (rows[:, None, None] + columns[:, None] + starts).ravel().astype(np.int64)


class Inside(NamedTuple):
    """Half-open ranges of tiles in a row, and of rows, whose windows are inside the input."""

    tiles: tuple[int, int]
    rows: tuple[int, int]

    @classmethod
    def of(cls, problem: ConvProblem, lanes: int, beyond: int) -> Inside:
        """Ranges for a problem, where the kernel reads `beyond` bytes past the end of a pixel."""
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
    """Half-open range of the true entries, which are adjacent."""
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
