"""What Winograd and FFT share: block sizes, packed weights, cost, and the tiled call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpuconv.isa import Isa
from cpuconv.micro.gemm import GemmTile, gemm_strip
from cpuconv.micro.tiled import TiledTile, tiled
from cpuconv.problem import ConvProblem
from cpuconv.solvers.base import FLOAT, Args, Cost, MicroRef, Operand, Ref, Space, Step, aligned, divide, parts_each
from cpuconv.solvers.machine import Machine
from cpuconv.solvers.tiling import Tile, cycles, segment, tiles

Size = tuple[int, int]  # rows and columns

_L2_SHARES = (0.1, 0.35, 1.0)  # transforms of a block: candidates in shares of L2
_L3_SHARE = 0.3  # transforms of all tiles at once, when they fit in this share of L3
_FUSED_SHARE = 0.75  # of L2: larger blocks leave it, and a frequency then passes over all output channels at once
_CHUNK_SHARE = 0.3  # products of a chunk of output channels in L2, the same
_TILES = 2  # GEMM tiles a block size
_CROSSINGS = 5  # times a transformed vector passes between L2 and L3, if it does
_STREAMED = 2.5  # how much faster than scattered lines weights come from L3, each block anew
_FITS = 1.15  # transforms and products of more than so many L2s begin to leave it
_KEPT = 0.6  # share of L2 in which weights stay from block to block
_APART = 0.4  # share of products and of weights prefetched meanwhile that do not overlap
_MISS = 1.0  # cycles that a vector costs beside its load or store: it is in L2, not in L1
_CALL = 20  # cycles of the driver for a transform
_FOLLOWED = 4  # up to so many tiles a block, weights are one stream, which hardware follows better
_STREAM_TILES = 12  # fewer tiles a block than this, and weights stream faster than they are used


def _cuts(size: int, tile: int, step: int) -> list[tuple[int, int]]:
    """(start, outputs) of the tiles of one axis: `step` phases, each a dense axis of every `step`-th output."""
    cuts = []
    for phase in range(min(step, size)):
        outputs = divide(size - phase, step)
        cuts += [(phase + first * step, min(tile, outputs - first)) for first in range(0, outputs, tile)]
    return cuts


def places(problem: ConvProblem, m: Size, dilation: Size = (1, 1)) -> np.ndarray:
    """Row, column, rows and columns of each tile of a plane, for output tiles of size `m`: (tiles, 4)."""
    rows, columns = _cuts(problem.oh, m[0], dilation[0]), _cuts(problem.ow, m[1], dilation[1])
    return np.array([(row, column, high, wide) for row, high in rows for column, wide in columns], np.int64)


def tile_grid(problem: ConvProblem, m: Size, dilation: Size = (1, 1)) -> tuple[int, int, int]:
    """Rows and columns of tiles of a plane, and tiles of all images, for output tiles of size `m`."""
    rows, columns = len(_cuts(problem.oh, m[0], dilation[0])), len(_cuts(problem.ow, m[1], dilation[1]))
    return rows, columns, max(1, problem.n) * rows * columns


@dataclass(frozen=True)
class Planes:
    """Real components of a transform, in the order in which they lie: single ones, then pairs that are the real and
    imaginary parts of complex numbers."""

    singles: int
    pairs: int = 0

    @property
    def count(self) -> int:
        """All of them."""
        return self.singles + 2 * self.pairs

    @property
    def products(self) -> int:
        """Real products of a pixel and a weight: a complex one takes four."""
        return self.singles + 4 * self.pairs


def _complex_cycles(isa: Isa, tile: Tile, reduction: int) -> float:
    """Modelled cycles of a complex tile: the FMAs and loads of a real one twice as high and wide, half its sums."""
    return cycles(isa, Tile(2 * tile.v, 1, 2 * tile.cols), reduction) - 2 * tile.v * tile.cols * isa.store_cost


def _gemm_tiles(isa: Isa, vectors: int, block: int, reduction: int, complex_: bool) -> list[Tile]:
    """The best tiles for a block, best first; complex ones, one for a number of weight vectors."""
    if not complex_:
        return list(tiles(isa, vectors, 1, block, reduction, most=_TILES))

    def time(tile: Tile) -> float:
        return divide(vectors, tile.v) * divide(block, tile.cols) * _complex_cycles(isa, tile, reduction)

    most = dict(enumerate(isa.pairs, 1))
    found = [min((Tile(v, 1, n) for n in range(1, min(most[v], block) + 1)), key=time) for v in most if v <= vectors]
    return sorted(found, key=time)[:_TILES]


def sizes(
    problem: ConvProblem,
    isa: Isa,
    machine: Machine,
    m: Size,
    planes: Planes,
    shares: Sequence[float] = _L2_SHARES,
    dilation: Size = (1, 1),
) -> Iterator[tuple[int, int, int, int]]:
    """(v, n, block, chunk) worth trying for output tiles of size `m`; blocks take `shares` of L2."""
    channels = divide(problem.cg, isa.lanes) * isa.lanes
    vectors = divide(problem.kg, isa.lanes)
    total = tile_grid(problem, m, dilation)[2]
    per_tile = planes.count * channels * FLOAT
    blocks = [min(total, max(_STREAM_TILES, int(share * machine.l2 / per_tile))) for share in shares]
    if total * per_tile <= _L3_SHARE * machine.l3:
        blocks.append(total)
    seen = set()
    for block in blocks:
        least = total // divide(total, block)  # of equal blocks: no GEMM tile is wider
        block = divide(total, divide(total, block))
        for tile in _gemm_tiles(isa, vectors, least, problem.cg, bool(planes.pairs)):
            panel_bytes = planes.count * tile.v * isa.lanes * block * FLOAT
            panels = divide(vectors, tile.v)
            fused = block * per_tile <= _FUSED_SHARE * machine.l2
            chunk = min(panels, max(1, int(_CHUNK_SHARE * machine.l2 / panel_bytes))) if fused else panels
            found = (tile.v, tile.cols, block, divide(panels, divide(panels, chunk)))
            if found not in seen:
                seen.add(found)
                yield found


def pack(problem: ConvProblem, v: int, isa: Isa, planes: np.ndarray, pairs: int = 0) -> np.ndarray:
    """Weights (planes, K, C of a group) as [group][plane][panel][channel][v][lanes of K], tails zero; the last `pairs`
    pairs of planes as [group][pair][panel][channel][2][v][lanes of K]."""
    lanes, count, groups = isa.lanes, len(planes), problem.groups
    vectors, channels = divide(problem.kg, lanes), problem.cg
    full = np.zeros((count, groups, vectors * lanes, channels), np.float32)
    full[:, :, : problem.kg] = planes.reshape(count, groups, problem.kg, problem.cg)
    full = full.reshape(count, groups, vectors, lanes, channels)
    panels = divide(vectors, v)
    singles = count - 2 * pairs
    packed = aligned((groups, count, panels, channels, v, lanes))
    paired = packed[:, singles:].reshape(groups, pairs, panels, channels, 2, v, lanes)
    for panel in range(panels):
        first = min(panel * v, vectors - v)
        some = full[:, :, first : first + v].transpose(1, 0, 4, 2, 3)
        packed[:, :singles, panel] = some[:, :singles]
        paired[:, :, panel] = some[:, singles:].reshape(groups, pairs, 2, channels, v, lanes).swapaxes(2, 3)
    return packed


def _blocks(problem: ConvProblem, total: int, block: int, columns: int, panels: int) -> tuple[int, int]:
    """Blocks of tiles and chunks of panels that share the work evenly; every block has at least `columns` tiles."""
    threads = problem.threads
    most = max(1, total // columns)
    blocks = min(most, divide(total, block))
    if problem.groups * blocks % threads == 0:
        return blocks, 1
    finer = divide(blocks, threads) * threads
    if finer <= most:
        return finer, 1
    return blocks, min(panels, threads)


def _gemm(isa: Isa, params: Any, channels: int, block: int, complex_: bool) -> GemmTile:
    """The tile of the products of `block` tiles, which together fetch all weights of the next panel."""
    unroll, tail = segment(isa, channels)
    tile = GemmTile(
        isa.lanes,
        params.v,
        rows=2 if complex_ else 1,
        cols=params.n,
        unroll=unroll,
        xs=isa.lanes,
        ys=isa.lanes,
        stream=isa.load_rate > 1,  # prefetches take the slots of loads, and `fetch` asks for a line once
        epilogue=False,
        complex=complex_,
        tail=tail,
        tails=int(tail > 0),
    )
    return replace(tile, fetch=divide(tile.vectors, divide(block, params.n)) if block > _FOLLOWED else 0)


def step(
    problem: ConvProblem,
    params: Any,
    isa: Isa,
    space: Space,
    x: Operand,
    y: Operand,
    residual: Operand | None,
    m: Size,
    a: Size,
    forward: MicroRef,
    backward: MicroRef,
    planes: Planes,
    scratch: int = 0,
    dilation: Size = (1, 1),
) -> Step:
    """The tiled kernel's tile and arguments; `params` has v, n, block and chunk.

    `m` is the output tile, `a` the input tile; `scratch` is what the transforms need for themselves, in vectors.
    `dilation` is the step between a tile's pixels, in and out.
    """
    lanes = isa.lanes
    pixel = FLOAT * lanes
    tiles = places(problem, m, dilation)
    total = max(1, problem.n) * len(tiles)
    channel_blocks, vectors = divide(problem.cg, lanes), divide(problem.kg, lanes)
    panels = divide(vectors, params.v)
    blocks, chunks = _blocks(problem, total, params.block, params.n, panels)
    most = divide(total, blocks)
    v_plane = channel_blocks * most * pixel + pixel  # off the multiples of 4 KB
    m_plane = min(vectors, params.chunk * params.v) * most * pixel + pixel
    table = np.arange(channel_blocks, dtype=np.int64) * most * pixel
    v_step, m_step = planes.count * v_plane + pixel, planes.count * m_plane + pixel
    patch_step = max(a[0] * a[1], 2 * m[0] * m[1]) * pixel  # an input tile; an output tile with its residual
    args: Args = {
        "gemm": MicroRef(gemm_strip, _gemm(isa, params, problem.cg, most, False)) if planes.singles else 0,
        "pair_gemm": MicroRef(gemm_strip, _gemm(isa, params, problem.cg, most, True)) if planes.pairs else 0,
        "tile_vectors": params.v,
        "tile_columns": params.n,
        "forward": forward,
        "backward": backward,
        "x": x.ref,
        "y": y.ref,
        "w": Ref("w"),
        "bias": Ref("bias"),
        "residual": residual.ref if residual else y.ref,
        "table": table,
        "segments": channel_blocks,
        "panel_bytes": problem.cg * params.v * pixel,
        "panels": panels,
        "vectors": vectors,
        "planes": planes.count,
        "singles": planes.singles,
        "chunk": params.chunk,
        "chunks": chunks,
        "places": tiles,
        "tiles": len(tiles),
        "groups": problem.groups,
        "total": total,
        "blocks": blocks,
        "most": most,
        "tile_height": m[0],
        "tile_width": m[1],
        "in_tile_height": a[0],
        "in_tile_width": a[1],
        "row_step": dilation[0],
        "column_step": dilation[1],
        "reach_rows": (a[0] - 1) * dilation[0] + 1,
        "reach_columns": (a[1] - 1) * dilation[1] + 1,
        "in_height": problem.h,
        "in_width": problem.w,
        "pad_top": problem.pads[0],
        "pad_left": problem.pads[2],
        "channel_blocks": channel_blocks,
        "x_image": x.strides.n,
        "x_cb": x.strides.cb,
        "x_h": x.strides.h,
        "y_image": y.strides.n,
        "y_vector": y.strides.cb,
        "y_line": y.strides.h,
        "v": space.reserve(v_step * problem.threads),
        "v_step": v_step,
        "v_plane": v_plane,
        "m": space.reserve(m_step * problem.threads),
        "m_step": m_step,
        "m_plane": m_plane,
        "patch": space.reserve(patch_step * problem.threads),
        "patch_step": patch_step,
        "scratch": space.reserve(scratch * pixel * problem.threads) if scratch else 0,
        "scratch_step": scratch * pixel,
    }
    return Step(tiled, TiledTile(lanes), args, parts_each(problem, problem.groups * blocks * chunks))


def cost(
    problem: ConvProblem,
    params: Any,
    machine: Machine,
    m: Size,
    planes: Planes,
    operations: tuple[int, int],
    dilation: Size = (1, 1),
) -> Cost:
    """Cycles of products and of the weights that are prefetched meanwhile, of transforms (`operations` a tile forward
    and back, beside loads and stores), of other traffic."""
    isa = machine.isa
    total = tile_grid(problem, m, dilation)[2]
    channel_blocks, vectors = divide(problem.cg, isa.lanes), divide(problem.kg, isa.lanes)
    reduction, pixel = problem.cg, isa.lanes * FLOAT
    block = min(params.block, total)
    blocks = divide(total, block)
    gemm = Tile(params.v, 1, params.n)
    products = planes.singles * cycles(isa, gemm, reduction)
    if planes.pairs:
        products += planes.pairs * _complex_cycles(isa, gemm, reduction)
    multiply = blocks * divide(vectors, params.v) * divide(block, params.n) * products
    moves = planes.count * (2 / isa.load_rate + 2 * isa.store_cost + _MISS)
    transform = total * (
        channel_blocks * (operations[0] / isa.fma_rate + moves + _CALL)
        + vectors * (operations[1] / isa.fma_rate + moves + planes.count * _MISS + _CALL)
    )
    weight_bytes = planes.count * reduction * vectors * pixel
    transforms = planes.count * block * channel_blocks * pixel
    summed = planes.count * block * params.chunk * params.v * pixel
    again = 0 if weight_bytes + transforms + summed <= _KEPT * machine.l2 else blocks - 1
    weights = weight_bytes / machine.rate(weight_bytes) + again * weight_bytes / (_STREAMED * isa.l3_rate)
    missed = max(0.0, 1 - _FITS * machine.l2 / (transforms + summed))
    moved = total * planes.count * (channel_blocks + vectors) * pixel
    traffic = missed * _CROSSINGS * moved / machine.rate(transforms + summed)
    activations = (problem.in_bytes + problem.out_bytes) / machine.rate(problem.in_bytes + problem.out_bytes)
    floor = problem.groups * total * planes.products * vectors * reduction / isa.fma_rate
    products = max(multiply, weights) + _APART * min(multiply, weights)
    estimate = problem.groups * (products + transform + traffic) + activations
    return machine.cost(floor, estimate, problem.threads)
