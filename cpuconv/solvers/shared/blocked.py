"""Geometry, packed weights, cost and driver call that pointwise and direct convolution share."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import layouts
from cpuconv.elements import F32, PART_STEP, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import output_args, problem_args, worker_args
from cpuconv.kernels.binding.columns import Columns
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.partition import UNPARTITIONED, Grid, best_partition, parts_each
from cpuconv.kernels.binding.steps import Args, Operands, Space, Step
from cpuconv.kernels.convolutions.convolve import BLOCKED_BAND, NO_BAND, PLANAR_BAND, ConvolveTile, convolve
from cpuconv.kernels.copies.rows import BLOCKED, RowTile
from cpuconv.kernels.copies.views import is_blocked, row_tile, view_args
from cpuconv.kernels.emit.product import WORD, Product
from cpuconv.kernels.products.closed.closed_set import row_columns
from cpuconv.kernels.products.gemm_tile import LINE, GemmTile
from cpuconv.kernels.products.matrix_strip import configuration
from cpuconv.kernels.products.tiling import Tile, pixel_cycles
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import segments, spans, words
from cpuconv.solvers.shared.base import check_tile
from cpuconv.solvers.shared.gemm_call import Fetching, bias_bytes, gemm_args, gemm_tile, micro
from cpuconv.solvers.shared.geometry import Geometry, Params, geometry, inner_tiles
from cpuconv.solvers.shared.spans import Spans
from cpuconv.symbolic.sizes import applied, greatest, item, now
from layouts import Strides

_BAND_SHARE = 0.5  # share of L2 for a packed band
_PART_SHARE = 0.2  # share of L2 for the part of a weight panel that all tiles of a block use
_GATHER = 2.0  # cycles per float32 copied alone
_TRANSPOSE = 0.25  # cycles per float32 copied from another layout into channel blocks
_STEPS_TO_BAND = (0.25, 1.0)  # candidate band sizes, as shares of the largest that fits


@functools.cache
def layout(isa: Isa, element: Element = F32) -> str:
    """Blocked layout of an element type on this instruction set."""
    return layouts.blocked(isa.block(element)).name


def aligned_groups(problem: ConvProblem, isa: Isa) -> str | None:
    """Reason why groups do not fit into channel blocks, or None."""
    block_in, block_out = isa.block(problem.types.x), isa.block(problem.types.y)
    if problem.groups > 1 and (problem.cg % block_in or problem.kg % block_out):
        blocks = f"{block_in}" if block_in == block_out else f"{block_in} and {block_out}"
        return f"groups of {problem.cg} and {problem.kg} channels share blocks of {blocks}"
    return words.why_not(problem, isa)


def whole_groups(problem: ConvProblem, isa: Isa) -> str | None:
    """Reason why the kernel cannot run the groups, or None; types other than float32 may share channel blocks."""
    if not spans.needed(problem, isa):
        return aligned_groups(problem, isa)
    if problem.cg == problem.kg == 1:
        return "groups are of one channel: depthwise"
    return words.why_not(problem, isa)


def row_blocks(problem: ConvProblem, isa: Isa, tile: Tile) -> list[int]:
    """Candidate numbers of tile rows per band, such that the band fits into L2."""
    total = divide(problem.oh, tile.rows)
    pixel = divide(words.in_words(problem).c, isa.lanes) * isa.lanes * WORD
    line = problem.w * pixel * problem.stride[0] * tile.rows
    largest = max(1, int(_BAND_SHARE * machine().l2 / line))
    return sorted({min(total, max(1, int(share * largest))) for share in _STEPS_TO_BAND}, reverse=True)


def largest_block(total: int, size: int) -> int:
    """Tiles per block, such that its pixels (`size` bytes per tile) fit into half of L2 under all weights."""
    return min(total, max(1, int(_BAND_SHARE * machine().l2 / size)))


def _reach(problem: ConvProblem) -> int:
    """Pixels of a row that one output reads; each part of a pixel counts as a pixel."""
    return problem.effective_kernel[1] + problem.types.w.parts - 1


def _band_width(problem: ConvProblem) -> int:
    """Pixels per row of a band."""
    return (problem.ow - 1) * problem.stride[1] + _reach(problem)


def row_pitch(problem: ConvProblem, isa: Isa, x: Strides, band: int) -> int:
    """Outputs between the starts of adjacent rows, where the plane is one row; 0: rows do not allow that."""
    pixels = _band_width(problem) if band != NO_BAND else x.h // (isa.lanes * WORD)
    pitch, rest = divmod(pixels * problem.stride[0], problem.stride[1])
    return 0 if rest or band == NO_BAND and x.h % (isa.lanes * WORD) else pitch


def convolve_step(
    problem: ConvProblem,
    params: Params,
    isa: Isa,
    space: Space,
    operands: Operands,
    band: int,
    flat: bool = False,
    product: Product | None = None,
) -> Step:
    """Tile and arguments of the convolution driver for this problem.

    `flat`: the plane is one row of pixels. Where input rows are longer, AMX also computes the pixels between two output
    rows without storing them; a band then has all rows.
    """
    sizes, parts_of_words = geometry(problem, isa, product, params.v), spans.spans(problem, isa, params.v)
    product, problem = sizes.product, sizes.problem
    counts = words.vector_counts(problem, isa)
    vectors_per_pixel, types = words.vectors_per_pixel(problem), problem.types
    pitch = row_pitch(problem, isa, operands.x.strides, band) if flat and product.matrix else problem.ow
    height, width = (1, (problem.oh - 1) * pitch + problem.ow) if flat else (problem.oh, problem.ow)
    columns = _columns(problem, params, isa, width, sizes)
    params = replace(params, cols=columns.taken)
    check_tile(params.rows, params.cols, height, width)
    before, grid = _grid(problem, params, isa, (height, width), flat, band, sizes)
    operands = words.operands_in_words(problem, operands)
    problem = words.in_words(problem, product.words_at_once(isa.lanes))
    lanes, x = isa.lanes, operands.x
    planar = band == PLANAR_BAND
    pixel = WORD if planar else WORD * lanes
    stride_h, stride_w = problem.stride
    dilation_h, dilation_w = problem.dilation
    reach_h = problem.effective_kernel[0]
    panels = divide(sizes.vectors, params.v)
    row_tiles, column_tiles = divide(height, params.rows), divide(width, params.cols)
    blocks, chunks = best_partition(problem.threads, before, grid)
    row_blocks, column_blocks = (1, blocks) if flat else (blocks, 1)

    if band == NO_BAND:
        in_line, plane, reach = x.strides.h, x.strides.cb, reach_h
        band_width = band_step = 0
    else:
        tile_rows = divide(row_tiles, row_blocks)
        reach = ((problem.oh - 1) * stride_h if flat else 0) + reach_h
        band_rows = (tile_rows * params.rows - 1) * stride_h + reach
        band_width = _band_width(problem)
        in_line = band_width * pixel
        plane = band_rows * in_line + 64
        band_step = plane * divide(problem.c, 1 if planar else lanes)
    shared = parts_of_words is not None
    group_blocks = problem.cg if planar else problem.cg // lanes
    table = segments.table(problem, isa, plane, in_line, pixel, planar, parts_of_words, sizes.rows_first)
    count = table.shape[1] - shared
    pad_left = min(problem.pads[2], band_width)
    vectors_bytes = params.v * lanes * WORD  # weights of a panel per segment element
    tile_rows, tile_columns = divide(row_tiles, row_blocks), divide(column_tiles, column_blocks)
    unroll, tail = (problem.s, 0) if planar else segments.segment(problem, isa, parts_of_words)
    tails = problem.r * problem.s if tail else 0
    whole = (count - 1) // tails if tails else count  # parts; the last one has a segment before the tails
    parts = 1  # the blocks of float16 sums do not depend on the number of tiles
    if not product.half_sums:
        parts = panel_parts(sizes.reduction * vectors_bytes, whole, tile_rows * tile_columns)
    suspended_tile = params.rows * params.cols * vectors_bytes
    suspended_step = tile_rows * column_tiles * suspended_tile if parts > 1 else 0
    fetching = _fetching(product.parts * vectors_bytes, params.v, unroll, tile_rows * tile_columns)
    gemm = gemm_tile(
        problem, isa, product, params.v, params.rows, columns.options[0], sizes.reduction,
        alone=now(row_tiles * column_tiles) == 1,
        unroll=unroll,
        xs=stride_w if planar else lanes * stride_w,
        ks=dilation_w if planar else 1,
        fetch=divide(unroll * fetching.step, LINE) if product.matrix else fetching.lines,
        resume=parts > 1,
        tail=tail,
        row_pixels=pitch if pitch != problem.ow else 0,
        valid_pixels=problem.ow if pitch not in (0, problem.ow) else 0,
    )  # fmt: skip
    rest, stored = problem.kg % lanes, sizes.vectors
    last = replace(gemm, valid=rest) if rest else gemm
    if counts is not None and problem.groups == 1:  # the last panel ends with a pixel of an output block
        unused_vectors = panels * params.v - sizes.vectors
        zeros = divide(sizes.vectors, vectors_per_pixel) * vectors_per_pixel - sizes.vectors
        last, stored = replace(last, unused_vectors=unused_vectors, zeros=zeros), panels * params.v
    pack = row_tile(lanes, x.strides) if band == BLOCKED_BAND else RowTile(lanes, BLOCKED)
    args: Args = {
        **gemm_args(operands, gemm, last, table, sizes.reduction, panels, columns, product.matrix),
        "tile_height": params.rows,
        "bias_vector": bias_bytes(problem, isa),
        "fill": 0 if types == ALL_F32 else words.FILL,
        "configuration": configuration(params.v, params.rows, params.cols) if product.matrix else 0,
        "row_segments": count // problem.r if sizes.rows_first else 0,
        "band_kind": band,
        "pixel_vectors": vectors_per_pixel,
        "tails": tails,
        "part_step": PART_STEP,
        **fetching.args,
        "table_panel": (1 + count) * table.itemsize if shared else 0,
        "parts": parts,
        "segment_bytes": unroll * product.parts * vectors_bytes,
        **_parts_before(gemm, parts, product.matrix),
        **worker_args("band", space, band_step, problem.threads),
        **worker_args("suspended", space, suspended_step, problem.threads),
        "suspended_tile": suspended_tile if parts > 1 else 0,
        "vectors": stored,
        "chunks": chunks,
        **output_args(operands.y),
        "x_group": group_blocks * plane,
        "height": height,
        "width": width,
        "x_line": in_line * stride_h,
        "row_tiles": row_tiles,
        "column_tiles": column_tiles,
        "row_blocks": row_blocks,
        "column_blocks": column_blocks,
        "band_plane": plane,
        "band_width": band_width,
        "channels": problem.c,
        "inside": max(0, min(problem.w, band_width - pad_left)),
        **problem_args(convolve, problem),
        "pad_left": pad_left,
        "reach": reach,
        **view_args("x", x.strides),
    }
    args |= _in_place(problem, params, isa, x.strides, band_width, band, flat, parts_of_words, sizes)
    units = problem.n * row_blocks * column_blocks * chunks
    tile = ConvolveTile(lanes, pack, matrix=product.matrix)
    return Step(convolve, tile, args, parts_each(problem, units), clears_tail=problem.groups == 1)


def _columns(problem: ConvProblem, params: Params, isa: Isa, width: int, sizes: Geometry) -> Columns:
    """Tile columns of a row; sizes other than the candidate's are those of the closed set."""
    gemm = gemm_tile(problem, isa, sizes.product, params.v, params.rows, params.cols, 1, unroll=1, xs=isa.lanes)
    rest = problem.kg % isa.lanes
    unused_vectors = -sizes.vectors % params.v if problem.types != ALL_F32 and problem.groups == 1 else 0
    return row_columns(
        isa, sizes.seen, gemm, replace(gemm, valid=rest or isa.lanes, unused_vectors=unused_vectors), width
    )


def _parts_before(gemm: GemmTile, parts: int, matrix: bool) -> Args:
    """Tiles of the parts before the last one: of the first part, and of those between."""
    if parts == 1:
        return {"gemm_first": 0, "gemm_middle": 0}
    part = replace(gemm, suspend=True, tail=0)
    first = micro(replace(part, resume=False), matrix)
    return {"gemm_first": first, "gemm_middle": micro(part, matrix) if parts > 2 else 0}


def _grid(
    problem: ConvProblem, params: Params, isa: Isa, plane: tuple[int, int], flat: bool, band: int, sizes: Geometry
) -> tuple[int, Grid]:
    """Blocks of a plane, and the grid of work: rows of tiles, or tiles where the plane is one row (`flat`)."""
    rows, columns = divide(plane[0], params.rows), divide(plane[1], params.cols)
    tiles, beside = (columns, 1) if flat else (rows, columns)
    blocks = greatest(1, tiles // (params.block or tiles))
    if problem.threads == 1:
        return blocks, UNPARTITIONED
    channels = words.in_words(problem).c
    scalars = problem.h * problem.w * (channels if band == PLANAR_BAND else divide(channels, isa.lanes) * isa.lanes)
    grid = Grid(
        planes=greatest(1, problem.n),
        tiles=tiles,
        panels=divide(sizes.vectors, params.v) * problem.groups,
        unit=beside * sizes.cycles(isa, params),
        prepare=2 * WORD * scalars / tiles / isa.l2_rate if band != NO_BAND else 0.0,
        weight_cycles=problem.weight_bytes / isa.l3_rate,
        activation_cycles=(problem.in_bytes + problem.out_bytes) / isa.l3_rate,
    )
    return blocks, grid


def _fetching(scalar: int, v: int, unroll: int, tiles: int) -> Fetching:
    """Prefetches by the tiles of a block; blocks of few tiles have no time for them."""
    return Fetching.shared(scalar, unroll, tiles) if now(tiles) >= max(2, v) else Fetching()


def _in_place(
    problem: ConvProblem,
    params: Params,
    isa: Isa,
    x: Strides,
    band_width: int,
    band: int,
    flat: bool,
    parts: Spans | None,
    sizes: Geometry,
) -> Args:
    """Tile columns that need no band, and how they read the input; none unless it is blocked."""
    pixel = WORD * isa.lanes
    stride = problem.stride[1]
    reach_w = _reach(problem)
    pad_top, _, pad_left, _ = problem.pads
    columns = functools.partial(inner_tiles, stride, reach_w, pad_left)
    none = flat or band != BLOCKED_BAND or not is_blocked(isa.lanes, x)
    found = (0, 0, 0, band_width) if none else applied(columns, params.cols, problem.ow, problem.w, band_width)
    return {
        "inner_tiles": item(found, 0),
        "inner_tiles_end": item(found, 1),
        "inner_left": item(found, 2),
        "inner_right": item(found, 3),
        "inner_line": x.h * problem.stride[0],
        "inner_table": segments.table(problem, isa, x.cb, x.h, pixel, False, parts, sizes.rows_first),
        "inner_group": problem.cg // isa.lanes * x.cb,
        "inner_start": -pad_top * x.h - pad_left * pixel,
    }


def panel_parts(panel_bytes: int, segments: int, tiles: int) -> int:
    """Parts of a weight panel such that each stays in L2 for `tiles` tiles; one part for a single tile."""
    return min(segments, divide(panel_bytes, int(_PART_SHARE * machine().l2))) if now(tiles) > 1 else 1


class _Traffic(NamedTuple):
    """Cycles in addition to the tiles of a problem, in the order of addition."""

    once: float  # cycles for activations and weights
    weights: float  # bytes that blocks of an image after the first read again
    rate: float  # bytes per cycle of these
    copied: float  # cycles to copy bands
    rearranged: float  # cycles to convert the layout of bands

    def of(self, again: int) -> float:
        """Cycles if weights are read `again` times more than once."""
        return self.once + self.weights * again / self.rate + self.copied + self.rearranged


@functools.lru_cache(maxsize=64)  # called for all candidates of a problem
def _traffic(problem: ConvProblem, machine: Machine, band: bool, planar: bool) -> _Traffic:
    isa, weights = machine.isa, problem.weight_bytes
    copied = rearranged = 0.0
    if band:
        pixels = problem.n * problem.h * problem.w
        channels = words.in_words(problem).c
        scalars = pixels * (channels if planar else divide(channels, isa.lanes) * isa.lanes)
        copied = 2 * WORD * scalars / isa.l2_rate
        if planar and problem.in_layout != "NCHW":
            rearranged = _GATHER * scalars
        elif not planar and problem.in_layout != layout(isa, problem.types.x):
            rearranged = _TRANSPOSE * scalars
    once = machine.moving(problem.stored_bytes + weights)
    return _Traffic(once, weights, machine.rate(weights), copied, rearranged)


def cost(
    problem: ConvProblem,
    params: Params,
    machine: Machine,
    height: int,
    width: int,
    band: bool,
    planar: bool = False,
    product: Product | None = None,
) -> Cost:
    """Modelled time of the tiles and the traffic, divided over threads."""
    isa = machine.isa
    sizes = geometry(problem, isa, product, params.v)
    problem = sizes.problem
    count = divide(height, params.rows) * divide(width, params.cols)
    compute = problem.n * problem.groups * count * sizes.panel_cycles(isa, params)
    copied = PLANAR_BAND if planar else BLOCKED_BAND if band else NO_BAND
    blocks, grid = _grid(problem, params, isa, (height, width), height == 1, copied, sizes)
    traffic = _traffic(problem, machine, band, planar).of(blocks * problem.n - 1)
    if height * width == 1 and machine.is_far(problem.weight_bytes):
        traffic /= isa.single[min(params.v, len(isa.single)) - 1]
    vectors = problem.n * problem.k * problem.oh * problem.ow / isa.lanes
    floor = vectors * least_cycles(isa, sizes.product, sizes.multiplied())
    return machine.cost(floor, (compute + traffic) * grid.imbalance(problem.threads, blocks), problem.threads)


def bound(
    problem: ConvProblem,
    machine: Machine,
    height: int,
    width: int,
    band: bool,
    planar: bool = False,
    product: Product | None = None,
) -> float:
    """Lower bound of `cost`, in seconds: FMAs and stores, or traffic with weights read once per image."""
    isa = machine.isa
    sizes = geometry(problem, isa, product)
    problem = sizes.problem
    pixels = problem.n * problem.groups * sizes.vectors * height * width
    if sizes.product.matrix:
        compute = pixels * least_cycles(isa, sizes.product, sizes.reduction)
    else:
        compute = pixels * pixel_cycles(sizes.seen, int(sizes.multiplied()))
    traffic = _traffic(problem, machine, band, planar).of(problem.n - 1)
    return machine.seconds(compute + traffic, problem.threads)


def least_cycles(isa: Isa, product: Product, reduction: float) -> float:
    """Lower bound of cycles per output vector of a tile, for products with `reduction` weight vectors."""
    if product.matrix:
        return reduction * product.multiplications / isa.lanes
    return reduction / words.seen(isa, product).fma_rate
