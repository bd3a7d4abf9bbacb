"""Stated errors, block sizes, packed weights and cost of Winograd, Strassen and FFT."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F16, F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.partition import UNPARTITIONED, Grid
from cpuconv.kernels.binding.steps import MicroRef
from cpuconv.kernels.emit.product import BY_NAME, WORD, Product
from cpuconv.kernels.packing.packed_formats import Transformed, Widened
from cpuconv.kernels.packing.packing import Filters, Packing
from cpuconv.kernels.products.gemm_halves import BLOCK
from cpuconv.kernels.products.matrix_strip import fits, matrix_cycles, shapes
from cpuconv.kernels.products.tiling import Tile, complex_cycles, complex_tiles, cycles, tiles
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers.shared import words
from cpuconv.symbolic.sizes import greatest, least, now

Size = tuple[int, int]  # rows and columns

LARGEST_ERROR = 5e-5  # largest stated error of a candidate: half of the bound of its accuracy class
LARGEST_HALF_ERROR = 5e-3  # the same with float16 sums
_ROUNDINGS = 0.7  # largest measured error of a sum, in units in the last place, over the root of the number of products
_HALF_ROUNDINGS = 0.5  # the same in float16, with sums of blocks in float32
_IN_TRANSFORMS = 9  # number of products whose sum has the same rounding error as the transforms
_PRICE = 4000  # share of its time that a candidate is charged per error: 4% for 1e-5
_L2_SHARES = (0.1, 0.35, 1.0)  # transforms of a block: candidates, as shares of L2
_L3_SHARE = 0.3  # transforms of all tiles, if they fit into this share of L3
_FUSED_SHARE = 0.75  # share of L2; in larger blocks, a component is multiplied for all output channels
_CHUNK_SHARE = 0.3  # share of L2 for the products of a chunk of output channels
_TILES = 2  # GEMM tiles per block size
_CROSSINGS = 5  # transfers of a transformed vector between L2 and L3, if it leaves L2
_STREAMED = 2.5  # rate of weights from L3 in streams, over that of scattered lines
_FITS = 1.15  # transforms and products over L2's size at which they begin to leave it
_KEPT = 0.6  # share of L2 in which weights stay between blocks
APART = 0.4  # share of products and prefetched weights, or of operations and memory accesses, that does not overlap
_MISS = 1.0  # cycles per vector in addition to its load or store, as it is in L2
_MISS_BACK = 2 * _MISS  # the same for the inverse transform, whose products are in L2, too
_CALL = 20  # driver cycles per transform
_SLICES_GAIN = 1.5  # factor for tiles of successive images, which are in distant lines that are not prefetched
_STREAM_TILES = 12  # tiles per block below which weights are read faster than they are used


def error_of_sums(problem: ConvProblem) -> float:
    """Largest error of direct sums of unit-normal data, relative to the largest output.

    It grows as the square root of the number of terms (with float16 sums, of a block); transforms multiply it.
    """
    if problem.types.sum == F16:
        return _HALF_ROUNDINGS * 2**-11 * math.sqrt(min(problem.cg, BLOCK) + _IN_TRANSFORMS)
    return _ROUNDINGS * 2**-24 * math.sqrt(problem.cg + _IN_TRANSFORMS)


def largest_error(problem: ConvProblem) -> float:
    """Largest error that a candidate may state."""
    return LARGEST_HALF_ERROR if problem.types.sum == F16 else LARGEST_ERROR


def charge(error: float, largest: float = LARGEST_ERROR) -> float:
    """Factor on the estimated time of a candidate with this error, where `largest` is allowed. Of two similar times it
    selects the more accurate candidate."""
    return 1 + _PRICE * (LARGEST_ERROR / largest) * error


def axis_places(size: int, tile: int, step: int) -> list[tuple[int, int]]:
    """(start, outputs) of the tiles of one axis: `step` phases, each a dense axis of every `step`-th output."""
    cuts = []
    for phase in range(min(step, size)):
        outputs = divide(size - phase, step)
        cuts += [(phase + first * step, min(tile, outputs - first)) for first in range(0, outputs, tile)]
    return cuts


def cuts(size: int, tile: Any, step: int) -> Any:
    """Number of tiles of an axis, for a tile size or an array of them; `rest` of the phases have one output more than
    the others.
    """
    if step == 1:
        return divide(size, tile)
    short, rest = size // step, size % step
    return rest * divide(short + 1, tile) + (step - rest) * divide(short, tile)


def tile_grid(problem: ConvProblem, m: Size, dilation: Size = (1, 1)) -> tuple[int, int, int]:
    """Rows and columns of tiles of a plane, and tiles of all images, for output tiles of size `m`."""
    rows, columns = cuts(problem.oh, m[0], dilation[0]), cuts(problem.ow, m[1], dilation[1])
    return rows, columns, greatest(1, problem.n) * rows * columns


@dataclass(frozen=True)
class Planes:
    """Real components of a transform, in storage order.

    Single components come first, then pairs of real and imaginary parts. `product` is the name of the dot-product kind
    (`emit.product`) that multiplies their 32-bit groups.
    """

    singles: int
    pairs: int = 0
    product: str = "fma"

    @property
    def count(self) -> int:
        """Number of components."""
        return self.singles + 2 * self.pairs

    @property
    def products(self) -> int:
        """Real products per pixel and weight: a complex product takes four."""
        return self.singles + 4 * self.pairs

    @property
    def parts(self) -> int:
        """bfloat16 parts per component, which AMX multiplies; 1: not split."""
        product = BY_NAME[self.product]
        return product.parts if product.matrix else 1

    def words(self, channels: int) -> int:
        """32-bit groups of a group's channels, in all parts."""
        return self.parts * divide(channels, WORD // BY_NAME[self.product].x.bytes)

    def transforms(self, channels: int, lanes: int) -> int:
        """Forward transforms per tile."""
        return divide(channels if self.parts > 1 else self.words(channels), lanes)

    def inverses(self, vectors: int) -> int:
        """Inverse transforms per tile, for vectors of 32-bit lanes; in float16 half as many."""
        return divide(vectors, 2) if BY_NAME[self.product].half_sums else vectors

    def seen(self, isa: Isa) -> Isa:
        """Instruction set for the tile model, in which the dot product replaces the FMA."""
        return isa if self.parts > 1 else words.seen(isa, BY_NAME[self.product])

    def rate(self, isa: Isa) -> float:
        """Weight vectors multiplied by a 32-bit group per cycle, at most."""
        return isa.lanes / BY_NAME[self.product].multiplications if self.parts > 1 else self.seen(isa).fma_rate


def sizes(
    problem: ConvProblem,
    isa: Isa,
    machine: Machine,
    m: Size,
    planes: Planes,
    shares: Sequence[float] = _L2_SHARES,
    dilation: Size = (1, 1),
    fused_share: float = _FUSED_SHARE,
) -> Iterator[tuple[int, int, int, int]]:
    """Candidate (v, n, block, chunk) for output tiles of size `m`; blocks take `shares` of L2. Blocks of up to
    `fused_share` of L2 have chunks whose products stay in it."""
    reduction, seen = planes.words(problem.cg), planes.seen(isa)
    vectors = divide(problem.kg, isa.lanes)
    total = tile_grid(problem, m, dilation)[2]
    per_tile = planes.count * divide(reduction, isa.lanes) * isa.lanes * F32.bytes
    blocks = [min(total, max(_STREAM_TILES, int(share * machine.l2 / per_tile))) for share in shares]
    if total * per_tile <= _L3_SHARE * machine.l3:
        blocks.append(total)
    if total < _STREAM_TILES * problem.threads:
        blocks.append(divide(total, problem.threads))  # one per thread, with narrower GEMM tiles
    listed, line = set(), planes.count * isa.lanes * F32.bytes
    for count in dict.fromkeys(divide(total, block) for block in blocks):  # blocks of equal size
        least, block = total // count, divide(total, count)  # no GEMM tile is wider than the smallest block
        fused = block * per_tile <= fused_share * machine.l2
        if planes.parts > 1:
            found_tiles = tuple(Tile(v, 1, cols) for v in (2, 1) for _, cols in shapes(1, least) if fits(v, 1, cols))
        elif planes.pairs:
            found_tiles = complex_tiles(seen, vectors, least, reduction, _TILES)
        else:
            found_tiles = tiles(seen, vectors, 1, least, reduction, _TILES)
        for tile in found_tiles:
            panels = divide(vectors, tile.v)
            fitting = int(_CHUNK_SHARE * machine.l2 / (tile.v * block * line))
            chunk = min(panels, max(1, fitting)) if fused else panels
            found = (tile.v, tile.cols, block, divide(panels, divide(panels, chunk)))
            if found not in listed:
                listed.add(found)
                yield found


def whole_groups(problem: ConvProblem, isa: Isa, product: Product) -> str | None:
    """Reason why transforms cannot run the groups, or None: groups must not share vectors of input or sums."""
    if problem.groups == 1:
        return None
    at_once = isa.lanes * WORD // product.x.bytes
    if problem.cg % at_once or problem.kg % isa.lanes:
        return f"groups of {problem.cg} and {problem.kg} channels share vectors of {at_once} and {isa.lanes}"
    return None


def why_not_floats(types: Types) -> str | None:
    """Reason why operands of these types are not computed in float32, or None; bfloat16 and float16 are widened."""
    if types.sum != F32 or any(each.integer for each in (types.x, types.w, types.y)):
        return f"its operands are floats, and sums {F32}, not {types}"
    return None


def widened(problem: ConvProblem, form: Packing) -> Packing:
    """Packed form for weights of the problem's element type."""
    return form if problem.types.w == F32 else Widened(form, problem.types.w)


def packing(problem: ConvProblem, v: int, isa: Isa, planes: Planes, transform: MicroRef) -> Transformed:
    """Packed form of weights transformed into `planes`."""
    filters = Filters(isa.lanes, v, problem.groups, problem.kg)
    return Transformed(filters, problem.cg, problem.r, problem.s, planes.singles, planes.pairs, transform)


def _moves(isa: Isa, count: Any, missed: float = _MISS) -> Any:
    """Cycles of loads and stores per vector transformed from or to `count` components."""
    return count * (2 / isa.load_rate + 2 * isa.store_cost + missed)


def _transforming(isa: Isa, count: Any, operations: Any, missed: float = _MISS) -> Any:
    """Cycles per transformed vector; operations, in FMA slots, mostly overlap with loads and stores."""
    compute, moves = operations / isa.fma_rate, _moves(isa, count, missed)
    return np.maximum(compute, moves) + APART * np.minimum(compute, moves) + _CALL


def grid(problem: ConvProblem, total: int, params: Any, planes: Planes, isa: Isa) -> tuple[int, Grid]:
    """Blocks of tiles, and the grid of work; every block has at least the tiles of a GEMM tile."""
    blocks = least(greatest(1, total // params.n), divide(total, params.block))
    if problem.threads == 1:
        return blocks, UNPARTITIONED
    vectors, count, reduction = divide(problem.kg, isa.lanes), planes.count, planes.words(problem.cg)
    weights = count * reduction * vectors * isa.lanes * F32.bytes
    made = Grid(
        planes=problem.groups,
        tiles=total,
        panels=divide(vectors, params.v),
        unit=_gemm(planes, planes.seen(isa), params, reduction) / params.n
        + planes.inverses(params.v) * (_moves(isa, count, _MISS_BACK) + _CALL),
        prepare=planes.transforms(problem.cg, isa.lanes) * (_moves(isa, count) + _CALL),
        weight_cycles=problem.groups * weights / isa.l3_rate,
        activation_cycles=(problem.in_bytes + problem.out_bytes) / isa.l3_rate,
        min_tiles=params.n,
    )
    return blocks, made


def _gemm(planes: Planes, seen: Isa, params: Any, reduction: int) -> float:
    """Modelled cycles of a GEMM tile over all components."""
    columns = now(params.n)
    if planes.parts > 1:
        segments = reduction / seen.lanes * BY_NAME[planes.product].multiplications
        return planes.singles * matrix_cycles(params.v, 1, columns, segments)
    products = planes.singles * cycles(seen, params.v, columns, reduction)
    return products + planes.pairs * complex_cycles(seen, params.v, columns, reduction) if planes.pairs else products


def shares_slices(isa: Isa, planes: Planes, params: Any, words_: int, own: int, vectors: int, images: int) -> bool:
    """Whether to transform what overlapping images share once: when that saves more than products of the tiles between
    cost.

    `words_`: 32-bit groups of the channels of an image; `own`: channel vectors not shared with the next image.
    """
    segments = divide(words_, isa.lanes)
    saved = images * (segments - own) * (_moves(isa, planes.count) + _CALL)
    multiply = divide(vectors, params.v) * _gemm(planes, planes.seen(isa), params, words_) / now(params.n)
    more = multiply + planes.inverses(vectors) * (_moves(isa, planes.count, _MISS_BACK) + _CALL)
    return saved > _SLICES_GAIN * (segments // own - 1) * more


class Forms(NamedTuple):
    """Transforms of a problem, as arrays.

    Tiles of all images; components and real products per tile; operations of its transforms, forward and back.
    """

    tiles: np.ndarray
    planes: np.ndarray
    products: np.ndarray
    forward: np.ndarray
    backward: np.ndarray


class Rates(NamedTuple):
    """Cycles of transforms on a machine for the channels of a layer, independent of its plane, as arrays.

    Cycles of a tile's products at peak rate; of reading all weights once; of a tile's transforms.
    """

    products: np.ndarray
    weights: np.ndarray
    transforms: np.ndarray

    def some(self, able: np.ndarray) -> Rates:
        """Rates selected by `able`."""
        return Rates(*(each[able] for each in self))


def rates(cg: int, kg: int, machine: Machine, forms: Forms, product: str = "fma") -> Rates:
    """Rates of `forms` for groups of `cg` input and `kg` output channels."""
    isa, planes = machine.isa, Planes(0, product=product)
    reduction, vectors = planes.words(cg), divide(kg, isa.lanes)
    panels = reduction * vectors
    weight_bytes = forms.planes * (panels * isa.lanes * F32.bytes)
    forward = _transforming(isa, forms.planes, forms.forward)
    backward = _transforming(isa, forms.planes, forms.backward, _MISS_BACK)
    return Rates(
        products=forms.products * (panels / (planes.rate(isa) * max(isa.efficiency))),
        weights=weight_bytes / machine.rates(weight_bytes),
        transforms=planes.transforms(cg, isa.lanes) * forward + planes.inverses(vectors) * backward,
    )


def bound(problem: ConvProblem, machine: Machine, tiles: np.ndarray, each: Rates) -> float:
    """Lower bound of `cost`, in seconds, by numbers of tiles and rates.

    The longer of products at peak rate and weights read once; plus transforms and activations.
    """
    multiply = tiles * each.products
    products = np.maximum(multiply, each.weights) + APART * np.minimum(multiply, each.weights)
    least = (products + tiles * each.transforms).min()
    activations = machine.moving(problem.in_bytes + problem.out_bytes)
    return machine.seconds(problem.groups * float(least) + activations, problem.threads)


def least_work(problem: ConvProblem, planes: Planes, m: Size, dilation: Size = (1, 1)) -> tuple[int, int]:
    """Operations of the products and bytes of the weights, without padding channels."""
    pairs = problem.cg * problem.k
    flops = 2 * pairs * planes.products * tile_grid(problem, m, dilation)[2]
    return flops, planes.words(problem.cg) * problem.k * planes.count * F32.bytes


class Form(NamedTuple):
    """Cost terms that all candidates of a tile size share; cycles are for all tiles of a group."""

    problem: ConvProblem
    machine: Machine
    planes: Planes
    seen: Isa
    tiles: int
    reduction: int
    vectors: int
    bytes_in: int  # per tile, for a vector of all input channels in all components; and per vector of output channels
    bytes_out: int
    transforms: float
    activations: float  # cycles to move the activations of all groups
    floor: float  # lower bound of the cycles of all products
    charge: float  # factor on the time


def form(
    problem: ConvProblem,
    machine: Machine,
    m: Size,
    planes: Planes,
    operations: tuple[float, float],
    dilation: Size = (1, 1),
    charge: float = 1.0,
) -> Form:
    """Cost terms for output tiles of size `m`; `operations`: per tile, forward and back, without loads and stores."""
    isa, seen, count, reduction = machine.isa, planes.seen(machine.isa), planes.count, planes.words(problem.cg)
    tiles, vectors = tile_grid(problem, m, dilation)[2], divide(problem.kg, isa.lanes)
    each = count * isa.lanes * F32.bytes
    forward = float(_transforming(isa, count, operations[0]))
    backward = float(_transforming(isa, count, operations[1], _MISS_BACK))
    return Form(
        problem, machine, planes, seen, tiles, reduction, vectors, divide(reduction, isa.lanes) * each, each,
        transforms=tiles * (planes.transforms(problem.cg, isa.lanes) * forward + planes.inverses(vectors) * backward),
        activations=machine.moving(problem.in_bytes + problem.out_bytes),
        floor=problem.groups * tiles * planes.products * vectors * reduction / planes.rate(isa),
        charge=charge,
    )  # fmt: skip


def cost(form: Form, params: Any) -> Cost:
    """Modelled time of products, weights prefetched meanwhile, transforms, and other traffic."""
    problem, machine, planes, seen, total, reduction, vectors, bytes_in, bytes_out = form[:9]
    panels, blocks = divide(vectors, params.v), divide(total, params.block)
    block = divide(total, blocks)  # all blocks have about this size
    multiply = blocks * panels * divide(block, params.n) * _gemm(planes, seen, params, reduction)
    weight_bytes = reduction * panels * params.v * bytes_out  # including the padding of the last panel
    products_held = planes.inverses(params.chunk * params.v)
    held = block * (bytes_in + products_held * bytes_out)  # transforms and products of a block
    again = 0 if weight_bytes + held <= _KEPT * machine.l2 else blocks - 1
    weights = machine.moving(weight_bytes) + again * weight_bytes / (_STREAMED * machine.isa.l3_rate)
    missed = max(0.0, 1 - _FITS * machine.l2 / held)
    moved = total * (bytes_in + planes.inverses(vectors) * bytes_out)
    traffic = missed * _CROSSINGS * moved / machine.rate(held)
    products = max(multiply, weights) + APART * min(multiply, weights)
    cycles = problem.groups * (products + form.transforms + traffic) + form.activations
    if problem.threads > 1:
        blocks, cut = grid(problem, total, params, planes, machine.isa)
        cycles *= cut.imbalance(problem.threads, blocks)
    return machine.cost(form.floor, cycles, problem.threads, form.charge)
