"""im2col of types other than float32, one patch per output pixel: for any convolution and layout.

Sources: those of `im2col`. The elements of a receptive field are packed as the 32-bit groups that dot products take.
The patches of a block of pixels stay in L2 while all weight panels use them, and are replaced by those of the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cpuconv.elements import Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.partition import UNPARTITIONED, Grid, best_partition, parts_each
from cpuconv.kernels.binding.steps import Args, Operands, Space, Step
from cpuconv.kernels.convolutions.pixel_blocks import PixelBlockTile, patches
from cpuconv.kernels.copies.rows import ANY, BLOCKED, RowTile
from cpuconv.kernels.copies.views import plane, row_tile, view_args
from cpuconv.kernels.emit.product import WORD
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.packing.patches import ADJACENT, APART
from cpuconv.kernels.packing.word_panels import PatchPanels
from cpuconv.kernels.products.closed.closed_set import row_columns
from cpuconv.kernels.products.tiling import Tile, cycles, pixel_cycles, plane_cycles, segment, tiles
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import gemm_call, words
from cpuconv.solvers.shared.base import check_tile
from cpuconv.solvers.shared.blocked import least_cycles
from cpuconv.solvers.shared.gemm_call import bias_bytes, ending_cycles, gemm_args, gemm_tile
from cpuconv.solvers.shared.solver import Solver
from cpuconv.symbolic.sizes import least, now
from layouts import Strides, get

_SHARES = (0.5, 0.15)  # shares of L2 for the patches of a block
_TAP_CYCLES = (24.0, 4.0)  # cycles per copied tap with adjacent channels, and per 64 bytes of it (all on Zen 5)
_ELEMENT_CYCLES = 8.0  # cycles per element copied alone
_OUT_CYCLES = (10.0, 2.0)  # cycles per vector stored whole to the output, and per element stored alone
_PLANE_CYCLES = 0.4  # cycles per element stored to a plane by transposed vectors


class Sizes(NamedTuple):
    """Sizes of a group: vectors of sums, elements and 32-bit groups per patch, and weight vectors per sum."""

    vectors: int
    depth: int
    words: int
    reduction: int

    @classmethod
    def of(cls, problem: ConvProblem, isa: Isa) -> Sizes:
        """Sizes for a problem."""
        depth = problem.cg * problem.r * problem.s
        product = words.product(problem, isa)
        at_once = product.words_at_once(isa.lanes)
        count = divide(depth, words.group(problem) * at_once) * at_once
        return cls(divide(problem.kg, isa.lanes), depth, count, count * product.parts)


Params = gemm_call.Params


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require types with a dot product; float32 has `im2col` instead."""
    return f"it computes other types than {ALL_F32}" if problem.types == ALL_F32 else words.why_not(problem, isa)


offset = words.offset


def _dot_isa(problem: ConvProblem, isa: Isa) -> Isa:
    """Instruction set for the tile model, in which the problem's dot product replaces the FMA."""
    return words.seen(isa, words.product(problem, isa))


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model, each with patches that fill at most half of L2."""
    sizes = Sizes.of(problem, isa)
    pixels, patch = problem.oh * problem.ow, sizes.words * WORD
    shape = _dot_isa(problem, isa), sizes.vectors, 1, pixels, sizes.reduction
    whole = tiles(*shape, most=2, counts=(words.vectors_per_pixel(problem),))  # panels that end with output blocks
    for tile in dict.fromkeys((*tiles(*shape, most=4), *whole)):
        total = divide(pixels, tile.cols)
        fitting = [int(share * machine().l2 / (tile.cols * patch)) for share in _SHARES]
        for block in sorted({min(total, max(1, count)) for count in fitting}, reverse=True):
            yield Params(tile.v, tile.cols, block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: products, stores, patches once, weights once, and output copies."""
    sizes = Sizes.of(problem, machine.isa)
    pixels = problem.n * problem.groups * sizes.vectors * problem.oh * problem.ow
    compute = pixels * pixel_cycles(_dot_isa(problem, machine.isa), sizes.reduction)
    return machine.seconds(compute + _overhead(problem, machine, 1, words.vectors_per_pixel(problem)), problem.threads)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: products of the tiles, patches, output copies, and traffic."""
    seen, sizes = _dot_isa(problem, machine.isa), Sizes.of(problem, machine.isa)
    tile = Tile(params.v, 1, params.n)
    compute = plane_cycles(seen, tile, sizes.vectors, 1, problem.oh * problem.ow, sizes.reduction)
    blocks, grid = _grid(problem, params, machine.isa)
    vectors = problem.n * problem.groups * problem.oh * problem.ow * sizes.vectors
    total = problem.n * problem.groups * compute + vectors * ending_cycles(problem, params.v)
    total += _overhead(problem, machine, blocks, params.v)
    floor = vectors * least_cycles(machine.isa, words.product(problem, machine.isa), sizes.reduction)
    return machine.cost(floor, total * grid.imbalance(problem.threads, blocks), problem.threads)


def _overhead(problem: ConvProblem, machine: Machine, blocks: int, v: int) -> float:
    """Cycles in addition to tiles of `v` weight vectors: patches, output copies, and traffic."""
    pixels = problem.n * problem.oh * problem.ow
    moved = problem.in_bytes + problem.out_bytes + problem.weight_bytes
    again = problem.weight_bytes * max(0, blocks * problem.n - 1) / machine.rate(problem.weight_bytes)
    return (
        pixels * (_patch_cycles(problem) * problem.groups + _output_cycles(problem, machine.isa, v))
        + machine.moving(moved)
        + again
    )


def _patch_cycles(problem: ConvProblem) -> float:
    """Cycles to build the patch of one output pixel."""
    taps, size = problem.r * problem.s, problem.types.x.bytes
    if _has_adjacent_channels(problem):
        whole, each = _TAP_CYCLES
        return taps * (whole + each * divide(problem.cg * size, 64))
    return taps * problem.cg * _ELEMENT_CYCLES


def _output_cycles(problem: ConvProblem, isa: Isa, v: int) -> float:
    """Cycles to copy the sums of one output pixel to the output."""
    whole, alone = _OUT_CYCLES
    block = isa.block(problem.types.y)
    view = get(problem.out_layout)
    if view.block == 1 and view.axes[-1] == "w":
        return _PLANE_CYCLES * problem.k
    beside = view.block == 1 or _whole_blocks(problem, isa, v, view.block)
    return whole * divide(problem.k, block) if beside else alone * problem.k


def _has_adjacent_channels(problem: ConvProblem) -> bool:
    """Whether the layout stores the channels of a group next to each other."""
    view = get(problem.in_layout)
    return problem.cg == 1 or view.axes[-1] != "w" and _in_one_block(problem, view.block)


def _in_one_block(problem: ConvProblem, block: int) -> bool:
    """Whether every group is within one block of `block` channels (1: no blocks)."""
    return block == 1 or problem.c <= block or problem.groups > 1 and block % problem.cg == 0


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: all, with any strides."""
    return None, None


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[group][panel][word of a patch][part][v][lanes of K][elements]."""
    return PatchPanels.of(problem, isa.lanes, params.v, words.product(problem, isa))


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the patch kernel."""
    lanes, types = isa.lanes, problem.types
    x, y, extra = operands.x.strides, operands.y, operands.residual or operands.y
    has_residual = operands.residual is not None
    product, sizes, vectors_per_pixel = (
        words.product(problem, isa),
        Sizes.of(problem, isa),
        words.vectors_per_pixel(problem),
    )
    pixels = problem.oh * problem.ow
    panels = divide(sizes.vectors, params.v)
    _, y_width, (target, added) = plane(problem.oh, problem.ow, y.strides, extra.strides)
    rows, extra_rows = (_rows(problem, isa, params, view, types.y) for view in (target, added))
    unroll, tail = segment(isa, sizes.words)
    used = sizes.vectors - (panels - 1) * params.v
    gemm = gemm_tile(
        problem, isa, product, params.v, 1, params.n, sizes.reduction, unroll=unroll, xs=sizes.words, tail=tail
    )
    table = np.arange(divide(sizes.words, unroll), dtype=np.int64) * unroll * WORD
    zeros = divide(used, vectors_per_pixel) * vectors_per_pixel - used
    last = replace(gemm, valid=problem.kg % lanes, unused_vectors=params.v - used, zeros=zeros)
    columns = row_columns(isa, _dot_isa(problem, isa), gemm, last, pixels)
    params = replace(params, n=columns.taken)
    check_tile(1, params.n, 1, pixels)
    blocks, chunks = best_partition(problem.threads, *_grid(problem, params, isa))
    block_pixels = least(pixels, divide(divide(pixels, params.n), blocks) * params.n)
    patch = sizes.words * WORD
    vector_step = block_pixels * lanes * WORD
    sums_step = divide(params.v, vectors_per_pixel) * vector_step + 64
    args: Args = {
        **gemm_args(operands, gemm, last, table, sizes.reduction, panels, columns),
        "tile_columns": params.n,
        "tails": int(tail > 0),
        "bias_vector": bias_bytes(problem, isa),
        "bias_group": sizes.vectors * bias_bytes(problem, isa) if types.sum.integer else problem.kg * WORD,
        "fill": words.FILL,
        "vectors": panels * params.v,
        "chunks": chunks,
        "blocks": blocks,
        "tiles": divide(pixels, params.n),
        "pixels": pixels,
        **worker_args("columns", space, block_pixels * patch + 64, problem.threads),
        "pitch": 0,  # stride of groups in a patch: a constant of the micro-kernel
        "patch": patch,
        "spare": sizes.words * words.group(problem) - sizes.depth,
        **worker_args("sums", space, sums_step, problem.threads),
        "extra": space.reserve(sums_step * problem.threads) if has_residual else 0,
        "vector_step": vector_step,
        "channels": problem.k,
        "stored": divide(problem.k, target.block) * target.block,
        **problem_args(patches, problem),
        "out_width": problem.ow,
        **view_args("x", x),
        "y_width": y_width,
        **view_args("y", target),
        **view_args("r", added),
    }
    taps = RowTile(lanes, ANY, types.x.bytes)
    whole = rows.kind == BLOCKED and target.block == isa.block(types.y)
    load = ADJACENT if _adjacent_in(problem, x) else APART
    tile = PixelBlockTile(lanes, load, has_residual, False, rows, extra_rows, taps, vectors_per_pixel, whole)
    each = parts_each(problem, problem.n * problem.groups * blocks * chunks)
    return [Step(patches, tile, args, each, clears_tail=True)]


def _adjacent_in(problem: ConvProblem, x: Strides) -> bool:
    """Whether a view stores the channels of every group next to each other."""
    size = problem.types.x.bytes
    return (x.cb if x.block == 1 else x.c) == size and _in_one_block(problem, x.block)


def _rows(problem: ConvProblem, isa: Isa, params: Params, view: Strides, element: Element) -> RowTile:
    """Copy loops for a view of the output; by blocks only if panels and groups start at block boundaries."""
    tile = row_tile(isa.lanes, view, element, problem.kg)
    whole = _whole_blocks(problem, isa, params.v, view.block)
    return tile if view.block == 1 or whole else RowTile(isa.lanes, ANY, element.bytes)


def _whole_blocks(problem: ConvProblem, isa: Isa, v: int, block: int) -> bool:
    """Whether panels of `v` weight vectors, and groups, start at multiples of `block` channels."""
    group = isa.block(problem.types.y)
    aligned = v % words.vectors_per_pixel(problem) == 0 or divide(problem.kg, isa.lanes) <= v
    return aligned and (problem.groups == 1 or problem.kg % max(group, block) == 0)


def _grid(problem: ConvProblem, params: Params, isa: Isa) -> tuple[int, Grid]:
    """Blocks of pixels, and the grid of work."""
    total = divide(problem.oh * problem.ow, params.n)
    blocks = divide(total, params.block)
    if problem.threads == 1:
        return blocks, UNPARTITIONED
    sizes, seen = Sizes.of(problem, isa), _dot_isa(problem, isa)
    grid = Grid(
        planes=max(1, problem.n * problem.groups),
        tiles=total,
        panels=divide(sizes.vectors, params.v),
        unit=cycles(seen, params.v, now(params.n), sizes.reduction),
        prepare=_patch_cycles(problem) * params.n,
        weight_cycles=problem.weight_bytes / isa.l3_rate,
        activation_cycles=(problem.in_bytes + problem.out_bytes) / isa.l3_rate,
    )
    return blocks, grid


SOLVER = Solver(
    name="patches",
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
