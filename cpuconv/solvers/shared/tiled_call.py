"""Tile and arguments of the tile driver, for Winograd, Strassen and FFT."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F16, F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, output_args, problem_args, worker_args
from cpuconv.kernels.binding.columns import Columns, columns_for
from cpuconv.kernels.binding.partition import best_partition, parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, Operand, Operands, Space, Step
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.products import gemm_halves
from cpuconv.kernels.products.closed.closed_set import closed_ref
from cpuconv.kernels.products.gemm_tile import LINE, GemmTile
from cpuconv.kernels.products.matrix_strip import configuration
from cpuconv.kernels.products.tiling import closed_columns, segment
from cpuconv.kernels.transforms.tiled import TiledTile, tiled
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import words
from cpuconv.solvers.shared.base import check_tile
from cpuconv.solvers.shared.gemm_call import Fetching, micro
from cpuconv.solvers.shared.transformed import Planes, Size, axis_places, grid, shares_slices, tile_grid
from cpuconv.symbolic.sizes import affine, applied, greatest, is_symbolic, now

_FOLLOWED = 4  # tiles per block up to which weights are read as one stream, which hardware prefetches better


def places(height: int, width: int, m: Size, dilation: Size = (1, 1)) -> np.ndarray:
    """Row, column, rows and columns of each tile of an output plane, for tiles of size `m`: (tiles, 4)."""
    rows, columns = np.array(axis_places(height, m[0], dilation[0])), np.array(axis_places(width, m[1], dilation[1]))
    made = np.empty((len(rows), len(columns), 4), np.int64)
    made[:, :, ::2], made[:, :, 1::2] = rows[:, np.newaxis], columns
    return made.reshape(-1, 4)


@dataclass(frozen=True)
class Transform:
    """Transform of tiles: its micro-kernels and the driver's parameters."""

    m: Size  # output tile
    a: Size  # input tile
    planes: Planes
    forward: MicroRef
    backward: MicroRef
    scratch: int = 0  # vectors of scratch memory of the micro-kernels
    dilation: Size = (1, 1)  # distance of a tile's pixels in input and output
    last: MicroRef | None = None  # inverse transform of the last vector of output channels, unless float32


def step(problem: ConvProblem, params: Any, transform: Transform, isa: Isa, space: Space, operands: Operands) -> Step:
    """Tile and arguments of the tile driver; `params` has v, n, block and chunk."""
    x, lanes = operands.x, isa.lanes
    m, a, planes, scratch, dilation = transform.m, transform.a, transform.planes, transform.scratch, transform.dilation
    pixel = F32.bytes * lanes
    high, wide, total = tile_grid(problem, m, dilation)
    columns = _columns(params, total, planes, isa)
    chosen = columns.taken
    check_tile(1, chosen, 1, total)
    reduction, vectors = planes.words(problem.cg), divide(problem.kg, lanes)
    parts = planes.parts
    segments, panels = divide(reduction, lanes) // parts, divide(vectors, params.v)
    tile, products_held = _driver_tile(problem, isa, planes), planes.inverses(min(vectors, params.chunk * params.v))
    channel_blocks, inner, images = _shift(problem, x, segments, tile.x_vectors), high * wide, greatest(1, problem.n)
    if parts > 1 or not shares_slices(isa, planes, params, reduction, channel_blocks, vectors, now(images)):
        channel_blocks = segments
    taps, block = segments // channel_blocks, params.block
    if taps > 1:
        tile, inner = replace(tile, overlapping=True), images + taps - 1
        total = high * wide * inner
        block = block * (segments + products_held) // (channel_blocks + products_held)  # keeps the memory as it was
    sizes = replace(params, n=chosen, block=block)
    blocks, chunks = best_partition(problem.threads, *grid(problem, total, sizes, planes, isa))
    most = divide(total, blocks)
    held = most + taps - 1
    v_plane = channel_blocks * held * pixel + pixel  # not a multiple of 4 KB
    m_plane = products_held * most * pixel + pixel
    table = affine(functools.partial(_offsets, channel_blocks, taps, pixel), held)
    v_step, m_step = planes.count * parts * v_plane + pixel, planes.count * m_plane + pixel
    patch_step = max(a[0] * a[1], 2 * m[0] * m[1]) * pixel  # an input tile; an output tile with its residual

    def products(complex_: bool) -> Any:
        return columns.ref(lambda n: _products(isa, replace(params, n=n), reduction, most, planes, complex_))

    args: Args = {
        "gemm": products(False) if planes.singles else 0,
        "pair_gemm": products(True) if planes.pairs else 0,
        "tile_vectors": planes.inverses(params.v),
        "tile_columns": chosen,
        "forward": transform.forward,
        "backward": transform.backward,
        **operand_args(operands),
        "table": table,
        "segments": segments,
        "panel_bytes": reduction * params.v * pixel,
        "panels": panels,
        "vectors": planes.inverses(vectors),
        "planes": planes.count,
        "singles": planes.singles,
        "chunk": params.chunk,
        "tails": int(segment(isa, reduction)[1] > 0),
        "configuration": configuration(params.v, 1, chosen) if parts > 1 else 0,
        **_fetching(isa, params, reduction, most).args,
        "chunks": chunks,
        "places": applied(functools.partial(places, m=m, dilation=dilation), problem.oh, problem.ow),
        "inner": inner,
        "images": images,
        "halo": taps - 1,
        **problem_args(tiled, problem),
        "total": total,
        "blocks": blocks,
        "most": most,
        "held": held,
        "tile_height": m[0],
        "tile_width": m[1],
        "in_tile_height": a[0],
        "in_tile_width": a[1],
        "row_step": dilation[0],
        "column_step": dilation[1],
        "reach_rows": (a[0] - 1) * dilation[0] + 1,
        "reach_columns": (a[1] - 1) * dilation[1] + 1,
        "channel_blocks": channel_blocks if parts == 1 else planes.transforms(problem.cg, lanes),
        "x_image": x.strides.n,
        "x_cb": x.strides.cb,
        "x_h": x.strides.h,
        **output_args(operands.y),
        **worker_args("v", space, v_step, problem.threads),
        "v_plane": v_plane,
        **worker_args("m", space, m_step, problem.threads),
        "m_plane": m_plane,
        **worker_args("patch", space, patch_step, problem.threads),
        **worker_args("scratch", space, scratch * pixel, problem.threads),
        "fill": words.FILL if problem.types.x.integer else 0,
        "backward_last": transform.last or 0,
    }
    each = parts_each(problem, problem.groups * blocks * chunks)
    return Step(tiled, tile, args, each, clears_tail=transform.last is not None and problem.groups == 1)


def _shift(problem: ConvProblem, x: Operand, vectors: int, each: int) -> int:
    """Vectors of channels by which adjacent images differ: all, or fewer if images overlap in whole steps.

    `each`: vectors per channel block.
    """
    n, cb = x.strides.n, x.strides.cb
    if is_symbolic(n) or is_symbolic(cb) or problem.groups > 1 or cb <= 0 or n <= 0 or n % cb:
        return vectors
    shift = n // cb * each
    return shift if shift < vectors and vectors % shift == 0 else vectors


def _offsets(channel_blocks: int, taps: int, pixel: int, tiles: int) -> np.ndarray:
    """Offsets of the channel vectors of a tile from the first one; those of the next tap are one tile further."""
    blocks = np.arange(channel_blocks, dtype=np.int64) * tiles * pixel
    return (np.arange(taps, dtype=np.int64)[:, np.newaxis] * pixel + blocks).reshape(-1)


def _columns(params: Any, total: int, planes: Planes, isa: Isa) -> Columns:
    """Columns of a GEMM tile."""

    def strips(n: int) -> list[MicroRef]:
        made = [_products(isa, replace(params, n=n), 1, n, planes, each) for each in _kinds(planes)]
        return [closed_ref(each.tile) or each for each in made] if isa.closed else made

    only = planes.pairs or planes.parts > 1
    others = closed_columns(planes.seen(isa), params.v) if isa.closed and not only else ()
    return columns_for(params.n, others, total, strips)


def _kinds(planes: Planes) -> list[bool]:
    """Whether the products are complex, for each kind of plane."""
    return [False] * (planes.singles > 0) + [True] * (planes.pairs > 0)


def _driver_tile(problem: ConvProblem, isa: Isa, planes: Planes) -> TiledTile:
    if problem.types == ALL_F32:
        return TiledTile(isa.lanes, parts=planes.parts)
    product = BY_NAME[planes.product]
    if product.half_sums:  # a vector has the bias of two vectors of 32-bit lanes
        return TiledTile(isa.lanes, rows=2)
    return TiledTile(
        isa.lanes,
        x_vectors=product.x.bytes // problem.types.x.bytes,
        y_vectors=words.vectors_per_pixel(problem),
        rows=len(Epilogue.of(problem).rows),
        filled=problem.types.x.integer,
        tailed=True,
        last_vectors=1 + words.last_vector(problem, isa)[1],
    )


def _products(isa: Isa, params: Any, reduction: int, block: int, planes: Planes, complex_: bool) -> MicroRef:
    """Products of `block` tiles, which together prefetch all weights of the next panel."""
    unroll, tail = segment(isa, reduction)
    product = BY_NAME[planes.product]
    step = (2 if complex_ else unroll * planes.parts if product.matrix else 1) * _fetching(
        isa, params, reduction, block
    ).step
    tile = GemmTile(
        isa.lanes,
        params.v,
        rows=2 if complex_ else 1,
        cols=params.n,
        unroll=unroll,
        xs=isa.lanes,
        ys=isa.lanes,
        stream=isa.load_rate > 1,  # prefetches take load slots; `fetch` requests a line once
        has_epilogue=False,
        complex=complex_,
        tail=tail,
        product=product.name,
        x=product.x,
        y=F16 if product.half_sums else product.sum,
        one_block=gemm_halves.is_one_block(isa, product, reduction),
        fetch=divide(step, LINE) if now(block) > _FOLLOWED else 0,
    )
    return micro(tile, product.matrix)


def _fetching(isa: Isa, params: Any, reduction: int, block: int) -> Fetching:
    """Prefetches of real products; complex products double them."""
    return Fetching.shared(params.v * isa.lanes * F32.bytes, segment(isa, reduction)[0], divide(now(block), params.n))
