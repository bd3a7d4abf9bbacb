"""What Winograd and FFT share: block sizes, packed weights, cost, and the tiled call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cpuconv.isa import Isa
from cpuconv.micro.gemm import GemmTile, gemm_strip
from cpuconv.micro.tiled import TiledTile, tiled
from cpuconv.problem import ConvProblem
from cpuconv.solvers.base import FLOAT, Args, Cost, MicroRef, Operand, Ref, Space, Step, aligned, divide
from cpuconv.solvers.machine import Machine
from cpuconv.solvers.tiling import Tile, cycles, tiles

Size = tuple[int, int]  # rows and columns

_L2_SHARES = (0.35, 0.7, 1.4)  # transforms of a block: candidates in shares of L2
_L3_SHARE = 0.3  # transforms of all tiles at once, when they fit in this share of L3
_FUSED_SHARE = 0.75  # of L2: larger blocks leave it, and a frequency then passes over all output channels at once
_CHUNK_SHARE = 0.3  # products of a chunk of output channels in L2, the same
_TILES = 2  # GEMM tiles a block size
_STREAM_TILES = 12  # fewer tiles a block than this, and weights stream faster than they are used


def tile_grid(problem: ConvProblem, m: Size) -> tuple[int, int, int]:
    """Rows and columns of tiles of a plane, and tiles in all, for output tiles of size `m`."""
    rows, columns = divide(problem.oh, m[0]), divide(problem.ow, m[1])
    return rows, columns, max(1, problem.n) * rows * columns


def sizes(
    problem: ConvProblem, isa: Isa, machine: Machine, m: Size, planes: int, shares: Sequence[float] = _L2_SHARES
) -> Iterator[tuple[int, int, int, int]]:
    """(v, n, block, chunk) worth trying for output tiles of size `m`; blocks take `shares` of L2."""
    channels = divide(problem.c, isa.lanes) * isa.lanes
    vectors = divide(problem.k, isa.lanes)
    total = tile_grid(problem, m)[2]
    per_tile = planes * channels * FLOAT
    blocks = [min(total, max(_STREAM_TILES, int(share * machine.l2 / per_tile))) for share in shares]
    if total * per_tile <= _L3_SHARE * machine.l3:
        blocks.append(total)
    seen = set()
    for block in blocks:
        block = divide(total, divide(total, block))  # equal blocks
        for tile in tiles(isa, vectors, 1, block, channels, most=_TILES):
            panel_bytes = planes * tile.v * isa.lanes * block * FLOAT
            panels = divide(vectors, tile.v)
            fused = block * per_tile <= _FUSED_SHARE * machine.l2
            chunk = min(panels, max(1, int(_CHUNK_SHARE * machine.l2 / panel_bytes))) if fused else panels
            found = (tile.v, tile.cols, block, divide(panels, divide(panels, chunk)))
            if found not in seen:
                seen.add(found)
                yield found


def pack(problem: ConvProblem, v: int, isa: Isa, planes: np.ndarray) -> np.ndarray:
    """Weights (planes, K, C) as [plane][panel][channel][v][lanes of K], tails zero."""
    lanes, count = isa.lanes, len(planes)
    vectors, channels = divide(problem.k, lanes), divide(problem.c, lanes) * lanes
    full = np.zeros((count, vectors, lanes, channels), np.float32)
    full.reshape(count, vectors * lanes, channels)[:, : problem.k, : problem.c] = planes
    panels = divide(vectors, v)
    packed = aligned((count, panels, channels, v, lanes))
    for panel in range(panels):
        first = min(panel * v, vectors - v)
        packed[:, panel] = full[:, first : first + v].transpose(0, 3, 1, 2)
    return packed


def _blocks(problem: ConvProblem, total: int, block: int, columns: int, panels: int) -> tuple[int, int]:
    """Blocks of tiles and chunks of panels that share the work evenly; every block has at least `columns` tiles."""
    threads = problem.threads
    most = max(1, total // columns)
    blocks = min(most, divide(total, block))
    if threads == 1:
        return blocks, 1
    finer = divide(blocks, threads) * threads
    if finer <= most:
        return finer, 1
    return blocks, min(panels, threads)


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
    planes: int,
    scratch: int = 0,
) -> Step:
    """The tiled kernel's tile and arguments; `params` has v, n, block and chunk.

    `m` is the output tile, `a` the input tile; `scratch` is what the transforms need for themselves, in vectors.
    """
    lanes = isa.lanes
    pixel = FLOAT * lanes
    rows, columns, total = tile_grid(problem, m)
    channel_blocks, vectors = divide(problem.c, lanes), divide(problem.k, lanes)
    panels = divide(vectors, params.v)
    blocks, chunks = _blocks(problem, total, params.block, params.n, panels)
    most = divide(total, blocks)
    v_plane = channel_blocks * most * pixel + pixel  # off the multiples of 4 KB
    m_plane = min(vectors, params.chunk * params.v) * most * pixel + pixel
    table = np.arange(channel_blocks, dtype=np.int64) * most * pixel
    v_step, m_step = planes * v_plane + pixel, planes * m_plane + pixel
    patch_step = max(a[0] * a[1], 2 * m[0] * m[1]) * pixel  # an input tile; an output tile with its residual
    gemm = GemmTile(
        lanes,
        params.v,
        rows=1,
        cols=params.n,
        unroll=lanes,
        xs=lanes,
        ys=lanes,
        stream=True,
        fetch=True,
        epilogue=False,
    )
    args: Args = {
        "gemm": MicroRef(gemm_strip, gemm),
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
        "panel_bytes": channel_blocks * lanes * params.v * pixel,
        "panels": panels,
        "vectors": vectors,
        "products": planes,
        "chunk": params.chunk,
        "chunks": chunks,
        "tiles": total,
        "blocks": blocks,
        "most": most,
        "grid_rows": rows,
        "grid_columns": columns,
        "tile_height": m[0],
        "tile_width": m[1],
        "in_tile_height": a[0],
        "in_tile_width": a[1],
        "height": problem.oh,
        "width": problem.ow,
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
    return Step(tiled, TiledTile(lanes), args)


def cost(
    problem: ConvProblem,
    params: Any,
    machine: Machine,
    m: Size,
    planes: int,
    operations: tuple[int, int],
) -> Cost:
    """Cycles of products, of transforms (`operations` a tile forward and back, beside loads and stores), of traffic."""
    isa = machine.isa
    total = tile_grid(problem, m)[2]
    channel_blocks, vectors = divide(problem.c, isa.lanes), divide(problem.k, isa.lanes)
    reduction = channel_blocks * isa.lanes
    block = min(params.block, total)
    blocks = divide(total, block)
    gemm = Tile(params.v, 1, params.n)
    multiply = blocks * planes * divide(vectors, params.v) * divide(block, params.n) * cycles(isa, gemm, reduction)
    transform = total * (
        channel_blocks * (operations[0] / isa.fma_rate + 2 * planes * (1 / isa.load_rate + isa.store_cost))
        + vectors * (operations[1] / isa.fma_rate + 2 * planes * (1 / isa.load_rate + isa.store_cost))
    )
    weight_bytes = planes * reduction * vectors * isa.lanes * FLOAT
    buffers = planes * block * (channel_blocks + params.chunk * params.v) * isa.lanes * FLOAT
    traffic = blocks * weight_bytes / machine.rate(weight_bytes)
    traffic += total / block * 3 * buffers / machine.rate(buffers)
    traffic += (problem.in_bytes + problem.out_bytes) / machine.rate(problem.in_bytes + problem.out_bytes)
    per_second = machine.frequency * max(1, problem.threads)
    floor = total * planes * vectors * reduction / isa.fma_rate
    return Cost(floor / per_second / 1.6, (multiply + transform + traffic) / per_second)
