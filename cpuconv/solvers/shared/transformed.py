"""What Winograd and FFT share: block sizes, packed weights, cost, and the tiled call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, output_args, problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.partition import UNCUT, Grid, parts_each, shortest
from cpuconv.kernels.binding.steps import Args, MicroRef, Operands, Space, Step
from cpuconv.kernels.elementwise.ending import Ending
from cpuconv.kernels.emit.product import BY_NAME, WORD, Product, as_seen
from cpuconv.kernels.packing.packed_formats import Transformed
from cpuconv.kernels.packing.packing import Filters, Packing
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import LINE, GemmTile
from cpuconv.kernels.products.tiling import complex_cycles, complex_tiles, cycles, segment, tiles
from cpuconv.kernels.transforms.tiled import TiledTile, tiled
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import words
from cpuconv.solvers.shared.gemm_call import Fetching

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


def axis_places(size: int, tile: int, step: int) -> list[tuple[int, int]]:
    """(start, outputs) of the tiles of one axis: `step` phases, each a dense axis of every `step`-th output."""
    cuts = []
    for phase in range(min(step, size)):
        outputs = divide(size - phase, step)
        cuts += [(phase + first * step, min(tile, outputs - first)) for first in range(0, outputs, tile)]
    return cuts


def places(problem: ConvProblem, m: Size, dilation: Size = (1, 1)) -> np.ndarray:
    """Row, column, rows and columns of each tile of a plane, for output tiles of size `m`: (tiles, 4)."""
    rows, columns = axis_places(problem.oh, m[0], dilation[0]), axis_places(problem.ow, m[1], dilation[1])
    return np.array([(row, column, high, wide) for row, high in rows for column, wide in columns], np.int64)


def cuts(size: int, tile: Any, step: int) -> Any:
    """The number of tiles of an axis, for a tile size or an array of them; `rest` of the phases are an output longer
    than the others.
    """
    if step == 1:
        return divide(size, tile)
    short, rest = divmod(size, step)
    return rest * divide(short + 1, tile) + (step - rest) * divide(short, tile)


def tile_grid(problem: ConvProblem, m: Size, dilation: Size = (1, 1)) -> tuple[int, int, int]:
    """Rows and columns of tiles of a plane, and tiles of all images, for output tiles of size `m`."""
    rows, columns = cuts(problem.oh, m[0], dilation[0]), cuts(problem.ow, m[1], dilation[1])
    return rows, columns, max(1, problem.n) * rows * columns


@dataclass(frozen=True)
class Planes:
    """Real components of a transform, in the order in which they lie.

    Single planes come first, then pairs that are the real and imaginary parts of complex numbers. `product` multiplies
    them, by words of 32 bits: its name in `emit.product`.
    """

    singles: int
    pairs: int = 0
    product: str = "fma"

    @property
    def count(self) -> int:
        """The number of planes."""
        return self.singles + 2 * self.pairs

    @property
    def products(self) -> int:
        """Real products of a pixel and a weight: a complex one takes four."""
        return self.singles + 4 * self.pairs

    def words(self, channels: int) -> int:
        """Words of the channels of a group."""
        return divide(channels, WORD // BY_NAME[self.product].x.bytes)

    def seen(self, isa: Isa) -> Isa:
        """The instruction set for the model of tiles: its FMA is the product."""
        return as_seen(isa, BY_NAME[self.product])


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
    reduction, seen = planes.words(problem.cg), planes.seen(isa)
    vectors = divide(problem.kg, isa.lanes)
    total = tile_grid(problem, m, dilation)[2]
    per_tile = planes.count * divide(reduction, isa.lanes) * isa.lanes * F32.bytes
    blocks = [min(total, max(_STREAM_TILES, int(share * machine.l2 / per_tile))) for share in shares]
    if total * per_tile <= _L3_SHARE * machine.l3:
        blocks.append(total)
    if total < _STREAM_TILES * problem.threads:
        blocks.append(divide(total, problem.threads))  # one for each worker, of narrower GEMM tiles
    listed = set()
    for block in blocks:
        least = total // divide(total, block)  # of equal blocks: no GEMM tile is wider
        block = divide(total, divide(total, block))
        if planes.pairs:
            found_tiles = complex_tiles(seen, vectors, least, reduction, _TILES)
        else:
            found_tiles = tiles(seen, vectors, 1, least, reduction, _TILES)
        for tile in found_tiles:
            panel_bytes = planes.count * tile.v * isa.lanes * block * F32.bytes
            panels = divide(vectors, tile.v)
            fused = block * per_tile <= _FUSED_SHARE * machine.l2
            chunk = min(panels, max(1, int(_CHUNK_SHARE * machine.l2 / panel_bytes))) if fused else panels
            found = (tile.v, tile.cols, block, divide(panels, divide(panels, chunk)))
            if found not in listed:
                listed.add(found)
                yield found


def whole_groups(problem: ConvProblem, isa: Isa, product: Product) -> str | None:
    """Why transforms cannot run the groups, or None: groups share neither their vectors nor those of sums."""
    if problem.groups == 1:
        return None
    at_once = isa.lanes * WORD // product.x.bytes
    if problem.cg % at_once or problem.kg % isa.lanes:
        return f"groups of {problem.cg} and {problem.kg} channels share vectors of {at_once} and {isa.lanes}"
    return None


def packing(problem: ConvProblem, v: int, isa: Isa, planes: Planes, transform: MicroRef) -> Packing:
    """The transform of weights into `planes`."""
    filters = Filters(isa.lanes, v, problem.groups, problem.kg)
    return Transformed(filters, problem.cg, problem.r, problem.s, planes.singles, planes.pairs, transform)


def _grid(problem: ConvProblem, total: int, params: Any, planes: Planes, isa: Isa) -> tuple[int, Grid]:
    """Blocks of tiles, and the work to be cut; every block has at least a GEMM tile's tiles."""
    blocks = min(max(1, total // params.n), divide(total, params.block))
    if problem.threads == 1:
        return blocks, UNCUT
    vectors, count, reduction = divide(problem.kg, isa.lanes), planes.count, planes.words(problem.cg)
    weights = count * reduction * vectors * isa.lanes * F32.bytes
    grid = Grid(
        planes=problem.groups,
        tiles=total,
        panels=divide(vectors, params.v),
        unit=_gemm(planes, planes.seen(isa), params, reduction) / params.n
        + params.v * (_moves(isa, count) + count * _MISS),
        prepare=divide(reduction, isa.lanes) * _moves(isa, count),
        weights=problem.groups * weights / isa.l3_rate,
        moved=(problem.in_bytes + problem.out_bytes) / isa.l3_rate,
        least=params.n,
    )
    return blocks, grid


def _gemm(planes: Planes, seen: Isa, params: Any, reduction: int) -> float:
    """Modelled cycles of a GEMM tile in every plane."""
    products = planes.singles * cycles(seen, params.v, params.n, reduction)
    return products + planes.pairs * complex_cycles(seen, params.v, params.n, reduction) if planes.pairs else products


def _products(isa: Isa, params: Any, reduction: int, block: int, planes: Planes, complex_: bool) -> MicroRef:
    """The products of `block` tiles, which together fetch all weights of the next panel."""
    unroll, tail = segment(isa, reduction)
    product = BY_NAME[planes.product]
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
        product=product.name,
        x=product.x,
        y=product.sum,
    )
    step = (2 if complex_ else 1) * _fetching(isa, params, reduction, block).step
    return MicroRef(gemm_strip, replace(tile, fetch=divide(step, LINE) if block > _FOLLOWED else 0))


def _fetching(isa: Isa, params: Any, reduction: int, block: int) -> Fetching:
    """What products of real numbers fetch; those of complex ones twice as much."""
    return Fetching.shared(params.v * isa.lanes * F32.bytes, segment(isa, reduction)[0], divide(block, params.n))


@dataclass(frozen=True)
class Transform:
    """A transform of tiles: the micro-kernels, and what the driver must know of them."""

    m: Size  # output tile
    a: Size  # input tile
    planes: Planes
    forward: MicroRef
    backward: MicroRef
    scratch: int = 0  # vectors that the micro-kernels need for themselves
    dilation: Size = (1, 1)  # step between a tile's pixels, in and out
    last: MicroRef | None = None  # backward, of the last vector of output channels where types are not all float32


def step(problem: ConvProblem, params: Any, transform: Transform, isa: Isa, space: Space, operands: Operands) -> Step:
    """The tiled kernel's tile and arguments; `params` has v, n, block and chunk."""
    x, lanes = operands.x, isa.lanes
    m, a, planes, scratch, dilation = transform.m, transform.a, transform.planes, transform.scratch, transform.dilation
    pixel = F32.bytes * lanes
    tiles = places(problem, m, dilation)
    total = max(1, problem.n) * len(tiles)
    reduction, vectors = planes.words(problem.cg), divide(problem.kg, lanes)
    channel_blocks, panels = divide(reduction, lanes), divide(vectors, params.v)
    blocks, chunks = shortest(problem.threads, *_grid(problem, total, params, planes, isa))
    most = divide(total, blocks)
    v_plane = channel_blocks * most * pixel + pixel  # off the multiples of 4 KB
    m_plane = min(vectors, params.chunk * params.v) * most * pixel + pixel
    table = np.arange(channel_blocks, dtype=np.int64) * most * pixel
    v_step, m_step = planes.count * v_plane + pixel, planes.count * m_plane + pixel
    patch_step = max(a[0] * a[1], 2 * m[0] * m[1]) * pixel  # an input tile; an output tile with its residual
    args: Args = {
        "gemm": _products(isa, params, reduction, most, planes, False) if planes.singles else 0,
        "pair_gemm": _products(isa, params, reduction, most, planes, True) if planes.pairs else 0,
        "tile_vectors": params.v,
        "tile_columns": params.n,
        "forward": transform.forward,
        "backward": transform.backward,
        **operand_args(operands),
        "table": table,
        "segments": channel_blocks,
        "panel_bytes": reduction * params.v * pixel,
        "panels": panels,
        "vectors": vectors,
        "planes": planes.count,
        "singles": planes.singles,
        "chunk": params.chunk,
        "tails": int(segment(isa, reduction)[1] > 0),
        **_fetching(isa, params, reduction, most).args,
        "chunks": chunks,
        "places": tiles,
        "tiles": len(tiles),
        **problem_args(tiled, problem),
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
        "channel_blocks": channel_blocks,
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
    parts = parts_each(problem, problem.groups * blocks * chunks)
    tile = _driver_tile(problem, isa, BY_NAME[planes.product])
    return Step(tiled, tile, args, parts, clears_tail=transform.last is not None and problem.groups == 1)


def _driver_tile(problem: ConvProblem, isa: Isa, product: Product) -> TiledTile:
    if problem.types == ALL_F32:
        return TiledTile(isa.lanes)
    return TiledTile(
        isa.lanes,
        x_pieces=product.x.bytes // problem.types.x.bytes,
        pieces=words.pieces(problem),
        rows=len(Ending.of(problem).rows),
        filled=problem.types.x.integer,
        tailed=True,
        last_pieces=1 + words.last_vector(problem, isa)[1],
    )


def _moves(isa: Isa, count: Any) -> Any:
    """Cycles of a vector's transform to or from `count` planes without its operations."""
    return count * (2 / isa.load_rate + 2 * isa.store_cost + _MISS) + _CALL


class Forms(NamedTuple):
    """Ways to transform a problem, as arrays.

    Tiles of all images; planes and real products of a tile; operations of its transforms, forward and back.
    """

    tiles: np.ndarray
    planes: np.ndarray
    products: np.ndarray
    forward: np.ndarray
    backward: np.ndarray


class Rates(NamedTuple):
    """Cycles that forms take of a machine for the channels of a layer, whatever its sizes, as arrays.

    Of a tile's products at full speed; of all weights, read once; of a tile's transforms.
    """

    products: np.ndarray
    weights: np.ndarray
    transforms: np.ndarray

    def some(self, able: np.ndarray) -> Rates:
        """Those of the forms that `able` selects."""
        return Rates(*(each[able] for each in self))


def rates(cg: int, kg: int, machine: Machine, forms: Forms, product: str = "fma") -> Rates:
    """Those of forms, whatever their tiles, for groups of so many channels."""
    isa, planes = machine.isa, Planes(0, product=product)
    reduction, vectors = planes.words(cg), divide(kg, isa.lanes)
    panels, moves = reduction * vectors, _moves(isa, forms.planes)
    weight_bytes = forms.planes * (panels * isa.lanes * F32.bytes)
    forward = forms.forward / isa.fma_rate + moves
    backward = forms.backward / isa.fma_rate + moves + forms.planes * _MISS
    return Rates(
        products=forms.products * (panels / (planes.seen(isa).fma_rate * max(isa.efficiency))),
        weights=weight_bytes / machine.rates(weight_bytes),
        transforms=divide(reduction, isa.lanes) * forward + vectors * backward,
    )


def bound(problem: ConvProblem, machine: Machine, tiles: np.ndarray, each: Rates) -> float:
    """Seconds that no `cost` of forms is below, by their tiles and rates.

    The longer of products at full speed and weights read once; transforms; activations.
    """
    multiply = tiles * each.products
    products = np.maximum(multiply, each.weights) + _APART * np.minimum(multiply, each.weights)
    least = (products + tiles * each.transforms).min()
    activations = machine.moving(problem.in_bytes + problem.out_bytes)
    return machine.seconds(problem.groups * float(least) + activations, problem.threads)


def least_work(problem: ConvProblem, planes: Planes, m: Size, dilation: Size = (1, 1)) -> tuple[int, int]:
    """Operations of the products, and bytes of the weights, without lanes that hold no channel."""
    pairs = problem.cg * problem.k
    flops = 2 * pairs * planes.products * tile_grid(problem, m, dilation)[2]
    return flops, planes.words(problem.cg) * problem.k * planes.count * F32.bytes


class Form(NamedTuple):
    """What the estimates of all candidates of one tile size share; cycles are of all tiles of a group."""

    problem: ConvProblem
    machine: Machine
    planes: Planes
    seen: Isa
    tiles: int
    reduction: int
    channel_blocks: int
    vectors: int
    transforms: float
    activations: float  # cycles to move those of all groups
    floor: float  # cycles of the products of all groups, at least


def form(
    problem: ConvProblem,
    machine: Machine,
    m: Size,
    planes: Planes,
    operations: tuple[int, int],
    dilation: Size = (1, 1),
) -> Form:
    """That of output tiles of size `m`; `operations` are those of a tile's transforms, forward and back, without loads
    and stores.
    """
    isa, seen, count, reduction = machine.isa, planes.seen(machine.isa), planes.count, planes.words(problem.cg)
    tiles, vectors = tile_grid(problem, m, dilation)[2], divide(problem.kg, isa.lanes)
    channel_blocks, moves = divide(reduction, isa.lanes), _moves(isa, count)
    forward = operations[0] / isa.fma_rate + moves
    backward = operations[1] / isa.fma_rate + moves + count * _MISS
    return Form(
        problem, machine, planes, seen, tiles, reduction, channel_blocks, vectors,
        transforms=tiles * (channel_blocks * forward + vectors * backward),
        activations=machine.moving(problem.in_bytes + problem.out_bytes),
        floor=problem.groups * tiles * planes.products * vectors * reduction / seen.fma_rate,
    )  # fmt: skip


def cost(form: Form, params: Any) -> Cost:
    """Seconds of products, of the weights that are prefetched meanwhile, of transforms, and of other traffic."""
    problem, machine, planes, seen, total, reduction, channel_blocks, vectors = form[:8]
    isa, count = machine.isa, planes.count
    pixel = isa.lanes * F32.bytes
    block, panels = min(params.block, total), divide(vectors, params.v)
    blocks = divide(total, block)
    multiply = blocks * panels * divide(block, params.n) * _gemm(planes, seen, params, reduction)
    weight_bytes = count * reduction * panels * params.v * pixel  # the last panel is a whole one
    transforms = count * block * channel_blocks * pixel
    summed = count * block * params.chunk * params.v * pixel
    again = 0 if weight_bytes + transforms + summed <= _KEPT * machine.l2 else blocks - 1
    weights = machine.moving(weight_bytes) + again * weight_bytes / (_STREAMED * isa.l3_rate)
    missed = max(0.0, 1 - _FITS * machine.l2 / (transforms + summed))
    moved = total * count * (channel_blocks + vectors) * pixel
    traffic = missed * _CROSSINGS * moved / machine.rate(transforms + summed)
    products = max(multiply, weights) + _APART * min(multiply, weights)
    estimate = problem.groups * (products + form.transforms + traffic) + form.activations
    blocks, grid = _grid(problem, total, params, planes, isa)
    return machine.cost(form.floor, estimate * grid.uneven(problem.threads, blocks), problem.threads)
