"""Winograd convolution F(m×n, r×s): r·s·m·n/((m+r-1)·(n+s-1)) times fewer multiplications.

Sources: Winograd, "Arithmetic Complexity of Computations" (1980); Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (CVPR 2016); points after Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd
Convolution" (TOMS 2020). Each axis has a tile size of its own; an axis whose kernel is 1 is not transformed. A dilated
convolution is a dense one in each phase of the plane.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.steps import MicroRef, Operands, Space, Step
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.transforms.linear import Matrix, operations
from cpuconv.kernels.transforms.winograd import (
    WinogradTransform,
    WinogradWeights,
    winograd_in,
    winograd_out,
    winograd_weights,
)
from cpuconv.problem.activation import Activation
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked, tiled_call, transformed, words
from cpuconv.solvers.shared.solver import Solver
from cpuconv.solvers.shared.tiled_call import Transform
from cpuconv.solvers.shared.transformed import Form, Forms, Planes, Rates, Size

_HALVES: dict[int, tuple[float, ...]] = {  # the positive points, by input tile size of an axis
    1: (),
    4: (1,),
    5: (3 / 8, 5 / 4),
    6: (5 / 8, 3 / 2),
    7: (5 / 16, 7 / 8, 7 / 4),
    8: (1 / 2, 1, 2),
    10: (7 / 16, 13 / 16, 5 / 4, 19 / 8),
    12: (3 / 8, 11 / 16, 1, 23 / 16, 11 / 4),
}
POINTS = {a: (0.0,) * (a > 1 and a % 2 == 0) + tuple(x for p in half for x in (p, -p)) for a, half in _HALVES.items()}
LARGEST = {False: 12, True: 8}  # input tile of an axis, if both axes are transformed: the error grows with either
CLOSED = {False: (4, 6, 8, 10, 12), True: (4, 6, 7, 8)}  # those of networks with open sizes
_MOST_KERNEL = 7  # rows or columns of a kernel
_MOST_TILES = 4  # tile sizes worth trying
_WEIGHTS_READ = 8  # reading a weight from L3 takes as long as using it for this many tiles


@dataclass(frozen=True)
class Params:
    """A transform and its GEMM.

    Attributes
    ----------
    rows, cols : int
        Outputs of a tile.
    v : int
        Weight vectors of a GEMM tile.
    n : int
        Tiles of a GEMM tile.
    block : int
        Tiles whose transforms stay in L2.
    chunk : int
        Weight panels whose products are formed at a time.
    """

    rows: int
    cols: int
    v: int
    n: int
    block: int
    chunk: int


@functools.lru_cache(maxsize=64)
def matrices(m: int, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Aᵀ: m×a, G: a×r, Bᵀ: a×a) of F(m, r), a = m+r-1, by Toom-Cook interpolation at `POINTS`."""
    a = m + r - 1
    points = POINTS[a]
    at, g, bt = np.zeros((m, a)), np.zeros((a, r)), np.zeros((a, a))
    for j, p in enumerate(points):
        others = [q for q in points if q != p]
        at[:, j] = [p**i for i in range(m)]
        g[j] = [p**k / math.prod(p - q for q in others) for k in range(r)]
        bt[j, : a - 1] = np.poly(others)[::-1]
    at[m - 1, -1] = g[-1, r - 1] = 1
    bt[-1] = np.atleast_1d(np.poly(points))[::-1]
    return at, g, bt


@functools.lru_cache(maxsize=64)
def amplification(m: int, r: int) -> float:
    """How many times larger the rounding errors of an axis are in the worst of F(m, r)'s outputs than in a direct sum.

    Of independent inputs and weights of unit variance, product j has the variance |G_j|²·|Bᵀ_j|² (norms of rows), and
    its error, in proportion to it, reaches output i times Aᵀ_ij; output i has the variance r.
    """
    at, g, bt = matrices(m, r)
    products = (g**2).sum(1) * (bt**2).sum(1)
    return math.sqrt(((at**2) @ products).max() / r)


def error(problem: ConvProblem, m: Size) -> float:
    """The largest error of unit-normal data that a tile size states, relative to the largest output.

    Errors of the axes multiply.
    """
    return transformed.error_of_sums(problem) * amplification(m[0], problem.r) * amplification(m[1], problem.s)


@functools.lru_cache(maxsize=64)
def _operations(m: int, r: int) -> tuple[int, int]:
    """Vector operations of Bᵀ and of Aᵀ on one column."""
    at, _, bt = _constants(m, r)
    return operations(bt), operations(at)


def outer(problem: ConvProblem, m: Size) -> Size:
    """Rows and columns of the input tile of an output tile."""
    return m[0] + problem.r - 1, m[1] + problem.s - 1


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Kernels up to 7 in either axis, stride 1, of not too many channels; groups must not share channel blocks.

    What is bfloat16 outside is float32 inside.
    """
    if (why := transformed.why_not_floats(problem.types)) is not None:
        return why
    if max(problem.r, problem.s) > _MOST_KERNEL:
        return f"the kernel is {problem.r}x{problem.s}, more than {_MOST_KERNEL} in an axis"
    if problem.r == problem.s == 1:
        return "the kernel is 1x1"
    if problem.stride != (1, 1):
        return f"the stride is {problem.stride}"
    if transformed.error_of_sums(problem) * _least_amplification(problem.r, problem.s) > transformed.LARGEST_ERROR:
        return f"the sums are of {problem.cg} channels, too many for its error"
    return transformed.whole_groups(problem, isa, BY_NAME["fma"])


def _axis(kernel: int, both: bool, closed: bool) -> list[tuple[int, int]]:
    """Output tile sizes of an axis, each with the next smaller: where that covers all outputs, the larger is not worth
    it. `closed`: those of `CLOSED`.
    """
    if kernel == 1:
        return [(1, 0)]
    inputs = CLOSED[both] if closed else sorted(POINTS)
    found = [a - kernel + 1 for a in inputs if kernel < a <= LARGEST[both]]
    return list(zip(found, [0, *found], strict=False))


@functools.lru_cache(maxsize=64)
def figures_of(r: int, s: int, closed: bool = False) -> tuple[list[Size], np.ndarray, np.ndarray]:
    """Tile sizes of a kernel with what the choice needs of them, as arrays.

    Of each: its rows, the rows of the next smaller, columns, those of the next smaller, planes, and operations forward
    and backward; apart from these, how it amplifies errors.
    """
    both = min(r, s) > 1
    pairs = [(down, across) for down in _axis(r, both, closed) for across in _axis(s, both, closed)]
    sizes = [(down[0], across[0]) for down, across in pairs]
    planes = [(m[0] + r - 1) * (m[1] + s - 1) for m in sizes]
    work = [_tile_operations((r, s), m) for m in sizes]
    rows = [(*down, *across, count, *each) for (down, across), count, each in zip(pairs, planes, work, strict=True)]
    amplified = [amplification(m[0], r) * amplification(m[1], s) for m in sizes]
    return sizes, np.array(rows).T, np.array(amplified)


@functools.lru_cache(maxsize=64)
def _least_amplification(r: int, s: int) -> float:
    return float(figures_of(r, s)[2].min())


@functools.lru_cache(maxsize=8)  # the bound and the candidates of a problem ask
def able_forms(problem: ConvProblem, closed: bool = False) -> tuple[np.ndarray, transformed.Forms]:
    """Which of the kernel's tile sizes are worth it for the plane, and accurate enough, and their figures."""
    down, across = problem.dilation
    _, figures, amplified = figures_of(problem.r, problem.s, closed)
    worth_it = (figures[1] < divide(problem.oh, down)) & (figures[3] < divide(problem.ow, across))
    able = np.flatnonzero(worth_it & (transformed.error_of_sums(problem) * amplified <= transformed.LARGEST_ERROR))
    rows, _, cols, _, count, forward, backward = figures[:, able]
    high, wide = transformed.cuts(problem.oh, rows, down), transformed.cuts(problem.ow, cols, across)
    return able, transformed.Forms(max(1, problem.n) * high * wide, count, count, forward, backward)


def tile_sizes(problem: ConvProblem) -> list[Size]:
    """The few tile sizes with the least work for a whole plane, and the first of `CLOSED`; of rows×cols and cols×rows,
    the better.
    """
    return list(dict.fromkeys((*_by_work(problem, False)[:_MOST_TILES], *_by_work(problem, True)[:1])))


def _by_work(problem: ConvProblem, closed: bool) -> list[Size]:
    able, (tiles, count, _, forward, backward) = able_forms(problem, closed)
    work = count * float(problem.cg * problem.kg) * (tiles + _WEIGHTS_READ)
    work += tiles * (forward * problem.cg + backward * problem.kg)
    sizes = figures_of(problem.r, problem.s, closed)[0]
    distinct: dict[frozenset[int], Size] = {}
    for index in able[np.argsort(work, kind="stable")].tolist():
        distinct.setdefault(frozenset(sizes[index]), sizes[index])
    return list(distinct.values())


def is_closed(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether its transforms are of the set for networks with open sizes."""
    return (params.rows, params.cols) in figures_of(problem.r, problem.s, True)[0]


def _tile_operations(kernel: Size, m: Size) -> tuple[int, int]:
    """Vector operations of a tile's transforms, forward and back: columns first, then rows."""
    a = m[0] + kernel[0] - 1, m[1] + kernel[1] - 1
    down, across = _operations(m[0], kernel[0]), _operations(m[1], kernel[1])
    return a[1] * down[0] + a[0] * across[0], a[1] * down[1] + m[0] * across[1]


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """The best few tile sizes, with a few GEMM tiles and block sizes."""
    for m in tile_sizes(problem):
        yield from _of_size(problem, isa, m)


def alike(problem: ConvProblem, isa: Isa, params: Params) -> Iterator[Params]:
    """Those that give the bits of other parameters: of their tile size, whether it is one of the best or not; the plane
    may be smaller than a tile."""
    m = params.rows, params.cols
    if m in figures_of(problem.r, problem.s)[0] and error(problem, m) <= transformed.LARGEST_ERROR:
        yield from _of_size(problem, isa, m)


def _of_size(problem: ConvProblem, isa: Isa, m: Size) -> Iterator[Params]:
    planes = Planes(math.prod(outer(problem, m)))
    for sizes in transformed.sizes(problem, isa, machine(), m, planes, dilation=problem.dilation):
        yield Params(*m, *sizes)


def _slots(machine: Machine) -> float:
    """Slots of FMAs that an operation of a transform takes: a cycle at least, as operations wait for each other."""
    return max(1.0, machine.isa.fma_rate)


@functools.lru_cache(maxsize=256)
def _rates(r: int, s: int, cg: int, kg: int, machine: Machine) -> Rates:
    """Those of every tile size of a kernel."""
    planes, forward, backward = figures_of(r, s)[1][4:]
    slots = _slots(machine)
    slow = Forms(np.ones_like(planes), planes, planes, slots * forward, slots * backward)
    return transformed.rates(cg, kg, machine, slow)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """The least that any tile size takes."""
    able, forms = able_forms(problem)
    each = _rates(problem.r, problem.s, problem.cg, problem.kg, machine)
    return transformed.bound(problem, machine, forms.tiles, each.some(able))


@functools.lru_cache(maxsize=64)
def _form(problem: ConvProblem, m: Size, machine: Machine) -> Form:
    """What the candidates of a tile size share."""
    forward, backward = _tile_operations((problem.r, problem.s), m)
    operations = _slots(machine) * forward, _slots(machine) * backward
    planes = Planes(math.prod(outer(problem, m)))
    charge = transformed.charge(error(problem, m))
    return transformed.form(problem, machine, m, planes, operations, problem.dilation, charge)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """FMA slots of products, operations and memory of transforms, traffic of weights; and a charge for the error.

    Of tiles that take nearly as long, the more accurate one is chosen.
    """
    return transformed.cost(_form(problem, (params.rows, params.cols), machine), params)


def least_work(problem: ConvProblem, params: Params) -> tuple[int, int]:
    """Products and weights of the tiles' own domain."""
    m = params.rows, params.cols
    return transformed.least_work(problem, Planes(math.prod(outer(problem, m))), m, problem.dilation)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Blocks in and out."""
    return blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """G·w·Gᵀ in float64, then [group][a·a][panel][C of a group][v][lanes of K] in float32."""
    m = params.rows, params.cols
    down, across = _constants(params.rows, problem.r), _constants(params.cols, problem.s)
    transform = MicroRef(winograd_weights, WinogradWeights(isa.lanes, down[1], across[1]))
    form = transformed.packing(problem, params.v, isa, Planes(math.prod(outer(problem, m))), transform)
    return transformed.widened(problem, form)


def closed_tiles(isa: Isa, r: int, s: int, activation: Activation | None, residual: bool = False) -> list[MicroRef]:
    """The transforms of a float32 convolution for planes of every size: of weights, forward, and back."""
    found: dict[MicroRef, None] = {}
    for rows, cols in figures_of(r, s, True)[0]:
        down, across = _constants(rows, r), _constants(cols, s)
        found[MicroRef(winograd_weights, WinogradWeights(isa.lanes, down[1], across[1]))] = None
        found[MicroRef(winograd_in, WinogradTransform(isa.lanes, down[2], across[2]))] = None
        back = WinogradTransform(isa.lanes, down[0], across[0], residual, activation)
        found[MicroRef(winograd_out, back)] = None
    return list(found)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the tiled kernel."""
    m = params.rows, params.cols
    a = outer(problem, m)
    down, across = _constants(params.rows, problem.r), _constants(params.cols, problem.s)
    types = problem.types
    forward = WinogradTransform(isa.lanes, down[2], across[2], element=types.x)
    ending = operands.residual is not None, problem.activation
    backward = WinogradTransform(isa.lanes, down[0], across[0], *ending, element=types.y)
    micro = MicroRef(winograd_in, forward), MicroRef(winograd_out, backward)
    last = words.last_of(problem, isa, micro[1])
    transform = Transform(m, a, Planes(math.prod(a)), *micro, dilation=problem.dilation, last=last)
    return [tiled_call.step(problem, params, transform, isa, space, operands)]


@functools.lru_cache(maxsize=64)
def _constants(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """Aᵀ, G and Bᵀ as kernels hold them."""
    at, g, bt = (tuple(map(tuple, matrix.tolist())) for matrix in matrices(m, r))
    return at, g, bt


SOLVER = Solver(
    name="winograd",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
    accuracy="standard",
    rounding=("rows", "cols"),
    low_precision=True,
    least_work=least_work,
    multiplies=F32,
    alike=alike,
    is_closed=is_closed,
)
