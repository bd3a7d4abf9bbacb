"""Candidates, packed weights, cost and driver call that depthwise and grouped convolution share."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, output_args, problem_args, worker_args
from cpuconv.kernels.binding.columns import columns_for
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.partition import Grid, best_partition, parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, Operand, Operands, Space, Step
from cpuconv.kernels.copies.rows import BLOCKED, RowTile
from cpuconv.kernels.copies.views import row_tile, view_args
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.product import WORD
from cpuconv.kernels.products.tiling import takes_all
from cpuconv.kernels.windows.depthwise_tile import lane_strip
from cpuconv.kernels.windows.edges import NO_EDGES, Edges
from cpuconv.kernels.windows.group_words import GroupWords
from cpuconv.kernels.windows.lane_tile import LaneTile
from cpuconv.kernels.windows.lanewise import LanewiseTile, lanewise
from cpuconv.memory.aligned import aligned
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import words
from cpuconv.solvers.shared.base import check_tile
from cpuconv.solvers.shared.blocked import layout
from cpuconv.solvers.shared.lanes import lane_set
from cpuconv.solvers.shared.lanes.lane_tiles import ISSUE, MAX_COLUMNS, Shape, all_tiles, cycles, kernel_of, window
from cpuconv.symbolic.sizes import is_symbolic, least, now

_TILES_PER_WIDTH = 2  # candidates of equal width and kind
_CALL_CYCLES = 80.0  # cycles per call, for a row of tiles
_SELECTION = 2  # instructions to select an address
_PAGE, _ROWS_IN_SET = 4096, 8  # bytes after which L1's sets repeat, and rows that fit into a set
_BAND_SHARES = (0.5, 0.25)  # shares of L1 and L2 for a packed band


def sum_lanes(problem: ConvProblem, isa: Isa) -> int:
    """Output channels per vector of sums."""
    return isa.lanes * (F32.bytes // problem.types.sum.bytes)


def plane_cycles(problem: ConvProblem, isa: Isa, shape: Shape) -> float:
    """Modelled cycles of one output plane."""
    time = cycles(kernel_of(problem, shape.words), shape.seen(isa), shape._replace(block=0))
    tiles, chosen = _across(problem, shape.cols, shape.block == 0)
    return divide(problem.oh, shape.rows) * (tiles * time + chosen * shape.rows * shape.mix + _CALL_CYCLES)


def _across(problem: ConvProblem, cols: int, in_place: bool) -> tuple[float, float]:
    """Tiles per row, as if all were inside the input; and cycles per output row for columns that may be padding.

    In place, tiles at the ends of a row skip such columns, or select addresses where padding is not zero; bands copy
    them. A tile as wide as the row omits the taps in padding, but not for integers.
    """
    left, right = problem.pads[2:]
    tiles, step = divide(problem.ow, cols), cols * problem.stride[1]
    if tiles == 1 and in_place and not problem.types.sum.integer:
        places = itertools.product(range(problem.ow), range(problem.s))
        columns = (col * problem.stride[1] + tap * problem.dilation[1] - left for col, tap in places)
        return sum(0 <= column < problem.w for column in columns) / (problem.ow * problem.s), 0.0
    at_ends = min(tiles, divide(left, step) + divide(right, step))
    columns_of_each = min(left + right, step + problem.effective_kernel[1])
    return tiles, at_ends * columns_of_each * problem.r * _SELECTION / ISSUE


@functools.lru_cache(maxsize=8)  # called for the bound and for the candidates of a problem
def _ranked(problem: ConvProblem, isa: Isa, mix: int, groups: GroupWords | None) -> tuple[list[Shape], float]:
    """Tiles for a plane, fastest first, and `plane_cycles` of the first."""
    seen_by = words.seen(isa, groups.product) if groups else isa
    every, (rows, cols, time) = all_tiles(kernel_of(problem, groups), seen_by, mix)
    able = (rows <= min(problem.oh, _max_rows(problem, isa))) & (cols <= problem.ow)
    in_place = _in_place(problem, isa)
    wide = able & (cols * problem.stride[1] >= max(problem.pads[2:]))  # with narrower tiles, many windows are padded
    able = wide if in_place and wide.any() else able
    some = np.flatnonzero(able)
    widths = range(1, int(cols.max(initial=1)) + 1)
    tiles, chosen = np.array([_across(problem, width, in_place) for width in widths]).T[:, cols[some].astype(int) - 1]
    plane = np.ceil(problem.oh / rows[some]) * (tiles * time[some] + chosen * rows[some] * mix + _CALL_CYCLES)
    ranked = [every[index] for index in some[np.lexsort((-cols[some], plane))].tolist()]
    return ranked, float(plane.min(initial=math.inf))


def _max_rows(problem: ConvProblem, isa: Isa) -> int:
    """Maximum rows per tile. If the distance of input rows is a multiple of the page size, a set of L1 holds few of
    them, and the next tile reads them again.
    """
    pitch = problem.w * (problem.c * problem.types.x.bytes if channels_last(problem, isa) else isa.lanes * F32.bytes)
    return _ROWS_IN_SET if pitch % _PAGE == 0 else problem.oh


def shapes(problem: ConvProblem, isa: Isa, mix: int, most: int, groups: GroupWords | None = None) -> Iterator[Shape]:
    """The `most` fastest tiles for a plane, fastest first, each in place or with bands that fit into L1 and L2; and the
    fastest tile of `lane_set`, if it is none of these.
    """
    in_place = _in_place(problem, isa)
    seen: dict[tuple[bool, int], int] = {}
    closed, ranked, alike = False, _ranked(problem, isa, mix, groups)[0], _TILES_PER_WIDTH
    if takes_all():
        most = alike = len(ranked)
    for shape in ranked:
        kind, member = (shape.held, shape.cols), lane_set.is_member(problem, shape._replace(words=groups), isa)
        if (most and seen.get(kind, 0) < alike) or (member and not closed):
            seen[kind] = seen.get(kind, 0) + 1
            most, closed = max(0, most - 1), closed or member
            for block in (0,) if in_place else band_blocks(problem, isa, shape):
                yield shape._replace(block=block, words=groups)
        if not most and closed:
            return
    if not closed:
        yield from _member(problem, isa, mix, groups)


def _member(problem: ConvProblem, isa: Isa, mix: int, groups: GroupWords | None) -> Iterator[Shape]:
    """Fastest tile of `lane_set`, even if many of its windows overlap padding."""
    every = all_tiles(kernel_of(problem, groups), words.seen(isa, groups.product) if groups else isa, mix)[0]
    made = (shape._replace(words=groups) for shape in every if shape.rows <= problem.oh and shape.cols <= problem.ow)
    best = min(
        (shape for shape in made if lane_set.is_member(problem, shape, isa)),
        key=lambda shape: plane_cycles(problem, isa, shape),
    )
    for block in (0,) if _in_place(problem, isa) else band_blocks(problem, isa, best):
        yield best._replace(block=block)


def _in_place(problem: ConvProblem, isa: Isa) -> bool:
    """Whether tiles read the input in place."""
    return problem.types != ALL_F32 or problem.in_layout == layout(isa) or channels_last(problem, isa)


def channels_last(problem: ConvProblem, isa: Isa) -> bool:
    """Whether a depthwise convolution reads and writes whole vectors of adjacent channels."""
    whole = problem.k % isa.block(problem.types.x) == problem.k % isa.block(problem.types.y) == 0
    in_place = problem.in_layout == problem.out_layout == "NHWC" and problem.cg == problem.kg == 1
    return in_place and whole and not problem.types.sum.integer and not isa.closed


def band_blocks(problem: ConvProblem, isa: Isa, shape: Shape) -> list[int]:
    """Candidate numbers of tile rows per band, such that the band of a channel block fits into L1 or L2."""
    total = divide(problem.oh, shape.rows)
    line = window(problem, 1, problem.ow)[1] * isa.lanes * F32.bytes
    spare = (problem.effective_kernel[0] - problem.stride[0]) * line
    step = problem.stride[0] * shape.rows * line
    caches = (machine().l1, machine().l2)
    sizes = [int((share * cache - spare) / step) for share, cache in zip(_BAND_SHARES, caches, strict=True)]
    return sorted({min(total, max(1, size)) for size in sizes}, reverse=True)


def together(compute: float, traffic: float) -> float:
    """Cycles of arithmetic and traffic, which partly overlap."""
    return max(compute, traffic) + 0.5 * min(compute, traffic)


def cost(problem: ConvProblem, shape: Shape, machine: Machine) -> Cost:
    """Modelled time: FMAs, loads and shuffles of the tiles, and traffic of activations."""
    isa = machine.isa
    compute = problem.n * divide(problem.k, sum_lanes(problem, isa)) * plane_cycles(problem, isa, shape)
    traffic = _traffic(problem, machine, not shape.block)
    if shape.words:
        return machine.cost(_products(problem, isa, shape), together(compute, traffic), problem.threads)
    return machine.direct_cost(problem, together(compute, traffic))


def _traffic(problem: ConvProblem, machine: Machine, in_place: bool) -> float:
    """Cycles for activations, and for bands where tiles do not read the input in place."""
    traffic = machine.moving(problem.in_bytes + problem.out_bytes)
    return traffic if in_place else traffic + 2 * problem.in_bytes / machine.isa.l2_rate


def _products(problem: ConvProblem, isa: Isa, shape: Shape) -> float:
    """Cycles of all products."""
    pixels = problem.n * divide(problem.k, sum_lanes(problem, isa)) * problem.oh * problem.ow
    return pixels * shape.products * problem.r * problem.s / shape.seen(isa).fma_rate


def bound(problem: ConvProblem, machine: Machine, groups: GroupWords | None = None) -> float:
    """Lower bound of `cost`, in seconds: the fastest tile; for 32-bit groups, whose tiles hold no weights, the FMAs."""
    isa = machine.isa
    if groups:
        met = _across(problem, problem.ow, True)[0] if problem.ow <= MAX_COLUMNS else 1.0
        compute = min(1.0, met) * _products(problem, isa, Shape(1, 1, False, 0, groups.count, groups))
    else:
        compute = problem.n * divide(problem.k, sum_lanes(problem, isa)) * _ranked(problem, isa, problem.cg, None)[1]
    traffic = _traffic(problem, machine, _in_place(problem, isa))
    return machine.seconds(together(compute, traffic), problem.threads)


def step(problem: ConvProblem, shape: Shape, isa: Isa, space: Space, operands: Operands) -> Step:
    """Tile and arguments of the lanewise driver for this problem.

    Threads divide planes with more pixels than channels by rows, others by channels. The layers around, which sum over
    channels, are divided in the same way, so that a thread reads mostly what it has written itself.
    """
    kernel = kernel_of(problem, shape.words)
    own = (kernel.rows(shape), shape.held)
    rows = shape.rows if own[0] else least(shape.rows, problem.oh)  # of any number that is under way at once
    types, epilogue = problem.types, Epilogue.of(problem)
    lanes, in_place, vector = isa.lanes, shape.block == 0, isa.lanes * F32.bytes
    pixels = (vector, vector)
    if channels_last(problem, isa):
        pixels = operands.x.strides.w, operands.y.strides.w
        operands = _in_vectors(operands, vector)
    x = operands.x

    def strip(cols: int) -> MicroRef:
        alone = not is_symbolic(problem.ow) and not lane_set.is_member(problem, shape, isa)
        tile = LaneTile(
            *(lanes, own[0], cols, problem.r, problem.s, problem.stride, problem.dilation),
            edges=Edges.of(problem, cols, alone) if in_place else NO_EDGES,
            mix=shape.mix,
            weights_in_registers=shape.held,
            checked=in_place and any(problem.pads[:2]),
            residual=operands.residual is not None,
            activation=problem.activation,
            x=types.x,
            y=types.y,
            sum=types.sum,
            words=shape.words,
            xs=0 if pixels[0] == vector else pixels[0],
            ys=0 if pixels[1] == vector else pixels[1],
        )
        return MicroRef(lane_strip, tile)

    others = sorted(cols for *tile, cols in _members(problem, shape, isa) if tuple(tile) == own)
    columns = columns_for(shape.cols, others, problem.ow, lambda cols: [strip(cols)])
    cols = columns.taken
    check_tile(own[0] or kernel.rows_in_flight, cols, problem.oh, problem.ow)
    pixel = F32.bytes * lanes
    row_tiles = divide(problem.oh, rows)
    blocks = divide(problem.k, sum_lanes(problem, isa))
    planes = problem.n * blocks
    narrow = F32.bytes // types.sum.bytes
    out_vectors = WORD // types.y.bytes // narrow
    in_vectors = lanes // shape.words.chunk if shape.words else WORD // types.x.bytes // narrow
    by_rows = problem.threads > 1 and now(problem.oh * problem.ow) > problem.k
    by_rows |= in_vectors > 1 or pixels[0] > vector  # vectors that share cache lines or pages are adjacent
    row_blocks = row_tiles
    band_width = window(problem, 1, problem.ow)[1]
    band_step = 0
    if not in_place:
        row_blocks, _ = best_partition(problem.threads, divide(row_tiles, shape.block), Grid(planes, row_tiles))
        band_rows = window(problem, divide(row_tiles, row_blocks) * rows, 1)[0]
        band_step = band_rows * band_width * pixel + 64

    filled = types.sum.integer and any(problem.pads)
    width = window(problem, 1, max(columns.options))[1] * (pixels[0] if in_place else pixel)
    zeros = worker_args("zeros", space, width if filled else 0, problem.threads)
    if in_place and any(problem.pads) and not filled:
        zeros["zeros"] = _zeros(width // F32.bytes)
    pad_left = problem.pads[2] if in_place else min(problem.pads[2], band_width)
    args: Args = {
        "strip": columns.ref(strip),
        "tile_height": rows,
        "tile_width": cols,
        **operand_args(operands),
        **zeros,
        "fill": words.FILL if filled else 0,
        "weight_bytes": shape.products * problem.r * problem.s * pixel,
        "kernel_rows": problem.r,
        "channels": problem.c,
        "blocks": blocks,
        "block_step": 1 if by_rows else row_blocks,
        "row_blocks": row_blocks,
        "row_step": blocks if by_rows else 1,
        "row_tiles": row_tiles,
        "column_tiles": divide(problem.ow, cols),
        "height": problem.oh,
        "width": problem.ow,
        **problem_args(lanewise, problem),
        "pad_left": pad_left,
        "pad_bytes": pad_left * pixels[0],
        "reach": problem.effective_kernel[0],
        "x_line": x.strides.h if in_place else band_width * pixel,
        **output_args(operands.y),
        **worker_args("band", space, band_step, problem.threads),
        "band_width": band_width,
        "inside": max(0, min(problem.w, band_width - pad_left)),
        **view_args("x", x.strides),
    }
    pack = RowTile(lanes, BLOCKED) if in_place else row_tile(lanes, x.strides)
    tile = LanewiseTile(lanes, not in_place, pack, in_vectors, out_vectors, narrow * len(epilogue.rows), filled)
    return Step(lanewise, tile, args, parts_each(problem, planes * row_blocks))


def _members(problem: ConvProblem, shape: Shape, isa: Isa) -> list[tuple[int, bool, int]]:
    """Rows, whether weights are in registers, and columns of the set's tiles for a kernel."""
    found = lane_set.members(kernel_of(problem, shape.words), shape.seen(isa), shape.mix)
    return [(rows, held, cols) for rows, cols, held in found]


def _in_vectors(operands: Operands, vector: int) -> Operands:
    """View channels-last operands as channel blocks of one vector; their pixels stay where they are."""

    def viewed(each: Operand) -> Operand:
        return replace(each, strides=each.strides._replace(cb=vector))

    residual = None if operands.residual is None else viewed(operands.residual)
    return Operands(viewed(operands.x), viewed(operands.y), residual)


def _zeros(shape: tuple[int, ...] | int) -> np.ndarray:
    """Zeros aligned to a cache line."""
    array = aligned(shape)
    array[:] = 0
    return array
