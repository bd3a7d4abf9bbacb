"""im2col and GEMM with fused, tiled packing: for any stride, padding, dilation, groups and layouts.

Sources: Chellapilla, Puri, Simard, "High Performance Convolutional Neural Networks for Document Processing" (2006)
for the lowering; Goto and van de Geijn (TOMS 2008) for the blocks. The matrix is never stored whole: the columns of one
block of output pixels are packed, stay in L2 while all weight panels use them, and are replaced by those of the next.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.partition import UNPARTITIONED, Grid, best_partition, parts_each
from cpuconv.kernels.binding.steps import Args, Operands, Space, Step
from cpuconv.kernels.convolutions.pixel_blocks import PixelBlockTile, im2col
from cpuconv.kernels.copies.rows import ANY, BLOCKED, CHANNELS, ROWS, RowTile
from cpuconv.kernels.copies.views import input_plane, plane, row_tile, view_args
from cpuconv.kernels.packing.columns import IN_PLACE, LINES, VECTORS
from cpuconv.kernels.packing.packed_formats import Panels
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.products.closed.closed_set import row_columns
from cpuconv.kernels.products.tiling import Tile, cycles, pixel_cycles, plane_cycles, tiles
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared import gemm_call, words
from cpuconv.solvers.shared.base import check_tile
from cpuconv.solvers.shared.gemm_call import gemm_args, gemm_tile
from cpuconv.solvers.shared.solver import Solver
from cpuconv.symbolic.sizes import least, now
from layouts import Strides

_SHARES = (0.5, 0.15)  # shares of L2 for the columns of a block
_UNROLLS = range(4, 10)
_LINE = 64 // F32.bytes
_PAGE_CYCLES = 3.0  # cycles per tile and matrix row, where rows are planes on different pages
_RUN_CYCLES = 12.0  # cycles per packed run of pixels
_VECTOR_CYCLES, _FLOAT_CYCLES = 4.0, 1.5  # cycles to load and store a vector of pixels; per float32 copied alone
_SCATTERED_CYCLES = 6.0  # cycles per float32 written into a channel block that groups share


Params = gemm_call.Params


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require float32."""
    return None


@functools.lru_cache(maxsize=1024)
def unroll(depth: int) -> int:
    """Number of rows per reduction step that pads `depth` least; the largest of equal ones."""
    return min((u for u in _UNROLLS if u <= depth), key=lambda u: (-depth % u, -u), default=depth)


def sizes(problem: ConvProblem, isa: Isa) -> tuple[int, int, int]:
    """Output vectors per group, rows of its matrix, and these rounded up to whole reduction steps."""
    depth = problem.cg * problem.r * problem.s
    return divide(problem.kg, isa.lanes), depth, divide(depth, unroll(depth)) * unroll(depth)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model, each with columns that fill at most half of L2."""
    vectors, _, depth = sizes(problem, isa)
    pixels = problem.oh * problem.ow
    for tile in tiles(isa, vectors, 1, pixels, depth, most=4):
        total = divide(pixels, tile.cols)
        fitting = [int(share * machine().l2 / (tile.cols * depth * F32.bytes)) for share in _SHARES]
        for block in sorted({min(total, max(1, count)) for count in fitting}, reverse=True):
            yield Params(tile.v, tile.cols, block)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: FMAs, stores, packing once, weights once per image, and output copies."""
    isa = machine.isa
    vectors, _, padded = sizes(problem, isa)
    pixels = problem.n * problem.groups * vectors * problem.oh * problem.ow
    tiles = vectors * problem.oh * problem.ow / max(v * n for v, n in enumerate(isa.pixels, 1))
    return machine.seconds(
        pixels * pixel_cycles(isa, padded) + _plane_overhead(problem, machine, 1, 1, tiles), problem.threads
    )


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs of the tiles, packing, output copies, and traffic of weights and activations."""
    isa = machine.isa
    vectors, _, padded = sizes(problem, isa)
    pixels = problem.oh * problem.ow
    tile = Tile(params.v, 1, params.n)
    compute = problem.n * problem.groups * plane_cycles(isa, tile, vectors, 1, pixels, padded)
    tiles = divide(vectors, params.v) * divide(pixels, params.n)
    blocks, grid = _grid(problem, params, isa)
    beside = _plane_overhead(problem, machine, blocks, 1, tiles)
    plain = machine.direct_cost(problem, (compute + beside) * grid.imbalance(problem.threads, blocks))
    return plain.plus(_scattered(problem, machine))


def _scattered(problem: ConvProblem, machine: Machine) -> float:
    """Seconds to write single float32 elements of the output, where groups share blocks.

    Measured: 5 to 8 cycles per element for 28x28 and 56x56 pixels; fewer for smaller planes, which stay in L1.
    """
    isa = machine.isa
    shared = problem.groups > 1 and problem.kg % isa.lanes and problem.out_layout == f"NCHW{isa.lanes}c"
    return (
        machine.seconds(_SCATTERED_CYCLES * problem.out_bytes / problem.types.y.bytes, problem.threads)
        if shared
        else 0.0
    )


def _plane_overhead(problem: ConvProblem, machine: Machine, blocks: int, chunks: int, tiles: float) -> float:
    """Cycles per plane in addition to its tiles: packing, copies of sums to the output, and traffic."""
    isa = machine.isa
    vectors, depth, _ = sizes(problem, isa)
    planes = problem.n * problem.groups
    packing = planes * chunks * depth * problem.oh * _packing(problem, isa)
    if problem.in_layout == "NCHW" and is_plain(problem):
        packing = planes * tiles * depth * _PAGE_CYCLES  # the input is the matrix; each row is on another page
    way_out = planes * vectors * problem.oh * problem.ow * (0 if problem.out_layout == f"NCHW{isa.lanes}c" else 4)
    moved = problem.in_bytes + problem.out_bytes + problem.weight_bytes
    again = problem.weight_bytes * max(0, blocks * problem.n - 1) / machine.rate(problem.weight_bytes)
    return packing + way_out + machine.moving(moved) + again


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: all, with any strides."""
    return None, None


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[group][panel][C·R·S, padded][v][lanes of K]."""
    return Panels.of(problem, isa, params.v, planar=True, rows=sizes(problem, isa)[2])


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the im2col kernel."""
    lanes, y, extra = isa.lanes, operands.y, operands.residual or operands.y
    has_residual = operands.residual is not None
    vectors, depth, padded = sizes(problem, isa)
    step = unroll(depth)
    pixels = problem.oh * problem.ow
    source, walked = input_plane(problem, operands.x.strides)
    load = _load(problem, isa, source)
    is_matrix = is_plain(problem) and walked["in_height"] == 1 and row_tile(isa.lanes, source).kind == ROWS
    if is_matrix and load == LINES and padded == depth:
        load = IN_PLACE
    _, y_width, (target, added) = plane(problem.oh, problem.ow, y.strides, extra.strides)
    rows, extra_rows = (_rows(problem, isa, view) for view in (target, added))
    direct = rows.kind == BLOCKED and target.w == lanes * F32.bytes and y_width == pixels and added == target
    own = words.product(problem, isa)
    gemm = gemm_tile(problem, isa, own, params.v, 1, params.n, padded, unroll=step, xs=1, ks=0)
    last = replace(gemm, valid=problem.kg % lanes if direct else 0)
    columns = row_columns(isa, isa, gemm, last, pixels)
    params = replace(params, n=columns.taken)
    check_tile(1, params.n, 1, pixels)
    blocks, chunks = best_partition(problem.threads, *_grid(problem, params, isa))
    panels = divide(vectors, params.v)
    block_pixels = least(pixels, divide(divide(pixels, params.n), blocks) * params.n)

    pitch = (divide(block_pixels, _LINE) + 1 | 1) * 64  # an odd number of cache lines: rows use different cache sets
    vector_step = block_pixels * lanes * F32.bytes
    columns_step = 0 if load == IN_PLACE else padded * pitch + 64
    sums_step = 0 if direct else params.v * vector_step + 64
    stride = source.cb if load == IN_PLACE else pitch
    table = np.arange(padded // step, dtype=np.int64) * step * stride
    args: Args = {
        **gemm_args(operands, gemm, last, table, padded, panels, columns),
        "tile_columns": params.n,
        "tails": 0,
        "vectors": vectors,
        "chunks": chunks,
        "blocks": blocks,
        "tiles": divide(pixels, params.n),
        "pixels": pixels,
        "block_pixels": block_pixels,
        **worker_args("columns", space, columns_step, problem.threads),
        "pitch": stride,
        "depth": depth,
        "depth_padded": padded,
        **worker_args("sums", space, sums_step, problem.threads),
        "extra": space.reserve(sums_step * problem.threads) if has_residual and not direct else 0,
        "vector_step": target.cb if direct else vector_step,
        "channels": problem.k,
        "stored": problem.k if direct else divide(problem.k, target.block) * target.block,
        **problem_args(im2col, problem),
        **walked,
        "y_width": y_width,
        **view_args("y", target),
        **view_args("r", added),
    }
    tile = PixelBlockTile(lanes, load, has_residual, direct, rows, extra_rows)
    each = parts_each(problem, problem.n * problem.groups * blocks * chunks)
    return [Step(im2col, tile, args, each, clears_tail=True)]


def _load(problem: ConvProblem, isa: Isa, source: Strides) -> int:
    """VECTORS if `lanes` channels of a group are adjacent, whatever the order of pixels."""
    kind = row_tile(isa.lanes, source).kind
    aligned_groups = problem.groups == 1 or problem.cg % isa.lanes == 0
    side_by_side = kind == CHANNELS or (kind == BLOCKED and aligned_groups)
    return VECTORS if side_by_side and problem.cg >= isa.lanes else LINES


def _rows(problem: ConvProblem, isa: Isa, view: Strides) -> RowTile:
    """Copy loops for a view of the output; by blocks only if no block is shared by groups."""
    tile = row_tile(isa.lanes, view)
    own_blocks = problem.groups == 1 or problem.kg % min(view.block, isa.lanes) == 0
    return tile if own_blocks else RowTile(isa.lanes, ANY)


def _grid(problem: ConvProblem, params: Params, isa: Isa) -> tuple[int, Grid]:
    """Blocks of pixels, and the grid of work."""
    total, planes = divide(problem.oh * problem.ow, params.n), problem.n * problem.groups
    blocks = divide(total, params.block)
    if problem.threads == 1:
        return blocks, UNPARTITIONED
    vectors, depth, padded = sizes(problem, isa)
    in_place = problem.in_layout == "NCHW" and is_plain(problem)
    grid = Grid(
        planes=max(1, planes),
        tiles=total,
        panels=divide(vectors, params.v),
        unit=cycles(isa, params.v, now(params.n), padded),
        prepare=0.0 if in_place else _packing(problem, isa) * depth * problem.oh / total,
        weight_cycles=problem.weight_bytes / isa.l3_rate,
        activation_cycles=(problem.in_bytes + problem.out_bytes) / isa.l3_rate,
    )
    return blocks, grid


def _packing(problem: ConvProblem, isa: Isa) -> float:
    """Cycles to pack a row of pixels of one channel and tap."""
    wide = problem.in_layout != "NCHW" or problem.stride[1] <= 2
    pixel = _VECTOR_CYCLES * (1 + problem.stride[1]) / isa.lanes if wide else _FLOAT_CYCLES
    return _RUN_CYCLES + problem.ow * pixel


SOLVER = Solver(
    name="im2col",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
)
