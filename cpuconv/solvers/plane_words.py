"""1x1 convolution of planes of bytes to few output channels: pixels in lanes, planes in and out.

Without a reorder of the input: bytes of four planes are interleaved in registers to words that products take, as many
times as there are tiles of output channels. `planar` does the same for float32, which needs no words.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, problem_args
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.partition import parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, Operands, Space, Step
from cpuconv.kernels.convolutions.folded import FoldedCall, folded
from cpuconv.kernels.convolutions.plane_words_tile import PlaneWordsTile, plane_words_strip
from cpuconv.kernels.emit import product as products
from cpuconv.kernels.emit.product import WORD, Product
from cpuconv.kernels.packing.folded_words import FoldedWords
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers import folded as few
from cpuconv.solvers.shared import words

NAME = "plane_words"
ACCURACY = "exact"
ROUNDING = ()
TYPED = True

_PLANES = "NCHW"
_LINE = 64
_RUN_TILES = 16  # of a unit
_ISSUE = 4  # instructions a cycle
_READING = 16  # instructions to read four planes and to interleave them
_ENDING = 22  # instructions to end a vector of sums and to store it
_SEGMENT = 16  # instructions around four planes
_TILE = 20.0  # cycles a tile, beside its instructions


@dataclass(frozen=True)
class Params:
    """A tile.

    Attributes
    ----------
    n : int
        Output channels.
    wide : int
        Vectors of bytes of each plane.
    """

    n: int
    wide: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Planes of at least a tile's pixels, 1x1 pixel by pixel, without groups."""
    if not is_plain(problem) or problem.groups != 1:
        return "output pixels are not input pixels of all channels"
    if problem.in_layout != _PLANES:
        return f"the input lies in {problem.in_layout}, not in planes"
    if problem.oh * problem.ow < WORD * isa.lanes:
        return f"a plane of {problem.oh * problem.ow} pixels does not fill a vector of {WORD * isa.lanes} bytes"
    return few.applicable(problem, isa)


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """As `words.offset`."""
    return words.offset(problem, isa, _product(problem, isa))


def _product(problem: ConvProblem, isa: Isa) -> Product:
    found = products.single_product_of(problem.types, isa)
    assert found is not None
    return found


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """As many output channels as leave half of the registers, in equal tiles; of one, pieces of a cache line too."""
    most = max(1, isa.registers // 2 // WORD)
    n = max(n for n in range(1, most + 1) if problem.k % n == 0)
    line = max(1, _LINE // (WORD * isa.lanes))
    for wide in sorted({1, line}, reverse=True):
        if (n * wide <= most or wide == 1) and wide * WORD * isa.lanes <= problem.oh * problem.ow:
            yield Params(n, wide)
    if n > 1 and line <= most and line * WORD * isa.lanes <= problem.oh * problem.ow:
        yield Params(1, line)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Products of whole vectors, or activations and weights once."""
    return machine.seconds(max(_multiplied(problem, machine.isa), _traffic(problem, machine)), problem.threads)


def _multiplied(problem: ConvProblem, isa: Isa) -> float:
    """Cycles of products alone."""
    product = _product(problem, isa)
    vectors = problem.n * problem.oh * problem.ow / isa.lanes * divide(problem.c, WORD)
    return vectors * problem.k * product.cuts / products.rate(isa, product)


def _traffic(problem: ConvProblem, machine: Machine) -> float:
    return machine.moving(problem.in_bytes + problem.out_bytes + problem.weight_bytes)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Instructions of products, of interleaving and of endings, and the traffic."""
    isa = machine.isa
    product = _product(problem, isa)
    tiles = problem.n * divide(problem.oh * problem.ow, params.wide * WORD * isa.lanes) * (problem.k // params.n)
    each = few.instructions(product)
    segment = _SEGMENT + params.wide * (_READING + params.n * (WORD * each + product.parts))
    made = tiles * (divide(problem.c, WORD) * segment + params.wide * WORD * params.n * _ENDING)
    floor = _multiplied(problem, isa)
    cycles = max(floor, made / _ISSUE) + tiles * _TILE
    traffic = _traffic(problem, machine)
    return machine.cost(floor, max(cycles, traffic) + 0.5 * min(cycles, traffic), problem.threads)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Planes in and out."""
    return _PLANES, _PLANES


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[tile of K][four channels][n][part][lanes, all alike][elements]."""
    return _form(problem, params, isa)


def _form(problem: ConvProblem, params: Params, isa: Isa) -> FoldedWords:
    product = _product(problem, isa)
    return FoldedWords(1, params.n, problem.k, problem.c, 1, 1, WORD, product.name, problem.types.w, isa.lanes)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the folded kernel."""
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
    tiles = divide(pixels, tile.pixels)
    runs = divide(tiles, _RUN_TILES)
    args: Args = {
        **dict.fromkeys(folded.fields, 0),
        **problem_args(folded, problem),
        **operand_args(operands),
        "strip": MicroRef(plane_words_strip, tile),
        "table": planes,
        "segments": segments,
        "fill": words.FILL,
        "tiles": problem.k // params.n,
        "tile_pixels": tile.pixels,
        "tile_channels": params.n,
        "tile_bytes": form.tile,
        "height": 1,
        "width": pixels,
        "runs": runs,
        "row_tiles": tiles,
        "inner_end": tiles,
        "inner_rows_end": 1,
        "x_image": x.n,
        "y_image": y.n,
        "y_plane": y.cb,
    }
    units = problem.n * runs * (problem.k // params.n)
    return [Step(folded, FoldedCall(isa.lanes), args, parts_each(problem, units), clears_tail=True)]
