"""Winograd transforms F(m×n, r×s): matrices, errors, and candidate tile sizes.

Sources: those of `solvers.winograd`.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Machine
from cpuconv.kernels.binding.steps import MicroRef
from cpuconv.kernels.emit.product import Product
from cpuconv.kernels.transforms.linear import Matrix, operations
from cpuconv.kernels.transforms.winograd import WinogradWeights, winograd_weights
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import transformed
from cpuconv.solvers.shared.transformed import Form, Forms, Planes, Rates, Size

_HALVES: dict[int, tuple[float, ...]] = {  # positive interpolation points, by input tile size of an axis
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
LARGEST = {False: 12, True: 8}  # input tile of an axis, if both axes are transformed: the error grows with each
CLOSED = {False: (4, 6, 8, 10, 12), True: (4, 6, 7, 8)}  # input tiles of networks with open sizes
_MAX_KERNEL = 7  # kernel rows or columns
_MAX_TILES = 4  # tile sizes that become candidates
_WEIGHTS_READ = 8  # tiles for which using a weight takes as long as reading it from L3


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
    """Ratio of the rounding error of F(m, r) to that of a direct sum, along one axis, for the worst output.

    For independent inputs and weights of unit variance, product j has the variance |G_j|²·|Bᵀ_j|² (norms of rows). Its
    error is proportional to that, and reaches output i multiplied by Aᵀ_ij. Output i has the variance r.
    """
    at, g, bt = matrices(m, r)
    products = (g**2).sum(1) * (bt**2).sum(1)
    return math.sqrt(((at**2) @ products).max() / r)


@functools.lru_cache(maxsize=64)
def constants(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """Aᵀ, G and Bᵀ as constants of kernels."""
    at, g, bt = (tuple(map(tuple, matrix.tolist())) for matrix in matrices(m, r))
    return at, g, bt


def error(problem: ConvProblem, m: Size, more: float = 0.0) -> float:
    """Stated error of a tile size for unit-normal data, relative to the largest output.

    Errors of the axes multiply. `more`: error of direct sums in addition to that of float32.
    """
    sums = transformed.error_of_sums(problem) + more
    return sums * amplification(m[0], problem.r) * amplification(m[1], problem.s)


@functools.lru_cache(maxsize=64)
def _operations(m: int, r: int) -> tuple[int, int]:
    """Vector operations of Bᵀ and Aᵀ per column."""
    at, _, bt = constants(m, r)
    return operations(bt), operations(at)


def outer(problem: ConvProblem, m: Size) -> Size:
    """Rows and columns of the input tile of an output tile."""
    return m[0] + problem.r - 1, m[1] + problem.s - 1


def tile_operations(kernel: Size, m: Size) -> tuple[int, int]:
    """Vector operations per tile, forward and back: columns first, then rows."""
    a = m[0] + kernel[0] - 1, m[1] + kernel[1] - 1
    down, across = _operations(m[0], kernel[0]), _operations(m[1], kernel[1])
    return a[1] * down[0] + a[0] * across[0], a[1] * down[1] + m[0] * across[1]


def _axis(kernel: int, both: bool, closed: bool) -> list[tuple[int, int]]:
    """Output tile sizes of an axis, each with the next smaller size; where the smaller covers all outputs, the larger
    is omitted. `closed`: only those of `CLOSED`.
    """
    if kernel == 1:
        return [(1, 0)]
    inputs = CLOSED[both] if closed else sorted(POINTS)
    found = [a - kernel + 1 for a in inputs if kernel < a <= LARGEST[both]]
    return list(zip(found, [0, *found], strict=False))


@functools.lru_cache(maxsize=64)
def figures_of(r: int, s: int, closed: bool = False) -> tuple[list[Size], np.ndarray, np.ndarray]:
    """Tile sizes of a kernel with the figures by which they are selected, as arrays.

    For each: rows, rows of the next smaller size, columns, columns of the next smaller size, components, operations
    forward and backward; separately, the amplification of errors.
    """
    both = min(r, s) > 1
    pairs = [(down, across) for down in _axis(r, both, closed) for across in _axis(s, both, closed)]
    sizes = [(down[0], across[0]) for down, across in pairs]
    planes = [(m[0] + r - 1) * (m[1] + s - 1) for m in sizes]
    work = [tile_operations((r, s), m) for m in sizes]
    rows = [(*down, *across, count, *each) for (down, across), count, each in zip(pairs, planes, work, strict=True)]
    amplified = [amplification(m[0], r) * amplification(m[1], s) for m in sizes]
    return sizes, np.array(rows).T, np.array(amplified)


def why_not(problem: ConvProblem, isa: Isa, product: Product, more: float = 0.0) -> str | None:
    """Reason why a problem has no transform for this multiplication, or None: kernels larger than 7 in an axis, stride
    other than 1, too many channels, or groups that share channel blocks. `more`: see `error`.
    """
    if max(problem.r, problem.s) > _MAX_KERNEL:
        return f"the kernel is {problem.r}x{problem.s}, more than {_MAX_KERNEL} in an axis"
    if problem.r == problem.s == 1:
        return "the kernel is 1x1"
    if problem.stride != (1, 1):
        return f"the stride is {problem.stride}"
    least = float(figures_of(problem.r, problem.s)[2].min())
    if (transformed.error_of_sums(problem) + more) * least > transformed.largest_error(problem):
        return f"the sums are of {problem.cg} channels, too many for its error"
    return transformed.whole_groups(problem, isa, product)


@functools.lru_cache(maxsize=8)  # called for the bound and for the candidates of a problem
def able_forms(problem: ConvProblem, closed: bool = False, more: float = 0.0) -> tuple[np.ndarray, Forms]:
    """Select the tile sizes of a kernel that are fast and accurate enough for the plane; and their figures."""
    down, across = problem.dilation
    _, figures, amplified = figures_of(problem.r, problem.s, closed)
    worth_it = (figures[1] < divide(problem.oh, down)) & (figures[3] < divide(problem.ow, across))
    errors = (transformed.error_of_sums(problem) + more) * amplified
    able = np.flatnonzero(worth_it & (errors <= transformed.largest_error(problem)))
    rows, _, cols, _, count, forward, backward = figures[:, able]
    high, wide = transformed.cuts(problem.oh, rows, down), transformed.cuts(problem.ow, cols, across)
    return able, Forms(max(1, problem.n) * high * wide, count, count, forward, backward)


def tile_sizes(problem: ConvProblem, more: float = 0.0) -> list[Size]:
    """Tile sizes with the least work for a whole plane, and the first of `CLOSED`; of rows×cols and cols×rows, the
    faster one.
    """
    return list(dict.fromkeys((*_by_work(problem, False, more)[:_MAX_TILES], *_by_work(problem, True, more)[:1])))


def _by_work(problem: ConvProblem, closed: bool, more: float) -> list[Size]:
    able, (tiles, count, _, forward, backward) = able_forms(problem, closed, more)
    work = count * float(problem.cg * problem.kg) * (tiles + _WEIGHTS_READ)
    work += tiles * (forward * problem.cg + backward * problem.kg)
    sizes = figures_of(problem.r, problem.s, closed)[0]
    distinct: dict[frozenset[int], Size] = {}
    for index in able[np.argsort(work, kind="stable")].tolist():
        distinct.setdefault(frozenset(sizes[index]), sizes[index])
    return list(distinct.values())


def slots(machine: Machine) -> float:
    """FMA slots per transform operation: at least one cycle, as operations depend on each other."""
    return max(1.0, machine.isa.fma_rate)


@functools.lru_cache(maxsize=256)
def rates(r: int, s: int, cg: int, kg: int, machine: Machine, product: str = "fma", split: float = 0.0) -> Rates:
    """Rates of every tile size of a kernel.

    `split`: operations per component stored by the forward transform.
    """
    planes, forward, backward = figures_of(r, s)[1][4:]
    each = slots(machine)
    forms = Forms(np.ones_like(planes), planes, planes, each * (forward + split * planes), each * backward)
    return transformed.rates(cg, kg, machine, forms, product)


@functools.lru_cache(maxsize=64)
def form(
    problem: ConvProblem, m: Size, machine: Machine, planes: Planes, more: float = 0.0, split: float = 0.0
) -> Form:
    """Cost terms that all candidates of a tile size share.

    `split`: operations per component stored by the forward transform.
    """
    forward, backward = tile_operations((problem.r, problem.s), m)
    work = slots(machine) * (forward + split * planes.count), slots(machine) * backward
    charge = transformed.charge(error(problem, m, more), transformed.largest_error(problem))
    return transformed.form(problem, machine, m, planes, work, problem.dilation, charge)


def weights(problem: ConvProblem, m: Size, isa: Isa) -> MicroRef:
    """Transform of weights: G·w·Gᵀ in float64."""
    down, across = constants(m[0], problem.r), constants(m[1], problem.s)
    return MicroRef(winograd_weights, WinogradWeights(isa.lanes, down[1], across[1]))
