"""im2col and GEMM with fused, tiled packing: for any stride, padding, dilation, groups and layouts.

Sources: Chellapilla, Puri, Simard, "High Performance Convolutional Neural Networks for Document Processing" (2006)
for the lowering; Goto and van de Geijn (TOMS 2008) for the blocks. The matrix never exists as a whole: the columns of
one block of output pixels are packed, stay in L2 while all weight panels use them, and are then replaced by the next.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cpuconv.isa import Isa
from cpuconv.micro.gemm import GemmTile, gemm_strip
from cpuconv.micro.im2col import IN_PLACE, LINES, VECTORS, Im2colTile, im2col
from cpuconv.micro.rows import ANY, BLOCKED, CHANNELS, ROWS, RowTile, kind_of
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared.base import (
    FLOAT,
    Args,
    Cost,
    MicroRef,
    Operand,
    Ref,
    Space,
    Step,
    divide,
    parts_each,
    span,
    view_args,
    window_args,
)
from cpuconv.solvers.shared.machine import Machine, machine
from cpuconv.solvers.shared.packing import Packing, Panels
from cpuconv.solvers.shared.reordering import plane, row_tile
from cpuconv.solvers.shared.tiling import Tile, pixel_cycles, plane_cycles, streams, tiles
from layouts import Strides

NAME = "im2col"
ACCURACY = "exact"
ROUNDING = ()

_SHARES = (0.5, 0.15)  # of L2, for the columns of a block
_UNROLLS = range(4, 10)
_LINE = 64 // FLOAT
_PAGE_CYCLES = 3.0  # a tile and row of a matrix whose rows are planes
_RUN_CYCLES = 12.0  # around each run of pixels that is packed
_VECTOR_CYCLES, _FLOAT_CYCLES = 4.0, 1.5  # to load, and to store, a vector of pixels; a float without neighbours


@dataclass(frozen=True)
class Params:
    """A tile and its columns.

    Attributes
    ----------
    v : int
        Weight vectors of a tile.
    n : int
        Pixels of a tile.
    block : int
        Tiles of pixels that share one set of columns.
    """

    v: int
    n: int
    block: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Always."""
    return None


@functools.lru_cache(maxsize=1024)
def unroll(depth: int) -> int:
    """Rows of a reduction step that pad `depth` the least; of equals, the larger."""
    return min((u for u in _UNROLLS if u <= depth), key=lambda u: (-depth % u, -u), default=depth)


def sizes(problem: ConvProblem, isa: Isa) -> tuple[int, int, int]:
    """Output vectors of a group, rows of its matrix, and those rounded up to whole reduction steps."""
    depth = problem.cg * problem.r * problem.s
    return divide(problem.kg, isa.lanes), depth, divide(depth, unroll(depth)) * unroll(depth)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """The best tiles by the model, each with columns that fill half of L2 or less."""
    vectors, _, depth = sizes(problem, isa)
    pixels = problem.oh * problem.ow
    for tile in tiles(isa, vectors, 1, pixels, depth, most=4):
        total = divide(pixels, tile.cols)
        fitting = [int(share * machine().l2 / (tile.cols * depth * FLOAT)) for share in _SHARES]
        for block in sorted({min(total, max(1, count)) for count in fitting}, reverse=True):
            yield Params(tile.v, tile.cols, block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """FMA slots and stores, columns packed once and weights read once an image, and the way to the output."""
    isa = machine.isa
    vectors, _, padded = sizes(problem, isa)
    pixels = problem.n * problem.groups * vectors * problem.oh * problem.ow
    tiles = vectors * problem.oh * problem.ow / max(v * n for v, n in enumerate(isa.pixels, 1))
    return machine.seconds(pixels * pixel_cycles(isa, padded) + _beside(problem, machine, 1, 1, tiles), problem.threads)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """FMA slots of the tiles, packing, the way to the output, and the traffic of weights and activations."""
    isa = machine.isa
    vectors, _, padded = sizes(problem, isa)
    pixels = problem.oh * problem.ow
    tile = Tile(params.v, 1, params.n)
    compute = problem.n * problem.groups * plane_cycles(isa, tile, vectors, 1, pixels, padded)
    tiles = divide(vectors, params.v) * divide(pixels, params.n)
    floor = problem.flops / (2 * isa.lanes * isa.fma_rate)
    beside = _beside(problem, machine, *_share(problem, params, isa), tiles)
    return machine.cost(floor, compute + beside, problem.threads)


def _beside(problem: ConvProblem, machine: Machine, blocks: int, chunks: int, tiles: float) -> float:
    """Cycles of a plane beside those of its tiles: packing, moving sums to the output, and traffic."""
    isa = machine.isa
    vectors, depth, _ = sizes(problem, isa)
    planes = problem.n * problem.groups
    wide = problem.in_layout != "NCHW" or problem.stride[1] <= 2
    pixel = _VECTOR_CYCLES * (1 + problem.stride[1]) / isa.lanes if wide else _FLOAT_CYCLES
    packing = planes * chunks * depth * problem.oh * (_RUN_CYCLES + problem.ow * pixel)
    if problem.in_layout == "NCHW" and _is_plain(problem):
        packing = planes * tiles * depth * _PAGE_CYCLES  # the input is the matrix, each of its rows a page of its own
    way_out = planes * vectors * problem.oh * problem.ow * (0 if problem.out_layout == f"NCHW{isa.lanes}c" else 4)
    moved = problem.in_bytes + problem.out_bytes + problem.weight_bytes
    again = problem.weight_bytes * max(0, blocks * problem.n - 1) / machine.rate(problem.weight_bytes)
    return packing + way_out + moved / machine.rate(moved) + again


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Any strides in and out."""
    return None, None


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[group][panel][C·R·S, padded][v][lanes of K]."""
    return Panels.of(problem, isa, params.v, planar=True, rows=sizes(problem, isa)[2])


def bind(
    problem: ConvProblem, params: Params, isa: Isa, space: Space, x: Operand, y: Operand, residual: Operand | None
) -> list[Step]:
    """One parallel call of the im2col kernel."""
    lanes = isa.lanes
    vectors, depth, padded = sizes(problem, isa)
    step = unroll(depth)
    pixels = problem.oh * problem.ow
    blocks, chunks = _share(problem, params, isa)
    panels = divide(vectors, params.v)
    block_pixels = min(pixels, divide(divide(pixels, params.n), blocks) * params.n)

    in_height, in_width, source = problem.h, problem.w, x.strides
    out_width = problem.ow
    pointwise = _is_plain(problem)
    if pointwise:
        in_height, in_width, (source,) = plane(problem.h, problem.w, x.strides)
        out_width = in_width
    load = _load(problem, isa, source)
    if pointwise and in_height == 1 and load == LINES and row_tile(isa, source).kind == ROWS and padded == depth:
        load = IN_PLACE
    extra = residual or y
    _, y_width, (target, added) = plane(problem.oh, problem.ow, y.strides, extra.strides)
    rows, extra_rows = (_rows(problem, isa, view) for view in (target, added))
    direct = rows.kind == BLOCKED and target.w == lanes * FLOAT and y_width == pixels and added == target

    pitch = (divide(block_pixels, _LINE) + 1 | 1) * 64  # an odd number of cache lines: rows do not share a cache set
    vector_step = block_pixels * lanes * FLOAT
    columns_step = 0 if load == IN_PLACE else padded * pitch + 64
    sums_step = 0 if direct else params.v * vector_step + 64
    stride = source.cb if load == IN_PLACE else pitch
    table = np.arange(padded // step, dtype=np.int64) * step * stride
    gemm = GemmTile(
        lanes=lanes,
        v=params.v,
        rows=1,
        cols=params.n,
        unroll=step,
        xs=1,
        ys=lanes,
        ks=0,
        stream=streams(isa, params.v, padded),
        residual=residual is not None,
        activation=problem.activation,
    )
    args: Args = {
        "gemm": MicroRef(gemm_strip, gemm),
        "gemm_last": MicroRef(gemm_strip, replace(gemm, valid=problem.kg % lanes if direct else 0)),
        "tile_vectors": params.v,
        "tile_columns": params.n,
        "x": x.ref,
        "y": y.ref,
        "w": Ref("w"),
        "bias": Ref("bias"),
        "residual": extra.ref,
        "table": table,
        "segments": table.size,
        "panel_bytes": padded * params.v * lanes * FLOAT,
        "panels": panels,
        "vectors": vectors,
        "groups": problem.groups,
        "chunks": chunks,
        "blocks": blocks,
        "batch": problem.n,
        "tiles": divide(pixels, params.n),
        "pixels": pixels,
        "block_pixels": block_pixels,
        "columns": space.reserve(columns_step * problem.threads) if columns_step else 0,
        "columns_step": columns_step,
        "pitch": stride,
        "depth": depth,
        "depth_padded": padded,
        "sums": space.reserve(sums_step * problem.threads) if sums_step else 0,
        "extra": space.reserve(sums_step * problem.threads) if residual and not direct else 0,
        "sums_step": sums_step,
        "vector_step": target.cb if direct else vector_step,
        "channels": problem.k,
        "stored": problem.k if direct else divide(problem.k, target.block) * target.block,
        **window_args(problem),
        "in_height": in_height,
        "in_width": in_width,
        "out_width": out_width,
        "x_span": span(problem, x.strides),
        "x_image": source.n,
        **view_args("x", source),
        "y_image": target.n,
        "y_width": y_width,
        **view_args("y", target),
        "r_image": added.n,
        **view_args("r", added),
    }
    tile = Im2colTile(lanes, load, residual is not None, direct, rows, extra_rows)
    each = parts_each(problem, problem.n * problem.groups * blocks * chunks)
    return [Step(im2col, tile, args, each, clears_tail=True)]


def _is_plain(problem: ConvProblem) -> bool:
    """Whether the output plane is the input plane, pixel by pixel."""
    return (problem.r, problem.s, problem.stride) == (1, 1, (1, 1)) and not any(problem.pads)


def _load(problem: ConvProblem, isa: Isa, source: Strides) -> int:
    """VECTORS where `lanes` channels of a group lie side by side, however its pixels lie."""
    kind = kind_of(isa.lanes, source.block, source.cb, source.c, source.w)
    aligned_groups = problem.groups == 1 or problem.cg % isa.lanes == 0
    side_by_side = kind == CHANNELS or (kind == BLOCKED and aligned_groups)
    return VECTORS if side_by_side and problem.cg >= isa.lanes else LINES


def _rows(problem: ConvProblem, isa: Isa, view: Strides) -> RowTile:
    """The loops for a view of the output: loops of blocks only where groups do not share blocks."""
    tile = row_tile(isa, view)
    own_blocks = problem.groups == 1 or problem.kg % min(view.block, isa.lanes) == 0
    return tile if own_blocks else RowTile(isa.lanes, ANY)


def _share(problem: ConvProblem, params: Params, isa: Isa) -> tuple[int, int]:
    """Blocks of pixels and chunks of panels that leave the slowest worker the least; ties go to less packing."""
    vectors, _, _ = sizes(problem, isa)
    total, panels = divide(problem.oh * problem.ow, params.n), divide(vectors, params.v)
    threads, planes = problem.threads, max(1, problem.n * problem.groups)
    blocks = divide(total, params.block)
    finer = min(total, divide(blocks, threads) * threads)
    options = [(blocks, 1), (finer, 1), (blocks, min(panels, threads)), (finer, min(panels, threads))]

    def slowest(option: tuple[int, int]) -> int:
        parts, chunks = option
        return divide(planes * parts * chunks, threads) * divide(total, parts) * divide(panels, chunks)

    return min(options, key=slowest)
