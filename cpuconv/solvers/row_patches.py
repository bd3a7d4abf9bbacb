"""First layers of types other than float32: the pixels under one kernel row are packed as whole 32-bit groups.

Source: the reduced lowering of oneDNN's AMX convolutions, which merges the axes of kernel columns and channels. The
padded rows of a block (its band) are packed once and stay in L2 or L1 while all weight panels use them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import output_args, problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.partition import Grid, best_partition, parts_each
from cpuconv.kernels.binding.steps import Args, Operands, Space, Step
from cpuconv.kernels.convolutions.row_patches import ADJACENT, APART, PLANES, WHOLE, RowPatchTile, row_patches
from cpuconv.kernels.copies.views import view_args
from cpuconv.kernels.emit.product import WORD, Product, matrix_product_of
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.packing.word_panels import PatchPanels
from cpuconv.kernels.products.closed.closed_set import row_columns
from cpuconv.kernels.products.matrix_strip import configuration, fits, matrix_cycles
from cpuconv.kernels.products.tiling import cycles, pixel_cycles, tiles
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import gemm_call, words
from cpuconv.solvers.shared.base import check_tile
from cpuconv.solvers.shared.blocked import layout, least_cycles
from cpuconv.solvers.shared.gemm_call import bias_bytes, ending_cycles, gemm_args, gemm_tile
from cpuconv.solvers.shared.solver import Solver
from cpuconv.symbolic.sizes import greatest, least, now
from layouts import Strides

_BAND_SHARES = (0.4, 0.1)  # shares of L2 for a band
_LINE_CYCLES = 1.0  # cycles per pixel of a row
_PIECE_CYCLES = {True: 2.0, False: 4.0}  # cycles per vector of a band, with AMX (on a Xeon) and without (Zen 5)
_APART_CYCLES = 5.5  # cycles per element copied alone
_FEW = 4  # channels that are interleaved by vectors
_MATRIX_COLUMNS = (32, 16)


class Sizes(NamedTuple):
    """Vectors of sums, elements per pixel, groups per kernel row and per input vector, and weight vectors per sum."""

    product: Product
    vectors: int
    pixel: int
    run: int
    piece: int
    reduction: int

    @classmethod
    def of(cls, problem: ConvProblem, isa: Isa) -> Sizes:
        """Sizes for a problem: those of AMX where the CPU has it."""
        product = matrix_product_of(problem.types) or words.product(problem, isa)
        group = words.group(problem)
        beside = problem.types.x.integer and problem.dilation[1] == 1 and not product.matrix
        pixel = problem.c if beside else divide(problem.c, group) * group
        run = divide(problem.s * pixel, group)
        segments, at_once = divide(run, isa.lanes), product.words_at_once(isa.lanes)
        piece = segments * divide(run, segments * at_once) * at_once
        return cls(product, divide(problem.k, isa.lanes), pixel, run, piece, problem.r * piece * product.parts)

    def cycles(self, isa: Isa, v: int, n: int) -> float:
        """Modelled cycles per tile."""
        if self.product.matrix:
            return matrix_cycles(v, 1, n, self.reduction / isa.lanes)
        return cycles(words.seen(isa, self.product), v, n, self.reduction)


Params = gemm_call.Params


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require one group, few channels, and a type other than float32 with a dot product."""
    if problem.types == ALL_F32:
        return f"it computes other types than {ALL_F32}"
    if (why := words.why_not(problem, isa)) is not None:
        return why
    if problem.groups > 1:
        return f"there are {problem.groups} groups, not 1"
    if problem.c * problem.types.x.bytes > WORD * isa.lanes:
        return f"{problem.c} input channels fill more than a vector"
    return None


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Offsets that kernels add to input and weights; zeros with AMX."""
    return (0, 0) if matrix_product_of(problem.types) else words.offset(problem, isa)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model, with blocks whose bands fit into L2."""
    sizes, pixels = Sizes.of(problem, isa), problem.oh * problem.ow
    counts = words.vector_counts(problem, isa) or ()
    if sizes.product.matrix:
        shapes = [
            (v, min(n, pixels))
            for v, n in itertools.product((2, 4, 1), _MATRIX_COLUMNS)
            if v in counts and v < 2 * sizes.vectors and fits(v, 1, n)
        ]
    else:
        found = tiles(words.seen(isa, sizes.product), sizes.vectors, 1, pixels, sizes.reduction, 5, counts)
        shapes = [(tile.v, tile.cols) for tile in found]
    for v, n in dict.fromkeys(shapes):
        for block in _row_counts(problem, sizes, n):
            yield Params(v, n, block)


def _row_counts(problem: ConvProblem, sizes: Sizes, n: int) -> list[int]:
    """Candidate numbers of output rows per block; a row has at least the pixels of a tile."""
    line = problem.ow * sizes.piece * WORD * problem.stride[0]
    fitting = [min(problem.oh, max(1, int(share * machine().l2 / line))) for share in _BAND_SHARES]
    return sorted({max(divide(n, problem.ow), count) for count in fitting}, reverse=True)


def _blocks(problem: ConvProblem, params: Params, isa: Isa, sizes: Sizes) -> int:
    """Number of blocks of rows, each with at least the pixels of a tile."""
    fewest = divide(params.n, problem.ow)  # rows per block, at least
    grid = Grid(
        planes=greatest(1, problem.n),
        tiles=problem.oh,
        panels=1,
        unit=divide(sizes.vectors, params.v) * problem.ow / params.n * sizes.cycles(isa, params.v, now(params.n)),
        prepare=_band_cycles(problem, isa, sizes) / problem.oh,
        weight_cycles=0.0,
        activation_cycles=(problem.in_bytes + problem.out_bytes) / isa.l3_rate,
    )
    blocks, _ = best_partition(problem.threads, divide(problem.oh, params.block), grid)
    return greatest(1, least(blocks, problem.oh // fewest))


def _band_cycles(problem: ConvProblem, isa: Isa, sizes: Sizes) -> float:
    """Cycles to pack the bands of one image."""
    rows = problem.h + sum(problem.pads[:2])
    return rows * (
        problem.w * _pixel_cycles(problem, isa)
        + problem.ow * _PIECE_CYCLES[sizes.product.matrix] * divide(sizes.piece, isa.lanes)
    )


def _pixel_cycles(problem: ConvProblem, isa: Isa) -> float:
    """Cycles to copy one pixel to a row of a band."""
    whole = problem.c <= _FEW or problem.in_layout == layout(isa, problem.types.x)
    return _LINE_CYCLES if whole else _APART_CYCLES * problem.c


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: products and stores, or traffic."""
    isa, sizes = machine.isa, Sizes.of(problem, machine.isa)
    pixels = problem.n * problem.oh * problem.ow
    if sizes.product.matrix:
        each = min(sizes.cycles(isa, v, n) / (v * n) for v, n in itertools.product((1, 2, 4), _MATRIX_COLUMNS))
    else:
        each = pixel_cycles(words.seen(isa, sizes.product), sizes.reduction)
    return machine.seconds(pixels * sizes.vectors * each + _traffic(problem, machine, sizes), problem.threads)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: tiles, bands, and traffic."""
    isa, sizes = machine.isa, Sizes.of(problem, machine.isa)
    count = divide(sizes.vectors, params.v) * divide(problem.oh * problem.ow, params.n)
    compute = problem.n * count * sizes.cycles(isa, params.v, params.n)
    vectors = problem.n * problem.oh * problem.ow * sizes.vectors
    if not sizes.product.matrix:
        compute += vectors * ending_cycles(problem, params.v)
    floor = vectors * least_cycles(isa, sizes.product, sizes.reduction)
    return machine.cost(floor, compute + _traffic(problem, machine, sizes), problem.threads)


def _traffic(problem: ConvProblem, machine: Machine, sizes: Sizes) -> float:
    return problem.n * _band_cycles(problem, machine.isa, sizes) + machine.moving(problem.stored_bytes)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: any input; channel blocks as output."""
    return None, layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[panel][kernel row][word][part][v][lanes of K][elements]."""
    sizes = Sizes.of(problem, isa)
    row = sizes.piece * words.group(problem)
    return PatchPanels.of(problem, isa.lanes, params.v, sizes.product, sizes.pixel, row, _segment(sizes, isa))


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the kernel."""
    lanes, types, x = isa.lanes, problem.types, operands.x.strides
    sizes, vectors_per_pixel = Sizes.of(problem, isa), words.vectors_per_pixel(problem)
    product, panels = sizes.product, divide(sizes.vectors, params.v)
    used, unroll = sizes.vectors - (panels - 1) * params.v, _segment(sizes, isa)
    gemm = gemm_tile(problem, isa, product, params.v, 1, params.n, sizes.reduction, unroll=unroll, xs=sizes.piece)
    zeros = divide(sizes.vectors, vectors_per_pixel) * vectors_per_pixel - sizes.vectors
    last = replace(gemm, valid=problem.k % lanes, unused_vectors=params.v - used, zeros=zeros)
    columns = row_columns(isa, words.seen(isa, product), gemm, last, problem.oh * problem.ow)
    params = replace(params, n=columns.taken)
    check_tile(1, params.n, 1, problem.oh * problem.ow)
    row_blocks = _blocks(problem, params, isa, sizes)
    stride, high = problem.stride[0], problem.effective_kernel[0]
    rows = (divide(problem.oh, row_blocks) - 1) * stride + high
    band_line = problem.ow * sizes.piece * WORD
    phase = divide(rows, stride) * band_line + lanes * WORD  # the last group is written as a whole vector
    line_width = (problem.ow - 1) * problem.stride[1] + problem.effective_kernel[1]
    pad_left = min(problem.pads[2], line_width)
    line_step = max(line_width, pad_left + problem.w) * sizes.pixel * types.x.bytes + 4 * lanes * WORD
    taps = np.arange(problem.r, dtype=np.int64) * problem.dilation[0]
    pieces_of_row = np.arange(divide(sizes.piece, unroll), dtype=np.int64) * unroll * WORD
    table = (taps % stride * phase + taps // stride * band_line)[:, None] + pieces_of_row
    args: Args = {
        **gemm_args(operands, gemm, last, table.ravel(), sizes.reduction, panels, columns, product.matrix),
        "tile_columns": params.n,
        "tails": 0,
        "bias_vector": bias_bytes(problem, isa),
        "fill": words.FILL,
        "configuration": configuration(params.v, 1, params.n) if product.matrix else 0,
        "row_blocks": row_blocks,
        "height": problem.oh,
        "out_width": problem.ow,
        **worker_args("line", space, line_step, problem.threads),
        "line_width": line_width,
        "inside": max(0, min(problem.w, line_width - pad_left)),
        **worker_args("band", space, stride * phase, problem.threads),
        "band_line": band_line,
        "phase": phase,
        "reach": high,
        **problem_args(row_patches, problem),
        "pad_left": pad_left,
        **view_args("x", x),
        **output_args(operands.y),
    }
    source, given = _source(problem, sizes, x, isa)
    run = sizes.run if problem.dilation[1] == 1 else 0
    tile = RowPatchTile(
        lanes, types.x.bytes, source, problem.c, given, sizes.pixel, run, sizes.piece, vectors_per_pixel, product.matrix
    )
    return [Step(row_patches, tile, args, parts_each(problem, problem.n * row_blocks), clears_tail=True)]


def _segment(sizes: Sizes, isa: Isa) -> int:
    """Groups per segment: an equal share of a kernel row."""
    return sizes.piece // divide(sizes.piece, isa.lanes)


def _source(problem: ConvProblem, sizes: Sizes, x: Strides, isa: Isa) -> tuple[int, int]:
    """Strides of a view's elements, and the number of adjacent channels."""
    size = problem.types.x.bytes
    if problem.c <= _FEW:
        if x.block == 1 and x.w == size:
            return PLANES, 0
        beside = x.cb == size if x.block == 1 else x.c == size and problem.c <= x.block
        if beside and x.w % size == 0 and problem.c <= x.w // size <= sizes.pixel:
            return ADJACENT, x.w // size
    whole = x.c == size and problem.c <= x.block and x.block * size == x.w == WORD * isa.lanes
    return (WHOLE if whole else APART), 0


SOLVER = Solver(
    name="row_patches",
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
