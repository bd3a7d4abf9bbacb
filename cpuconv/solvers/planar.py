"""GEMM with vectors along the pixels of a plane and broadcast weights: planes in and out without a transposition.

Sources: the SGEMM convolution of MLAS (ONNX Runtime), which packs pixels as the wide operand; Goto and van de Geijn,
"Anatomy of High-Performance Matrix Multiplication" (TOMS 2008), for panels and for parts of the reduction.
docs/decisions/0007-layouts-and-reorders.md says where it wins, and by how much.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.partition import UNPARTITIONED, Grid, best_partition, parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, OneOf, Operands, Space, Step
from cpuconv.kernels.convolutions.planar import ANY, IN_PLACE, PLANES, ROWS, PlanarTile, planar
from cpuconv.kernels.copies import rows
from cpuconv.kernels.copies.views import input_plane, row_tile
from cpuconv.kernels.packing.packed_formats import Scalars
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.products import tiling
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared.solver import Solver
from cpuconv.symbolic.sizes import greatest, is_symbolic, now

_SHAPES = 3  # tiles that become candidates
_UNROLL = 8  # weights per loop iteration
_MAX_STRIDE = 8  # largest stride at which rows are packed by vectors
_SCALAR_SHARE = 4  # pixels after the last vector are computed without one if they fill at most 1/4 of a vector
_L1_SHARE = 0.6  # share of L1 for the part of a panel that all weight tiles read
_RUN_CYCLES = 8.0  # cycles per packed run of pixels
_VECTOR_CYCLES, _FLOAT_CYCLES = 2.0, 1.5  # cycles per copied vector, and per float32 copied alone
_IN_PLACE = 1.04  # time of tiles over that on packed panels: vectors cross cache lines, and each row is on another page
_PAGE = 4096  # bytes: planes this far apart share cache sets, so lines prefetched by hardware evict each other
_PREFETCHED_LINES = 6  # lines of a row of the next panel that tiles prefetch in that case
_PLANE_CYCLES, _PAGED_PLANE_CYCLES = (
    4.0,
    16.0,
)  # cycles per run of a plane read in place; of planes that share cache sets
_FEW = 2  # output channels for which single-channel tiles are as wide as registers allow
_OTHER_REGISTERS = 4  # registers besides the sums of these tiles
_STORE_CYCLES = 2.0  # cycles to store a vector of sums in addition to the store: rows start anywhere in a cache line


@dataclass(frozen=True)
class Params:
    """Tile and panels of `planar`.

    Attributes
    ----------
    v : int
            Pixel vectors per tile.
    n : int
            Output channels per tile.
    parts : int
            Parts of the reduction (K blocking).
    packed : int
            1: the input is packed; 0: it is read in place.
    """

    v: int
    n: int
    parts: int
    packed: int


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require nothing: every float32 convolution is supported."""
    return None


def reduction(problem: ConvProblem) -> int:
    """Products per sum."""
    return problem.cg * problem.r * problem.s


def most_channels(isa: Isa, v: int, loose: int) -> int:
    """Largest number of output channels per tile of v pixel vectors and `loose` pixels without spills; 0: none."""
    if v > len(isa.pixels):
        return 0 if loose else 1
    if not loose:
        return isa.pixels[v - 1]
    beside = v + loose + (1 if isa.broadcast_operand else 3)  # pixels, sums of the loose, a scalar and its operand
    return min((isa.registers - beside) // v, isa.pixels[v - 1], isa.lanes)


def loose_pixels(isa: Isa, v: int, n: int, pixels: int) -> int:
    """Pixels after the last whole vector of a plane that a tile of n channels computes as scalars; 0: none."""
    if isa.closed:
        return 0
    rest = pixels % isa.lanes
    return rest if pixels > isa.lanes and rest <= isa.lanes // _SCALAR_SHARE and n <= most_channels(isa, v, rest) else 0


def split(isa: Isa, v: int, n: int, pixels: int) -> tuple[int, int, int]:
    """Panels per plane, pixels of the last one in vectors, and scalar pixels."""
    loose = 0 if is_symbolic(pixels) else loose_pixels(isa, v, n, pixels)
    panels = divide(pixels - loose, v * isa.lanes)
    return panels, pixels - loose - (panels - 1) * v * isa.lanes, loose


def plane_cycles(isa: Isa, v: int, n: int, kernels: int, pixels: int, depth: int) -> float:
    """Modelled cycles of the tiles of a plane with `kernels` output channels."""
    panels, rest, loose = split(isa, v, n, pixels)
    whole = tiling.cycles(isa, v, n, depth)
    last = tiling.cycles(isa, divide(rest, isa.lanes), n, depth) + loose * depth / isa.fma_rate
    return divide(kernels, n) * ((panels - 1) * whole + last)


@functools.lru_cache(maxsize=1024)
def shapes(isa: Isa, kernels: int, pixels: int, depth: int) -> tuple[tuple[int, int], ...]:
    """Fastest (v, n) for a plane, fastest first: for each v, as many channels as registers hold, evenly divided.

    With few output channels the first is as wide as registers allow, so that it reads longer runs of each input plane.
    """
    vectors = divide(pixels, isa.lanes)
    widest = min(vectors, isa.registers - _OTHER_REGISTERS)
    wide = ((widest, 1),) if kernels <= _FEW and widest > len(isa.pixels) and not isa.closed else ()
    found = []
    for v in range(1, min(len(isa.pixels), vectors) + 1):
        options = {most_channels(isa, v, 0), most_channels(isa, v, min(pixels % isa.lanes, isa.lanes // _SCALAR_SHARE))}
        sizes = {divide(kernels, divide(kernels, most)) for most in options if most > 0}
        if isa.closed:
            sizes = {n for n in tiling.closed_columns(isa, v) if n <= kernels}
        found.append(min((plane_cycles(isa, v, n, kernels, pixels, depth), v, n) for n in sizes))
    return (*wide, *((v, n) for _, v, n in sorted(found)[:_SHAPES]))


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model; panels whole or in parts that stay in L1, input packed or read in place.

    A plane of a single panel is read in place.
    """
    depth, pixels = reduction(problem), problem.oh * problem.ow
    planes = problem.in_layout == problem.out_layout == "NCHW"
    for v, n in shapes(isa, problem.kg, pixels, depth)[: None if planes else 1]:
        fitting = round(depth * v * isa.lanes * F32.bytes / (_L1_SHARE * machine().l1))
        ways = (1, 0) if split(isa, v, n, pixels)[0] > 1 else (0,)
        for parts in sorted({1, min(max(1, fitting), _max_parts(depth))} if not isa.closed else {1}):
            for packed in ways if planes and is_plain(problem) else (1,):
                yield Params(v, n, parts, packed)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: FMAs, stores, and activations and weights read once."""
    isa = machine.isa
    pixels = problem.oh * problem.ow
    sums = problem.n * problem.k * pixels / isa.lanes
    cycles = sums * reduction(problem) / (isa.fma_rate * max(isa.efficiency))
    cycles += problem.n * problem.k * divide(pixels, isa.lanes) * _STORE_CYCLES
    return machine.seconds(cycles + _traffic(problem, machine), problem.threads)


def _traffic(problem: ConvProblem, machine: Machine) -> float:
    return machine.moving(problem.in_bytes + problem.out_bytes + problem.weight_bytes)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs of the tiles, packing, stores, and traffic of weights and activations."""
    isa = machine.isa
    depth, pixels = reduction(problem), problem.oh * problem.ow
    panels, _, _ = split(isa, params.v, params.n, pixels)
    planes = problem.n * problem.groups
    cycles = planes * plane_cycles(isa, params.v, params.n, problem.kg, pixels, depth)
    vectors = divide(pixels, isa.lanes)
    runs = panels if is_plain(problem) else panels + problem.oh
    if problem.in_layout != "NCHW" or problem.stride[1] > _MAX_STRIDE:
        packing = _FLOAT_CYCLES * pixels + _RUN_CYCLES * runs
    elif params.packed:
        packing = _VECTOR_CYCLES * problem.stride[1] * vectors + _RUN_CYCLES * runs
    else:
        packing = 0.0
        cycles *= _IN_PLACE if panels > 1 else 1.0
        piece = _PAGED_PLANE_CYCLES if _pages_apart(problem) else _PLANE_CYCLES
        cycles = max(cycles, planes * depth * panels * piece)
    cycles += planes * depth * packing + problem.n * problem.k * vectors * _STORE_CYCLES
    waiting = (params.parts - 1) * problem.n * problem.k * vectors * 2 * isa.store_cost
    cycles += waiting + _traffic(problem, machine)
    if machine.rate(problem.weight_bytes) <= isa.dram_rate:  # from caches, weights are loaded in parallel with the FMAs
        cycles += problem.weight_bytes * max(0, panels * problem.n - 1) / isa.dram_rate
    cycles *= _grid(problem, params, isa).imbalance(problem.threads, 1)
    return machine.direct_cost(problem, cycles)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: any strides as input, channel planes as output."""
    return None, "NCHW"


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: [group][tile][C·R·S][n of K]. The last tile of a group overlaps the one before."""
    return Scalars(isa.lanes, params.n, problem.groups, problem.kg, problem.cg, problem.r, problem.s)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the planar kernel."""
    y = operands.y
    lanes, vector = isa.lanes, isa.lanes * F32.bytes
    depth, pixels = reduction(problem), problem.oh * problem.ow
    source, walked = input_plane(problem, operands.x.strides)
    pack = ANY
    if row_tile(isa.lanes, source).kind == rows.ROWS and problem.stride[1] <= _MAX_STRIDE:
        pack = ROWS
        if is_plain(problem) and walked["in_height"] == 1:
            pack = PLANES if params.packed else IN_PLACE
    panels, rest, loose = split(isa, params.v, params.n, pixels)
    tiles = divide(problem.kg, params.n)
    unroll = min(_UNROLL, depth)
    tail = depth % unroll
    segments = divide(depth, unroll)
    parts = min(params.parts, _max_parts(depth))
    fetch = divide(_PREFETCHED_LINES, tiles) if now(source.cb) % _PAGE == 0 else 1
    gemm = GemmTile(
        lanes=lanes,
        v=params.v,
        rows=1,
        cols=params.n,
        unroll=unroll,
        xs=1,
        ys=0,
        ks=params.n,
        resume=parts > 1,
        residual=operands.residual is not None,
        activation=problem.activation,
        planar=True,
        fetch=fetch if pack in (IN_PLACE, PLANES) and now(panels) > 1 else 0,
        tail=tail,
    )
    if is_symbolic(rest):
        last = [replace(gemm, v=v, masked=True) for v in range(1, params.v + 1)]
        which = divide(rest, lanes) - 1
    else:
        last, which = [replace(gemm, v=divide(rest, lanes), masked=rest % lanes > 0, loose=loose)], 0

    def kernels(name: str, tiles: list[GemmTile], which: Any = 0, needed: bool = True) -> Args:
        """Micro-kernels of the last part, and of the parts before it, which have no epilogue."""

        def ref(**fields: Any) -> MicroRef | OneOf:
            refs = tuple(MicroRef(gemm_strip, replace(tile, **fields)) for tile in tiles)
            return OneOf(refs, which) if len(refs) > 1 else refs[0]

        found: Args = {name: ref() if needed else 0, f"{name}_first": 0, f"{name}_middle": 0}
        if needed and parts > 1:
            found[f"{name}_first"] = ref(suspend=True, tail=0, resume=False)
            found[f"{name}_middle"] = ref(suspend=True, tail=0) if parts > 2 else 0
        return found

    pitch = source.cb if pack == IN_PLACE else (params.v + (loose > 0) + (pack > PLANES)) * vector
    columns_step = 0 if pack == IN_PLACE else depth * pitch + vector
    suspended_step = tiles * (params.n * params.v + loose) * vector if parts > 1 else 0
    units = problem.n * problem.groups * panels
    _, chunks = best_partition(problem.threads, 1, _grid(problem, params, isa))
    args: Args = {
        **kernels("gemm", [gemm], needed=is_symbolic(panels) or panels > 1),
        **kernels("gemm_last", last, which),
        **operand_args(operands),
        "table": np.arange(segments, dtype=np.int64) * unroll * params.n * F32.bytes,
        "segments": segments,
        "parts": parts,
        "segment_rows": unroll,
        "shares": divide(params.v + 1, fetch),
        "tails": int(tail > 0),
        "valid": (rest - 1) % lanes + 1 if is_symbolic(rest) else rest % lanes,
        "segment_bytes": unroll * params.n * F32.bytes,
        "tile_bytes": depth * params.n * F32.bytes,
        "group_bytes": tiles * depth * params.n * F32.bytes,
        "tiles": tiles,
        "panels": panels,
        "panel_pixels": params.v * lanes,
        "pixels": pixels,
        "chunks": chunks,
        **worker_args("columns", space, columns_step, problem.threads),
        "pitch": pitch,
        **worker_args("suspended", space, suspended_step, problem.threads),
        "vector_bytes": vector,
        **problem_args(planar, problem),
        **walked,
        "y_image": y.strides.n,
        "y_plane": y.strides.cb,
    }
    tile = PlanarTile(lanes, pack, problem.stride[1] if pack == ROWS else 1)
    each = parts_each(problem, units * chunks)
    return [Step(planar, tile, args, each, clears_tail=True)]  # planes have no padded channels to clear


def _grid(problem: ConvProblem, params: Params, isa: Isa) -> Grid:
    """Grid of work: panels of pixels, each as a plane of one tile, by tiles of weights."""
    if problem.threads == 1:
        return UNPARTITIONED
    depth, pixels = reduction(problem), problem.oh * problem.ow
    panels, _, _ = split(isa, params.v, params.n, pixels)
    return Grid(
        planes=greatest(1, problem.n * problem.groups * panels),
        tiles=1,
        panels=divide(problem.kg, params.n),
        unit=tiling.cycles(isa, params.v, params.n, depth),
        prepare=_VECTOR_CYCLES * params.v * depth,
        weight_cycles=problem.weight_bytes / isa.l3_rate,
        activation_cycles=(problem.in_bytes + problem.out_bytes) / isa.l3_rate,
    )


def _pages_apart(problem: ConvProblem) -> bool:
    """Whether adjacent planes of the input are a multiple of the page size apart."""
    return problem.h * problem.w * F32.bytes % _PAGE == 0


def _max_parts(depth: int) -> int:
    """Largest number of parts of a reduction: each has at least one loop iteration."""
    return max(1, divide(depth, _UNROLL) - bool(depth % _UNROLL))


SOLVER = Solver(
    name="planar",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
)
