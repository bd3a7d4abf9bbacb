"""Convolution of bytes to few output channels: vectors along input channels, sums folded across lanes, planes out.

Solvers with output channels in lanes use one lane of a vector for each. Here a vector of channels of a pixel meets the
weights of each output channel, as in a product of a matrix and a vector; folding costs as much as a few products, once
for all taps and channels of a pixel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.partition import parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, Operands, Space, Step
from cpuconv.kernels.convolutions.folded import FoldedCall, folded
from cpuconv.kernels.convolutions.folded_tile import FoldedTile, folded_strip
from cpuconv.kernels.copies.views import plane
from cpuconv.kernels.emit import product as products
from cpuconv.kernels.emit.product import WORD, Product
from cpuconv.kernels.packing.folded_words import FoldedWords
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared import blocked, words

NAME = "folded"
ACCURACY = "exact"
ROUNDING = ()
TYPED = True

_MOST_TOGETHER = 8  # output channels of a tile
_FEW_REGISTERS = 16
_RUN_TILES = 64  # of a plane that is one row: those of a unit
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


def _product(problem: ConvProblem, isa: Isa) -> Product | None:
    return products.single_product_of(problem.types, isa)


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Integers without groups, to at most a vector of output channels, of which a row of output pixels fills one."""
    if not problem.types.sum.integer:
        return f"it computes integers, not {problem.types}"
    if _product(problem, isa) is None:
        return words.why_not(problem, isa) or "no product takes a word that differs from lane to lane"
    if problem.groups != 1 or problem.k > isa.lanes:
        return f"{problem.k} output channels in {problem.groups} groups are not one group of at most {isa.lanes}"
    if _row(problem)[1] < isa.lanes:
        return f"a row of {problem.ow} output pixels does not fill a vector of {isa.lanes}"
    return None


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """As `words.offset`."""
    return words.offset(problem, isa, _product(problem, isa))


def _row(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of an output plane; a plane whose pixels are the input's is one row."""
    return (1, problem.oh * problem.ow) if is_plain(problem) else (problem.oh, problem.ow)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """All output channels in a tile, or equal parts of them."""
    able = [n for n in range(min(problem.k, _MOST_TOGETHER), 0, -1) if problem.k % n == 0]
    yield from map(Params, able[:2])


def _at_once(isa: Isa, n: int, product: Product) -> int:
    """Pixels that are summed side by side: so many sums fill half of the registers."""
    room = isa.registers // (4 if product.cuts > 1 else 2)
    return next(count for count in (16, 8, 4, 2, 1) if count <= isa.lanes and (count * n <= room or count == 1))


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Products of whole vectors, and activations and weights once."""
    return machine.seconds(max(_multiplied(problem, machine.isa), _traffic(problem, machine)), problem.threads)


def _multiplied(problem: ConvProblem, isa: Isa) -> float:
    """Cycles of products alone."""
    product = _product(problem, isa)
    assert product is not None
    return _vectors(problem, isa) * problem.k * product.cuts / products.rate(isa, product)


def _vectors(problem: ConvProblem, isa: Isa) -> int:
    """Vectors of the input that output pixels meet."""
    return problem.n * problem.oh * problem.ow * problem.r * problem.s * len(_starts(problem, isa))


def _starts(problem: ConvProblem, isa: Isa) -> tuple[int, ...]:
    """The first channel of each block."""
    return tuple(range(0, problem.c, isa.block(problem.types.x)))


def _traffic(problem: ConvProblem, machine: Machine) -> float:
    return machine.moving(problem.in_bytes + problem.out_bytes + problem.weight_bytes)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Instructions of products, of folding and of endings, edges, and the traffic."""
    isa = machine.isa
    product = _product(problem, isa)
    assert product is not None
    at_once, vectors = _at_once(isa, params.n, product), _vectors(problem, isa)
    each = {True: 4, False: 1}[product.flipped] if product.parts == 1 or product.flipped else 6
    made = vectors * problem.k * each
    loads = vectors * (problem.k / params.n + problem.k * product.parts / at_once)
    loops = vectors / at_once * problem.k / params.n * _LOOP
    height, width = _row(problem)
    tiles = problem.n * height * divide(width, isa.lanes) * problem.k
    ended = tiles * ((isa.lanes - 1) * _FOLDING + _ENDING)
    floor = _multiplied(problem, isa)
    cycles = max(floor, (made + loads + loops + ended) / _ISSUE) + tiles / params.n * _TILE
    traffic = _traffic(problem, machine)
    return machine.cost(floor, max(cycles, traffic) + 0.5 * min(cycles, traffic), problem.threads)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Channel blocks in, planes out."""
    return blocked.layout(isa, problem.types.x), "NCHW"


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[tile of K][R][S][block of C][n][part][lanes][elements]."""
    return _form(problem, params, isa)


def _form(problem: ConvProblem, params: Params, isa: Isa) -> FoldedWords:
    product = _product(problem, isa)
    assert product is not None
    sizes = problem.k, problem.c, problem.r, problem.s
    starts, group = _starts(problem, isa), words.group(problem)
    return FoldedWords(isa.lanes, params.n, *sizes, starts, group, product.name, problem.types.w)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the folded kernel."""
    lanes, types, form = isa.lanes, problem.types, _form(problem, params, isa)
    product = _product(problem, isa)
    assert product is not None
    x, y, vector = operands.x.strides, operands.y.strides, WORD * lanes
    height, width = problem.oh, problem.ow
    if is_plain(problem):
        views = x, y, *((operands.residual.strides,) if operands.residual else ())
        height, width, (x, y, *_) = plane(problem.oh, problem.ow, *views)
    tile = FoldedTile(
        lanes=lanes,
        n=params.n,
        at_once=_at_once(isa, params.n, product),
        step=x.w * problem.stride[1],
        product=product.name,
        x=types.x,
        sum=types.sum,
        y=types.y,
        residual=operands.residual is not None,
        activation=problem.activation,
    )
    edge_tile = FoldedTile(
        **{**{name: getattr(tile, name) for name in tile.__dataclass_fields__}, "step": vector * problem.stride[1]}
    )
    starts = np.array([start // x.block * x.cb + start % x.block * x.c for start in form.starts], np.int64)
    window = (lanes - 1) * problem.stride[1] + problem.effective_kernel[1]
    edge_line = window * vector
    edge_starts = np.arange(len(starts), dtype=np.int64) * problem.r * edge_line
    padded = any(problem.pads)
    inner = _inside(problem, lanes, width) if padded else (0, divide(width, lanes))
    inner_rows = _inside_rows(problem) if padded else (0, height)
    runs = divide(divide(width, lanes), _RUN_TILES) if height == 1 else height
    args: Args = {
        "strip": MicroRef(folded_strip, tile),
        "strip_edge": MicroRef(folded_strip, edge_tile) if padded else 0,
        **operand_args(operands),
        "table": _table(problem, starts, x.h * problem.dilation[0], x.w),
        "table_edge": _table(problem, edge_starts, edge_line, vector) if padded else 0,
        "segments": problem.r * problem.s * len(starts),
        "starts": starts,
        "blocks": len(starts),
        "window": window,
        **worker_args("edge", space, len(starts) * problem.r * edge_line if padded else 0, problem.threads),
        "fill": words.FILL,
        "tiles": problem.k // params.n,
        "tile_channels": params.n,
        "tile_bytes": form.tile,
        "height": height,
        "width": width,
        "runs": runs,
        "row_tiles": divide(width, lanes),
        "inner": inner[0],
        "inner_end": inner[1],
        "inner_rows": inner_rows[0],
        "inner_rows_end": inner_rows[1],
        **problem_args(folded, problem),
        "x_image": x.n,
        "x_h": x.h,
        "x_w": x.w,
        "y_image": y.n,
        "y_plane": y.cb,
        "y_line": y.h,
        "y_pixel": y.w,
    }
    units = problem.n * runs * (problem.k // params.n)
    return [Step(folded, FoldedCall(lanes), args, parts_each(problem, units), clears_tail=True)]


def _table(problem: ConvProblem, starts: np.ndarray, line: int, pixel: int) -> np.ndarray:
    """Distances in bytes to each block of channels at each tap, whose rows are so many bytes apart."""
    rows, columns = np.arange(problem.r) * line, np.arange(problem.s) * problem.dilation[1] * pixel
    return (rows[:, None, None] + columns[:, None] + starts).ravel().astype(np.int64)


def _inside(problem: ConvProblem, lanes: int, width: int) -> tuple[int, int]:
    """Tiles of a row whose windows lie inside the input: from, and until before."""
    stride, left = problem.stride[1], problem.pads[2]
    reach = (lanes - 1) * stride + problem.effective_kernel[1]
    starts = [min(tile * lanes, width - lanes) * stride - left for tile in range(divide(width, lanes))]
    return _range([start >= 0 and start + reach <= problem.w for start in starts])


def _inside_rows(problem: ConvProblem) -> tuple[int, int]:
    """Output rows whose windows lie inside the input."""
    starts = [row * problem.stride[0] - problem.pads[0] for row in range(problem.oh)]
    return _range([start >= 0 and start + problem.effective_kernel[0] <= problem.h for start in starts])


def _range(inside: list[bool]) -> tuple[int, int]:
    """The range of those that are, which follow one another."""
    found = list(itertools.compress(range(len(inside)), inside))
    return (found[0], found[-1] + 1) if found else (0, 0)
