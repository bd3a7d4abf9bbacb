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
from dataclasses import dataclass

import numpy as np

from cpuconv.isa import Isa
from cpuconv.micro.linear import Matrix, apply
from cpuconv.micro.winograd import WinogradTransform, winograd_in, winograd_out
from cpuconv.problem import ConvProblem
from cpuconv.solvers import blocked, transformed
from cpuconv.solvers.base import Cost, MicroRef, Operand, Space, Step, divide
from cpuconv.solvers.machine import Machine, machine
from cpuconv.solvers.transformed import Planes, Size

NAME = "winograd"
ACCURACY = "standard"
ROUNDING = ("rows", "cols")

_ROOT = math.sqrt(2)
POINTS: dict[int, tuple[float, ...]] = {  # by input tile size of an axis; infinity is always one more
    1: (),
    4: (0, 1, -1),
    5: (0, 1, -1, 2),
    6: (0, _ROOT / 2, -_ROOT / 2, _ROOT, -_ROOT),
    7: (0, 1, -1, 2, -2, 0.5),
    8: (0, 1, -1, 2, -2, 0.5, -0.5),
    10: (0, 0.4, -0.4, 0.8, -0.8, 1.25, -1.25, 2.5, -2.5),
    12: (0, 1, -1, 1 / 3, -1 / 3, 3, -3, 0.6, -0.6, 5 / 3, -5 / 3),
}
LARGEST = {False: 12, True: 8}  # input tile of an axis, if both axes are transformed: the error grows with either
_MOST_KERNEL = 7  # rows or columns of a kernel
_MOST_TILES = 4  # tile sizes worth trying
_STALLS = 2  # slots an operation of a transform takes: they wait for each other, and the largest tiles spill
_WEIGHTS_READ = 8  # reading a weight from L3 takes as long as using it for this many tiles


@dataclass(frozen=True)
class Params:
    """Output tile rows×cols; v weight vectors × n tiles a GEMM tile; `block` tiles in L2; `chunk` panels at a time."""

    rows: int
    cols: int
    v: int
    n: int
    block: int
    chunk: int


@functools.lru_cache(maxsize=16)
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
    for matrix in (at, g, bt):  # np.poly and powers leave dust where the exact value is simple
        near = np.round(matrix * 360) / 360
        np.copyto(matrix, near, where=np.abs(matrix - near) < 1e-12)
    return at, g, bt


class _Counter:
    """Counts the operations that an emitter would emit."""

    def __init__(self) -> None:
        self.count = 0

    def constant(self, value: float) -> None:
        """Free."""

    def add(self, *values: object) -> int:
        """One more."""
        self.count += 1
        return self.count

    sub = mul = fma = add


@functools.lru_cache(maxsize=64)
def _operations(m: int, r: int) -> tuple[int, int]:
    """Vector operations of Bᵀ and of Aᵀ on one column."""
    counts = []
    for matrix in matrices(m, r)[::-2]:
        counter = _Counter()
        apply(counter, matrix.tolist(), list(range(matrix.shape[1])))
        counts.append(counter.count)
    return counts[0], counts[1]


def outer(problem: ConvProblem, m: Size) -> Size:
    """Rows and columns of the input tile of an output tile."""
    return m[0] + problem.r - 1, m[1] + problem.s - 1


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Kernels up to 7 in either axis, stride 1; groups must not share channel blocks."""
    if max(problem.r, problem.s) > _MOST_KERNEL:
        return f"the kernel is {problem.r}x{problem.s}, more than {_MOST_KERNEL} in an axis"
    if problem.r == problem.s == 1:
        return "the kernel is 1x1"
    if problem.stride != (1, 1):
        return f"the stride is {problem.stride}"
    return blocked.aligned_groups(problem, isa)


def _axis(kernel: int, outputs: int, both: bool) -> list[int]:
    """Output tile sizes of an axis: none that one smaller tile covers."""
    if kernel == 1:
        return [1]
    found = [a - kernel + 1 for a in sorted(POINTS) if kernel < a <= LARGEST[both]]
    return [m for i, m in enumerate(found) if i == 0 or found[i - 1] < outputs]


def _tiles(problem: ConvProblem) -> list[Size]:
    """The few tile sizes with the least work for a whole plane; of rows×cols and cols×rows, the better."""

    def work(m: Size) -> float:
        a = outer(problem, m)
        tiles = transformed.tile_grid(problem, m, problem.dilation)[2]
        forward, backward = _tile_operations(problem, m)
        products = a[0] * a[1] * problem.cg * problem.kg
        return products * (tiles + _WEIGHTS_READ) + tiles * (forward * problem.cg + backward * problem.kg)

    both = min(problem.r, problem.s) > 1
    high = _axis(problem.r, divide(problem.oh, problem.dilation[0]), both)
    wide = _axis(problem.s, divide(problem.ow, problem.dilation[1]), both)
    ordered = sorted(((rows, cols) for rows in high for cols in wide), key=work)
    distinct = {frozenset(size): size for size in reversed(ordered)}
    return sorted(distinct.values(), key=work)[:_MOST_TILES]


def _tile_operations(problem: ConvProblem, m: Size) -> tuple[int, int]:
    """Vector operations of a tile's transforms, forward and back: columns first, then rows."""
    a = outer(problem, m)
    down, across = _operations(m[0], problem.r), _operations(m[1], problem.s)
    return a[1] * down[0] + a[0] * across[0], a[1] * down[1] + m[0] * across[1]


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """The best few tile sizes, with a few GEMM tiles and block sizes."""
    for m in _tiles(problem):
        planes = Planes(math.prod(outer(problem, m)))
        for sizes in transformed.sizes(problem, isa, machine(), m, planes, dilation=problem.dilation):
            yield Params(*m, *sizes)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """That of the best tile size, if its products took no more than FMA slots."""

    def least(m: Size) -> float:
        total = transformed.tile_grid(problem, m, problem.dilation)[2]
        count = math.prod(outer(problem, m))
        return transformed.bound(problem, machine, total, count, count, _slots(problem, m))

    return min(map(least, _tiles(problem)))


def _slots(problem: ConvProblem, m: Size) -> tuple[int, int]:
    forward, backward = _tile_operations(problem, m)
    return _STALLS * forward, _STALLS * backward


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """FMA slots of products, operations and memory of transforms, traffic of weights."""
    m = params.rows, params.cols
    planes = Planes(math.prod(outer(problem, m)))
    operations = _slots(problem, m)
    return transformed.cost(problem, params, machine, m, planes, operations, problem.dilation)


def layouts(problem: ConvProblem, params: Params, isa: Isa) -> tuple[str | None, str | None]:
    """Blocks in and out."""
    return blocked.layout(isa), blocked.layout(isa)


def pack(problem: ConvProblem, params: Params, isa: Isa, weight: np.ndarray) -> np.ndarray:
    """G·w·Gᵀ in float64, then [group][a·a][panel][C of a group][v][lanes of K] in float32."""
    down, across = matrices(params.rows, problem.r)[1], matrices(params.cols, problem.s)[1]
    planes = np.einsum("ar,kcrs,bs->abkc", down, weight.astype(np.float64), across, optimize=True)
    planes = planes.reshape(-1, problem.k, problem.cg).astype(np.float32)
    return transformed.pack(problem, params.v, isa, planes)


def bind(
    problem: ConvProblem, params: Params, isa: Isa, space: Space, x: Operand, y: Operand, residual: Operand | None
) -> list[Step]:
    """One parallel call of the tiled kernel."""
    m = params.rows, params.cols
    a = outer(problem, m)
    down, across = matrices(params.rows, problem.r), matrices(params.cols, problem.s)
    forward = WinogradTransform(isa.lanes, _constants(down[2]), _constants(across[2]))
    backward = WinogradTransform(
        isa.lanes, _constants(down[0]), _constants(across[0]), residual is not None, problem.activation
    )
    step = transformed.step(
        problem,
        params,
        isa,
        space,
        x,
        y,
        residual,
        m,
        a,
        MicroRef(winograd_in, forward),
        MicroRef(winograd_out, backward),
        planes=Planes(math.prod(a)),
        dilation=problem.dilation,
    )
    return [step]


def _constants(matrix: np.ndarray) -> Matrix:
    return tuple(map(tuple, matrix.tolist()))
