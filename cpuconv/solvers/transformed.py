"""What Winograd and FFT share: block sizes, packed weights, cost, and the tiled call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cpuconv.isa import Isa
from cpuconv.micro.gemm import GemmTile, gemm_strip
from cpuconv.micro.tiled import TiledTile, tiled
from cpuconv.problem import ConvProblem
from cpuconv.solvers.base import FLOAT, Args, Cost, MicroRef, Operand, Ref, Space, Step, aligned, divide
from cpuconv.solvers.machine import Machine
from cpuconv.solvers.tiling import Tile, cycles, tiles

_L2_SHARES = (0.35, 0.7, 1.4)  # transforms of a block: candidates in shares of L2
_CHUNK_SHARE = 0.3  # products of a chunk of output channels, the same
_TILES = 2  # GEMM tiles a block size
_STREAM_TILES = 12  # fewer tiles a block than this, and weights stream faster than they are used


def tile_grid(problem: ConvProblem, m: tuple[int, int]) -> tuple[int, int, int]:
    """Rows and columns of tiles of a plane, and tiles in all."""
    rows, columns = divide(problem.oh, m[0]), divide(problem.ow, m[1])
    return rows, columns, max(1, problem.n) * rows * columns


def sizes(
    problem: ConvProblem, isa: Isa, machine: Machine, m: int, planes: int, products: int, reduction: int
) -> Iterator[tuple[int, int, int, int]]:
    """(v, n, block, chunk) worth trying; `reduction` = planes a product sums over."""
    channels = divide(problem.c, isa.lanes) * isa.lanes
    vectors = divide(problem.k, isa.lanes)
    total = tile_grid(problem, (m, m))[2]
    per_tile = planes * channels * FLOAT
    seen = set()
    for share in _L2_SHARES:
        block = min(total, max(_STREAM_TILES, int(share * machine.l2 / per_tile)))
        block = divide(total, divide(total, block))  # equal blocks
        for tile in tiles(isa, vectors, 1, block, channels * reduction, most=_TILES):
            panel_bytes = products * tile.v * isa.lanes * block * FLOAT
            panels = divide(vectors, tile.v)
            chunk = min(panels, max(1, int(_CHUNK_SHARE * machine.l2 / panel_bytes)))
            found = (tile.v, tile.cols, block, divide(panels, divide(panels, chunk)))
            if found not in seen:
                seen.add(found)
                yield found


def pack(problem: ConvProblem, v: int, isa: Isa, planes: np.ndarray) -> np.ndarray:
    """Weights (products, K, reduction channels) as [product][panel][channel][v][lanes of K], tails zero."""
    products, _, depth = planes.shape
    lanes = isa.lanes
    vectors, channels = divide(problem.k, lanes), divide(problem.c, lanes) * lanes
    parts = depth // problem.c
    full = np.zeros((products, vectors, lanes, parts, channels), np.float32)
    full.reshape(products, vectors * lanes, parts, channels)[:, : problem.k, :, : problem.c] = planes.reshape(
        products, problem.k, parts, problem.c
    )
    panels = divide(vectors, v)
    packed = aligned((products, panels, parts, channels, v, lanes))
    for panel in range(panels):
        first = min(panel * v, vectors - v)
        packed[:, panel] = full[:, first : first + v].transpose(0, 3, 4, 1, 2)
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
    m: tuple[int, int],
    forward: MicroRef,
    backward: MicroRef,
    products: int,
    parts: int,
) -> Step:
    """The tiled kernel's tile and arguments; `m` is the output tile, `params` has v, n, block and chunk."""
    lanes = isa.lanes
    a = tuple(size + reach - 1 for size, reach in zip(m, problem.effective_kernel, strict=True))
    pixel = FLOAT * lanes
    rows, columns, total = tile_grid(problem, m)
    channel_blocks, vectors = divide(problem.c, lanes), divide(problem.k, lanes)
    panels = divide(vectors, params.v)
    blocks, chunks = _blocks(problem, total, params.block, params.n, panels)
    most = divide(total, blocks)
    v_plane = channel_blocks * most * pixel + pixel  # off the multiples of 4 KB
    m_plane = min(vectors, params.chunk * params.v) * most * pixel + pixel
    segments = parts * channel_blocks
    segment_planes = np.arange(parts, dtype=np.int64)[:, None] * v_plane
    table = (segment_planes + np.arange(channel_blocks, dtype=np.int64) * most * pixel).ravel()
    v_step, m_step, patch_step = products * v_plane + pixel, products * m_plane + pixel, a[0] * a[1] * pixel
    gemm = GemmTile(
        lanes, params.v, rows=1, cols=params.n, unroll=lanes, xs=lanes, ys=lanes, epilogue=False
    )
    args: Args = {
        "gemm": MicroRef(gemm_strip, gemm),
        "tile_vectors": params.v,
        "tile_columns_gemm": params.n,
        "forward": forward,
        "backward": backward,
        "x": x.ref,
        "y": y.ref,
        "w": Ref("w"),
        "bias": Ref("bias"),
        "residual": residual.ref if residual else y.ref,
        "table": table,
        "segments": segments,
        "panel_bytes": segments * lanes * params.v * pixel,
        "panels": panels,
        "vectors": vectors,
        "products": products,
        "parts": parts,
        "chunk": params.chunk,
        "chunks": chunks,
        "tiles": total,
        "blocks": blocks,
        "most": most,
        "tile_rows": rows,
        "tile_columns": columns,
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
    }
    return Step(tiled, TiledTile(lanes), args)


def cost(
    problem: ConvProblem,
    params: Any,
    machine: Machine,
    planes: int,
    products: int,
    parts: int,
    operations: tuple[int, int],
) -> Cost:
    """Cycles of products, of transforms (`operations` a tile forward and back, beside loads and stores), of traffic."""
    isa = machine.isa
    total = tile_grid(problem, (params.m, params.m))[2]
    channel_blocks, vectors = divide(problem.c, isa.lanes), divide(problem.k, isa.lanes)
    reduction = channel_blocks * isa.lanes * parts
    block = min(params.block, total)
    blocks = divide(total, block)
    gemm = Tile(params.v, 1, params.n)
    multiply = blocks * products * divide(vectors, params.v) * divide(block, params.n) * cycles(isa, gemm, reduction)
    transform = total * (
        channel_blocks * (operations[0] / isa.fma_rate + 2 * planes * (1 / isa.load_rate + isa.store_cost))
        + vectors * (operations[1] / isa.fma_rate + 2 * products * (1 / isa.load_rate + isa.store_cost))
    )
    weight_bytes = products * reduction * vectors * isa.lanes * FLOAT
    buffers = planes * block * (channel_blocks + params.chunk * params.v) * isa.lanes * FLOAT
    traffic = blocks * weight_bytes / machine.rate(weight_bytes)
    traffic += total / block * 3 * buffers / machine.rate(buffers)
    traffic += (problem.in_bytes + problem.out_bytes) / machine.rate(problem.in_bytes + problem.out_bytes)
    per_second = machine.frequency * max(1, problem.threads)
    floor = total * products * vectors * reduction / isa.fma_rate
    return Cost(floor / per_second / 1.6, (multiply + transform + traffic) / per_second)
