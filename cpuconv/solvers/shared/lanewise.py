"""What depthwise and grouped convolution share: tiles that fit, packed weights, cost, and the lanewise call."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, output_args, problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.partition import Grid, parts_each, shortest
from cpuconv.kernels.binding.steps import Args, MicroRef, Operands, Space, Step
from cpuconv.kernels.copies.rows import BLOCKED, RowTile
from cpuconv.kernels.copies.views import row_tile, view_args
from cpuconv.kernels.elementwise.ending import Ending
from cpuconv.kernels.emit.product import WORD
from cpuconv.kernels.products.tiling import takes_all
from cpuconv.kernels.windows.depthwise_tile import LaneTile, lane_strip
from cpuconv.kernels.windows.edges import NO_EDGES, Edges
from cpuconv.kernels.windows.group_words import GroupWords
from cpuconv.kernels.windows.lanewise import LanewiseTile, lanewise
from cpuconv.memory.aligned import aligned
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import words
from cpuconv.solvers.shared.blocked import layout

_MOST_PIXELS = 64  # outputs of a tile: bounds code size and compile time
_MOST_FMAS = 640  # straight-line FMAs of a tile
_MOST_COLUMNS = 16
_MOST_LOOPED_ROWS = 4  # taller tiles of the looped kind spill: the rows of a column are loaded together
_FEW_REGISTERS = 16
_ISSUE = 4  # instructions a cycle
_MOST_ALIKE = 2  # candidates of one width and kind
_OVERHEAD = 12.0  # cycles a tile, beside its instructions
_CALL = 80.0  # cycles of a call, for a row of tiles
_OVERLAP = 1.5  # sums in flight, over those that are held: of the rows before, the last FMAs are still on their way
_CHOOSING = 2  # instructions to choose an address
_WIDENING, _TO_BFLOAT, _TO_BYTES = 2, 2, 11  # instructions of an input vector, and of an output vector
_BAND_SHARES = (0.5, 0.25)  # of L1 and of L2, for a packed band


class Shape(NamedTuple):
    """A tile and its bands.

    Attributes
    ----------
    rows, cols : int
        Outputs of a tile.
    held : bool
        Whether the weights of the whole kernel stay in registers.
    block : int
        Tile rows of a band; 0: the input is read in place.
    mix : int
        Channels of a group, or words.
    words : GroupWords
        Of narrow elements, how words reach lanes.
    """

    rows: int
    cols: int
    held: bool
    block: int
    mix: int = 1
    words: GroupWords | None = None

    def seen(self, isa: Isa) -> Isa:
        """The instruction set for the model: its FMA is the product."""
        return words.seen(isa, self.words.product) if self.words else isa

    @property
    def products(self) -> int:
        """Products of a tap."""
        return self.mix * (self.words.product.parts if self.words else 1)


class Kernel(NamedTuple):
    """What the cost of a tile depends on, beside the tile."""

    r: int
    s: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    effective_kernel: tuple[int, int]
    activated: bool
    widening: int = 0  # instructions beside FMAs, on their ports: for an input vector
    narrowing: int = 0  # and for an output vector
    parts: int = 0  # of words, vectors of weights that one meets
    cuts: int = 0  # of words, parts that one is split into, for each of which the input vector is shuffled


@functools.lru_cache(maxsize=64)  # all candidates of a problem ask
def kernel_of(problem: ConvProblem, groups: GroupWords | None = None) -> Kernel:
    """The problem without its sizes."""
    geometry = problem.r, problem.s, problem.stride, problem.dilation, problem.effective_kernel
    kernel = Kernel(*geometry, problem.activation is not None)
    if problem.types == ALL_F32:
        return kernel
    narrowing = _TO_BYTES if problem.types.sum.integer else _TO_BFLOAT
    if groups:
        return kernel._replace(narrowing=narrowing, parts=groups.product.parts, cuts=groups.product.cuts)
    return kernel._replace(widening=_WIDENING, narrowing=narrowing)


def window(problem: ConvProblem | Kernel, rows: int, cols: int) -> tuple[int, int]:
    """Input rows and columns under rows × cols outputs."""
    high, wide = problem.effective_kernel
    return (rows - 1) * problem.stride[0] + high, (cols - 1) * problem.stride[1] + wide


def sums_alive(kernel: Kernel, shape: Shape) -> int:
    """Outputs held at once: all of the tile or, with `held`, those under one input row."""
    outputs = shape.rows * shape.cols
    if not shape.held:
        return outputs
    full, rest = divmod((kernel.r - 1) * kernel.dilation[0], kernel.stride[0])
    ending = min(shape.cols, (kernel.s - 1) * kernel.dilation[1] // kernel.stride[1] + 1)
    return min(outputs, full * shape.cols + (shape.cols if rest else ending))


def registers(kernel: Kernel, isa: Isa, shape: Shape) -> int:
    """Vector registers that a tile needs: sums, weights, an input vector and its permutation.

    LLVM orders looped code more freely, which takes two more, and another two where loads in flight take registers. Of
    16 registers, tiles that hold their weights leave one: those that filled all spilled 13 to 15% of their sums.
    """
    spare = 1 + (shape.mix > 1) + (not isa.broadcast_operand) + 3 * kernel.cuts
    if shape.held:
        weights = kernel.r * kernel.s
        spare += isa.registers <= _FEW_REGISTERS
    else:
        weights = min(kernel.s, (shape.cols - 1) * kernel.stride[1] // kernel.dilation[1] + 1)
        spare += 2 + kernel.activated + 2 * (not isa.memory_operand)
    return sums_alive(kernel, shape) + weights * max(1, kernel.cuts) + spare


def fits(kernel: Kernel, isa: Isa, shape: Shape) -> bool:
    """Whether a tile stays in registers and its code is small."""
    outputs = shape.rows * shape.cols
    body = outputs * kernel.s * (kernel.r if shape.held else shape.mix * max(1, kernel.parts))
    return (
        (outputs == 1 or (outputs <= _MOST_PIXELS and body <= _MOST_FMAS))
        and (shape.held or shape.rows <= max(_MOST_LOOPED_ROWS, shape.cols))
        and registers(kernel, isa, shape) <= isa.registers
    )


@functools.lru_cache(maxsize=1024)
def cycles(kernel: Kernel, isa: Isa, shape: Shape) -> float:
    """Modelled cycles of one tile, whatever its bands."""
    outputs = shape.rows * shape.cols
    fmas = outputs * kernel.r * kernel.s * shape.mix * max(1, kernel.parts)
    if shape.held:
        high, wide = window(kernel, shape.rows, shape.cols)
        inputs, weights = high * wide, kernel.r * kernel.s
    else:
        passes = kernel.r * shape.mix
        wide = min(window(kernel, 1, shape.cols)[1], shape.cols * kernel.s)
        inputs, weights = passes * shape.rows * wide, passes * kernel.s
    shuffles = inputs * (kernel.cuts or (shape.mix - 1) / shape.mix)
    beside = inputs * kernel.widening + outputs * kernel.narrowing
    busiest = max(
        (fmas + beside) / isa.fma_rate + 0.5 * shuffles,  # they share a port
        (inputs + weights + outputs) / isa.load_rate,
        (fmas + beside + inputs + weights + shuffles + 2 * outputs) / _ISSUE,
        fmas * isa.latency / min(outputs, _OVERLAP * sums_alive(kernel, shape)),
    )
    loop = 0.0 if shape.held else 2.0 * kernel.r * shape.mix
    return busiest + 0.5 * outputs * isa.store_cost + loop + _OVERHEAD


def plane_cycles(problem: ConvProblem, isa: Isa, shape: Shape) -> float:
    """Modelled cycles of one plane of outputs."""
    time = cycles(kernel_of(problem, shape.words), shape.seen(isa), shape._replace(block=0))
    tiles, chosen = _across(problem, shape.cols, shape.block == 0)
    return divide(problem.oh, shape.rows) * (tiles * time + chosen * shape.rows * shape.mix + _CALL)


def _across(problem: ConvProblem, cols: int, in_place: bool) -> tuple[float, float]:
    """Tiles of a row, as if all lay inside; and cycles, a row of their outputs, for columns that may be padding.

    In place, tiles at the ends of a row jump over such columns, or choose their addresses where padding is not zero;
    bands copy them. A tile that is the whole row leaves out the taps that meet padding, but of integers.
    """
    left, right = problem.pads[2:]
    tiles, step = divide(problem.ow, cols), cols * problem.stride[1]
    if tiles == 1 and in_place and not problem.types.sum.integer:
        places = itertools.product(range(problem.ow), range(problem.s))
        columns = (col * problem.stride[1] + tap * problem.dilation[1] - left for col, tap in places)
        return sum(0 <= column < problem.w for column in columns) / (problem.ow * problem.s), 0.0
    at_ends = min(tiles, divide(left, step) + divide(right, step))
    columns_of_each = min(left + right, step + problem.effective_kernel[1])
    return tiles, at_ends * columns_of_each * problem.r * _CHOOSING / _ISSUE


@functools.lru_cache(maxsize=256)
def _tiles(kernel: Kernel, isa: Isa, mix: int) -> tuple[tuple[Shape, ...], np.ndarray]:
    """Tiles that fit, whatever the plane: those that hold all weights first; and their rows, columns and cycles."""
    found: list[Shape] = []
    for held in (True, False) if mix == 1 else (False,):
        for cols in range(1, min(_MOST_COLUMNS, isa.registers) + 1):
            column = [Shape(rows, cols, held, 0, mix) for rows in range(1, _MOST_PIXELS // cols + 1)]
            found += itertools.takewhile(lambda shape: fits(kernel, isa, shape), column)  # no higher one does
    figures = [(shape.rows, shape.cols, cycles(kernel, isa, shape)) for shape in found]
    return tuple(found), np.array(figures, np.float64).reshape(-1, 3).T.copy()


@functools.lru_cache(maxsize=8)  # the bound and the candidates of a problem ask
def _ranked(problem: ConvProblem, isa: Isa, mix: int, groups: GroupWords | None) -> tuple[list[Shape], float]:
    """Tiles for a plane, best first, and what the best takes by `plane_cycles`."""
    seen_by = words.seen(isa, groups.product) if groups else isa
    every, (rows, cols, time) = _tiles(kernel_of(problem, groups), seen_by, mix)
    able = (rows <= problem.oh) & (cols <= problem.ow)
    in_place = _in_place(problem, isa)
    wide = able & (cols * problem.stride[1] >= max(problem.pads[2:]))  # of others, many tiles meet padding
    able = wide if in_place and wide.any() else able
    some = np.flatnonzero(able)
    widths = range(1, int(cols.max(initial=1)) + 1)
    tiles, chosen = np.array([_across(problem, width, in_place) for width in widths]).T[:, cols[some].astype(int) - 1]
    plane = np.ceil(problem.oh / rows[some]) * (tiles * time[some] + chosen * rows[some] * mix + _CALL)
    ranked = [every[index] for index in some[np.lexsort((-cols[some], plane))].tolist()]
    return ranked, float(plane.min(initial=math.inf))


def shapes(problem: ConvProblem, isa: Isa, mix: int, most: int, groups: GroupWords | None = None) -> Iterator[Shape]:
    """The `most` best tiles for a plane, best first, each in place or with bands that stay in L1 and in L2."""
    in_place = _in_place(problem, isa)
    seen: dict[tuple[bool, int], int] = {}
    ranked, alike = _ranked(problem, isa, mix, groups)[0], _MOST_ALIKE
    if takes_all():
        most = alike = len(ranked)
    for shape in ranked:
        kind = (shape.held, shape.cols)
        if seen.get(kind, 0) < alike:
            seen[kind] = seen.get(kind, 0) + 1
            most -= 1
            for block in (0,) if in_place else band_blocks(problem, isa, shape):
                yield shape._replace(block=block, words=groups)
            if not most:
                return


def _in_place(problem: ConvProblem, isa: Isa) -> bool:
    """Whether tiles read the input where it lies."""
    return problem.types != ALL_F32 or problem.in_layout == layout(isa)


def band_blocks(problem: ConvProblem, isa: Isa, shape: Shape) -> list[int]:
    """Candidate numbers of tile rows a band: what keeps the band of a channel block in L1 or in L2."""
    total = divide(problem.oh, shape.rows)
    line = window(problem, 1, problem.ow)[1] * isa.lanes * F32.bytes
    spare = (problem.effective_kernel[0] - problem.stride[0]) * line
    step = problem.stride[0] * shape.rows * line
    caches = (machine().l1, machine().l2)
    sizes = [int((share * cache - spare) / step) for share, cache in zip(_BAND_SHARES, caches, strict=True)]
    return sorted({min(total, max(1, size)) for size in sizes}, reverse=True)


def _together(compute: float, traffic: float) -> float:
    """Cycles of arithmetic and traffic, which overlap in part."""
    return max(compute, traffic) + 0.5 * min(compute, traffic)


def cost(problem: ConvProblem, shape: Shape, machine: Machine) -> Cost:
    """FMA, load and shuffle slots of the tiles, and the traffic of activations."""
    isa = machine.isa
    compute = problem.n * divide(problem.k, isa.lanes) * plane_cycles(problem, isa, shape)
    traffic = _traffic(problem, machine, not shape.block)
    if shape.words:
        return machine.cost(_products(problem, isa, shape), _together(compute, traffic), problem.threads)
    return machine.direct_cost(problem, _together(compute, traffic))


def _traffic(problem: ConvProblem, machine: Machine, in_place: bool) -> float:
    """Cycles to move activations, and bands where tiles do not read the input where it lies."""
    traffic = machine.moving(problem.in_bytes + problem.out_bytes)
    return traffic if in_place else traffic + 2 * problem.in_bytes / machine.isa.l2_rate


def _products(problem: ConvProblem, isa: Isa, shape: Shape) -> float:
    """Cycles of all products."""
    pixels = problem.n * divide(problem.k, isa.lanes) * problem.oh * problem.ow
    return pixels * shape.products * problem.r * problem.s / shape.seen(isa).fma_rate


def bound(problem: ConvProblem, machine: Machine, groups: GroupWords | None = None) -> float:
    """Seconds that no `cost` is below: those of the best tile; of words, whose tiles hold no weights, FMA slots."""
    isa = machine.isa
    if groups:
        met = _across(problem, problem.ow, True)[0] if problem.ow <= _MOST_COLUMNS else 1.0
        compute = min(1.0, met) * _products(problem, isa, Shape(1, 1, False, 0, groups.count, groups))
    else:
        compute = problem.n * divide(problem.k, isa.lanes) * _ranked(problem, isa, problem.cg, None)[1]
    traffic = _traffic(problem, machine, _in_place(problem, isa))
    return machine.seconds(_together(compute, traffic), problem.threads)


def step(problem: ConvProblem, shape: Shape, isa: Isa, space: Space, operands: Operands) -> Step:
    """The lanewise kernel's tile and arguments for this problem.

    Workers share planes of more pixels than there are channels by rows, others by channels: as the layers around it are
    cut, which sum channels, so that a worker reads most of what it has written itself.
    """
    lanes, in_place, x = isa.lanes, shape.block == 0, operands.x
    pixel = F32.bytes * lanes
    row_tiles = divide(problem.oh, shape.rows)
    blocks = divide(problem.k, lanes)
    planes = problem.n * blocks
    types, ending = problem.types, Ending.of(problem)
    out_pieces = WORD // types.y.bytes
    in_pieces = lanes // shape.words.chunk if shape.words else WORD // types.x.bytes
    by_rows = problem.threads > 1 and problem.oh * problem.ow > problem.k
    by_rows |= in_pieces > 1  # vectors that share lines follow each other
    row_blocks = row_tiles
    band_width = window(problem, 1, problem.ow)[1]
    band_step = 0
    if not in_place:
        row_blocks, _ = shortest(problem.threads, divide(row_tiles, shape.block), Grid(planes, row_tiles))
        band_rows = window(problem, divide(row_tiles, row_blocks) * shape.rows, 1)[0]
        band_step = band_rows * band_width * pixel + 64

    strip = LaneTile(
        *(lanes, shape.rows, shape.cols, problem.r, problem.s, problem.stride, problem.dilation),
        edges=Edges.of(problem, shape.cols) if in_place else NO_EDGES,
        mix=shape.mix,
        held=shape.held,
        checked=in_place and any(problem.pads[:2]),
        residual=operands.residual is not None,
        activation=problem.activation,
        x=types.x,
        y=types.y,
        sum=types.sum,
        words=shape.words,
    )
    filled = types.sum.integer and any(problem.pads)
    width = window(problem, 1, shape.cols)[1] * pixel
    zeros = worker_args("zeros", space, width if filled else 0, problem.threads)
    if in_place and any(problem.pads) and not filled:
        zeros["zeros"] = _zeros(width // F32.bytes)
    pad_left = problem.pads[2] if in_place else min(problem.pads[2], band_width)
    args: Args = {
        "strip": MicroRef(lane_strip, strip),
        "tile_height": shape.rows,
        "tile_width": shape.cols,
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
        "column_tiles": divide(problem.ow, shape.cols),
        "height": problem.oh,
        "width": problem.ow,
        **problem_args(lanewise, problem),
        "pad_left": pad_left,
        "reach": problem.effective_kernel[0],
        "x_line": x.strides.h if in_place else band_width * pixel,
        **output_args(operands.y),
        **worker_args("band", space, band_step, problem.threads),
        "band_width": band_width,
        "inside": max(0, min(problem.w, band_width - pad_left)),
        **view_args("x", x.strides),
    }
    pack = RowTile(lanes, BLOCKED) if in_place else row_tile(lanes, x.strides)
    tile = LanewiseTile(lanes, not in_place, pack, in_pieces, out_pieces, len(ending.rows), filled)
    return Step(lanewise, tile, args, parts_each(problem, planes * row_blocks))


def _zeros(shape: tuple[int, ...] | int) -> np.ndarray:
    """Zeros that start on a cache line."""
    array = aligned(shape)
    array[:] = 0
    return array
