"""GEMM whose vectors run along the pixels of a plane, weights broadcast: NCHW in and out without any transposition.

Source: the convolution of MLAS (ONNX Runtime, `snchwc`'s plain sibling `convolve.cpp`), which packs pixels as the
wide operand of its SGEMM; Goto and van de Geijn (TOMS 2008) for the parts of the reduction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cpuconv.isa import Isa
from cpuconv.micro.gemm import GemmTile, gemm_strip
from cpuconv.micro.planar import ANY, IN_PLACE, PLANES, ROWS, PlanarTile, planar
from cpuconv.micro import rows
from cpuconv.problem import ConvProblem
from cpuconv.solvers.base import FLOAT, Args, Cost, MicroRef, Operand, Ref, Space, Step, aligned, divide, view_args
from cpuconv.solvers.im2col import span
from cpuconv.solvers.machine import Machine, machine
from cpuconv.solvers.reordering import plane, row_tile

NAME = "planar"
ACCURACY = "exact"
ROUNDING = ()

_UNROLL = 8  # scalars of a segment
_MOST_STRIDE = 8  # of rows that are packed by vectors


@dataclass(frozen=True)
class Params:
    """v pixel vectors × n output channels a tile; `parts` of the reduction; whether pixels are packed."""

    v: int
    n: int
    parts: int
    packed: int
    loose: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Always."""
    return None


def reduction(problem: ConvProblem) -> int:
    """Scalars of one sum."""
    return problem.cg * problem.r * problem.s


def is_plain(problem: ConvProblem) -> bool:
    """Whether the columns are the input's planes."""
    return (problem.r, problem.s, problem.stride) == (1, 1, (1, 1)) and not any(problem.pads)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    pixels = problem.oh * problem.ow
    depth = reduction(problem)
    for v in range(1, len(isa.pixels) + 1):
        if v > divide(pixels, isa.lanes): continue
        n = min(problem.kg, isa.pixels[v - 1])
        tiles = divide(problem.kg, n)
        n = divide(problem.kg, tiles)
        kc = machine().l1 * 0.7 / (v * isa.lanes * FLOAT)
        most = max(1, depth // _UNROLL)
        for parts in sorted({1, min(most, max(1, round(depth / kc))), min(most, max(1, round(depth / kc * .5)))}):
            for packed in (0, 1) if is_plain(problem) and problem.in_layout == "NCHW" else (1,):
                yield Params(v, n, parts, packed, 0)
                m = n
                l=pixels%isa.lanes
                if 1<=l<=4:
                    while m*v+v+l+1>32 or m>16: m-=1
                    yield Params(v, m, parts, packed, l)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    isa = machine.isa
    floor = problem.flops / (2 * isa.lanes * isa.fma_rate)
    return machine.cost(floor, floor * 1.2, problem.threads)


def layouts(problem: ConvProblem, params: Params, isa: Isa) -> tuple[str | None, str | None]:
    """Any strides in, planes out."""
    return None, "NCHW"


def pack(problem: ConvProblem, params: Params, isa: Isa, weight: np.ndarray) -> np.ndarray:
    """[group][tile][C·R·S][n of K]; the last tile of a group overlaps the one before."""
    depth, tiles = reduction(problem), divide(problem.kg, params.n)
    full = weight.reshape(problem.groups, problem.kg, depth).transpose(0, 2, 1)
    packed = aligned((problem.groups, tiles, depth, params.n))
    for tile in range(tiles):
        first = min(tile * params.n, problem.kg - params.n)
        packed[:, tile] = full[:, :, first : first + params.n]
    return packed


def bind(
    problem: ConvProblem, params: Params, isa: Isa, space: Space, x: Operand, y: Operand, residual: Operand | None
) -> list[Step]:
    """One parallel call of the planar kernel."""
    lanes, vector = isa.lanes, isa.lanes * FLOAT
    depth, pixels = reduction(problem), problem.oh * problem.ow
    in_height, in_width, source = problem.h, problem.w, x.strides
    out_width = problem.ow
    in_rows = row_tile(isa, x.strides).kind == rows.ROWS
    pack = ROWS if in_rows and problem.stride[1] <= _MOST_STRIDE else ANY
    if is_plain(problem):
        in_height, in_width, (source,) = plane(problem.h, problem.w, x.strides)
        out_width = in_width
        if in_height == 1 and in_rows:
            pack = PLANES if params.packed else IN_PLACE
    panel_pixels = params.v * lanes
    loose = pixels % lanes if pixels > lanes and pixels % lanes <= params.loose else 0
    panels = divide(pixels - loose, panel_pixels)
    rest = pixels - loose - (panels - 1) * panel_pixels
    tiles = divide(problem.kg, params.n)
    unroll = min(_UNROLL, depth)
    tail = depth % unroll
    segments = divide(depth, unroll)
    parts = min(params.parts, max(1, segments - bool(tail)))
    gemm = GemmTile(
        lanes=lanes, v=params.v, rows=1, cols=params.n, unroll=unroll, xs=1, ys=0, ks=params.n, resume=parts > 1,
        residual=residual is not None, activation=problem.activation, planar=True, fetch=int(pack in (IN_PLACE, PLANES) and panels > 1), tail=tail, tails=int(tail > 0),
    )
    last = replace(gemm, v=divide(rest, lanes), valid=rest % lanes, loose=loose)

    def before(tile: GemmTile, part: int) -> MicroRef | int:
        """The kernel of a part before the last, which neither is last nor ends in a tail."""
        tile = replace(tile, suspend=True, resume=part > 0, tail=0, tails=0)
        return MicroRef(gemm_strip, tile) if parts > part + 1 else 0

    pitch = source.cb if pack == IN_PLACE else (params.v + (loose > 0 or pack > PLANES)) * vector
    columns_step = 0 if pack == IN_PLACE else depth * pitch + vector
    parked_step = tiles * (params.n * params.v + loose) * vector if parts > 1 else 0
    units = problem.n * problem.groups * panels
    args: Args = {
        "gemm": MicroRef(gemm_strip, gemm),
        "gemm_first": before(gemm, 0),
        "gemm_middle": before(gemm, 1),
        "gemm_last": MicroRef(gemm_strip, last),
        "gemm_last_first": before(last, 0),
        "gemm_last_middle": before(last, 1),
        "x": x.ref,
        "y": y.ref,
        "w": Ref("w"),
        "bias": Ref("bias"),
        "residual": (residual or y).ref,
        "table": np.arange(segments, dtype=np.int64) * unroll * params.n * FLOAT,
        "segments": segments,
        "parts": parts,
        "segment_rows": unroll,
        "segment_bytes": unroll * params.n * FLOAT,
        "tile_bytes": depth * params.n * FLOAT,
        "group_bytes": tiles * depth * params.n * FLOAT,
        "tiles": tiles,
        "panels": panels,
        "panel_pixels": panel_pixels,
        "pixels": pixels,
        "groups": problem.groups,
        "chunks": chunks(problem.threads, units, tiles),
        "batch": problem.n,
        "columns": space.reserve(columns_step * problem.threads) if columns_step else 0,
        "columns_step": columns_step,
        "pitch": pitch,
        "parked": space.reserve(parked_step * problem.threads) if parked_step else 0,
        "parked_step": parked_step,
        "vector_bytes": vector,
        "group_kernels": problem.kg,
        "group_channels": problem.cg,
        "kernel_h": problem.r,
        "kernel_w": problem.s,
        "stride_h": problem.stride[0],
        "stride_w": problem.stride[1],
        "dilation_h": problem.dilation[0],
        "dilation_w": problem.dilation[1],
        "pad_top": problem.pads[0],
        "pad_left": problem.pads[2],
        "in_height": in_height,
        "in_width": in_width,
        "out_width": out_width,
        "x_span": span(problem, x.strides),
        "x_image": source.n,
        **view_args("x", source),
        "y_image": y.strides.n,
        "y_plane": y.strides.cb,
    }
    return [Step(planar, PlanarTile(lanes, pack, problem.stride[1] if pack == ROWS else 1), args, clears_tail=True)]  # planes have none


def chunks(threads: int, units: int, tiles: int) -> int:
    """Chunks of weight tiles that let threads share evenly."""
    for count in range(1, min(tiles, threads) + 1):
        if units * count % threads == 0 or units * count >= 16 * threads:
            return count
    return min(tiles, threads)
