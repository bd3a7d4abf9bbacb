"""int8 Winograd convolution in int16, exact to the last bit: F(4, 3) takes half the products of direct int8.

Sources: those of `winograd`; exact by sums modulo 2^32 (decision 16). Interpolation points are on the projective line
over the rationals, (p, q) for p/q. At most two points agree modulo 2, and these differ modulo 4. So the divisors of the
inverse transform are even but not multiples of 4 on each axis, and the sums of a tile are exact up to 2^29. Whether a
problem is accepted depends only on its shape and types: no weights or inputs can overflow.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.elements import S8, S16, U8, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.steps import MicroRef, Operands, Space, Step
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.product import pair_product
from cpuconv.kernels.packing.packing import Filters, Packing
from cpuconv.kernels.packing.transformed_words import TransformedWords
from cpuconv.kernels.transforms.linear import Matrix, operations
from cpuconv.kernels.transforms.winograd_integer import (
    IntegerInverse,
    IntegerTransform,
    winograd_integer_in,
    winograd_integer_out,
)
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked, tiled_call, transformed, words
from cpuconv.solvers.shared.solver import Solver
from cpuconv.solvers.shared.tiled_call import Transform
from cpuconv.solvers.shared.transformed import Planes, Size
from cpuconv.symbolic.sizes import memoised

POINTS: dict[int, tuple[Size, ...]] = {  # by input tile size of an axis
    4: ((0, 1), (1, 1), (-1, 1), (1, 0)),
    5: ((0, 1), (2, 1), (1, 1), (-1, 1), (1, 0)),
    6: ((0, 1), (2, 1), (1, 1), (-1, 1), (-1, 2), (1, 0)),
    8: ((0, 1), (1, 1), (-1, 1), (2, 1), (-2, 1), (1, 2), (-1, 2), (1, 0)),
}
_FACTORS: dict[int, tuple[Matrix, ...]] = {  # factors of Bᵀ, up to signs of rows, where these take fewer operations
    6: (
        (  # of x0 … x5: elements at distance 2, and those between
            (-1, 0, 1, 0, 0, 0),
            (0, -1, 0, 1, 0, 0),
            (0, 0, -1, 0, 1, 0),
            (0, 0, 0, -1, 0, 1),
            (0, 1, 0, 0, 0, 0),
            (0, 0, 1, 0, 0, 0),
            (0, 0, 0, 1, 0, 0),
            (0, 0, 0, 0, 1, 0),
        ),
        (  # (t − 2)·(2t + 1) at four positions; p = x3 − x1, q = x4 − x2
            (2, 0, 0, 0, -3, 0, 0, 0),
            (0, 2, 0, 0, 0, -3, 0, 0),
            (0, 0, 2, 0, 0, 0, -3, 0),
            (0, 0, 0, 2, 0, 0, 0, -3),
            (0, 1, 0, 0, 0, 0, 0, 0),
            (0, 0, 1, 0, 0, 0, 0, 0),
        ),
        (
            (1, 0, -1, 0, 0, 0),
            (0, 0, 0, 0, 1, 2),
            (0, 1, 1, 0, 0, 0),
            (0, 1, -1, 0, 0, 0),
            (0, 0, 0, 0, 2, -1),
            (0, -1, 0, 1, 0, 0),
        ),
    ),
}
LARGEST = {S8: 128, U8: 255, S16: 255}  # largest magnitude of an element; int16 holds uint8 less its zero point
_SMALLEST = {S8: -128, U8: 0}  # smallest element of the input
_LIMIT = 1 << 15  # magnitude beyond int16
_MAX_TILES = 3  # tile sizes that become candidates
_EPILOGUE = 12  # operations of the epilogue and store of an output
_WEIGHTS_READ = 8  # tiles for which using a weight takes as long as reading it from L3


@dataclass(frozen=True)
class Params:
    """Output tile, GEMM tile, and block and chunk sizes, as in `winograd`."""

    rows: int
    cols: int
    v: int
    n: int
    block: int
    chunk: int


@dataclass(frozen=True)
class Axis:
    """Integer F(m, r): Aᵀ·diag(scale)·((G·w)∘(Bᵀ·x)) = multiple · (the m sums)."""

    a: Matrix
    scale: tuple[int, ...]
    g: Matrix
    b: tuple[Matrix, ...]  # factors of Bᵀ, in the order of application
    multiple: int

    @lazy
    def whole_b(self) -> np.ndarray:
        """Product of the factors, Bᵀ."""
        return functools.reduce(lambda done, factor: np.array(factor) @ done, self.b[1:], np.array(self.b[0]))


_IDENTITY = ((1,),)


def _polynomial(roots: list[Size]) -> np.ndarray:
    """Coefficients of the product of v·t − u for each root (u, v), lowest power first."""
    found = np.ones(1, np.int64)
    for u, v in roots:
        found = np.convolve(found, np.array([-u, v]))
    return found


@functools.lru_cache(maxsize=64)
def axis(m: int, r: int) -> Axis:
    """Transforms of one axis, by Toom-Cook interpolation at `POINTS`; the identity if its kernel is 1."""
    if r == 1:
        return Axis(_IDENTITY, (1,), _IDENTITY, (_IDENTITY,), 1)
    points = POINTS[m + r - 1]
    others = [[other for other in points if other != point] for point in points]
    divisors = [math.prod(p * v - q * u for u, v in rest) for (p, q), rest in zip(points, others, strict=True)]
    multiple = math.lcm(*divisors)
    rows = [_polynomial(rest) for rest in others]
    factors = _FACTORS.get(len(points), (tuple(tuple(row.tolist()) for row in rows),))
    made = Axis(
        a=tuple(tuple(p**i * q ** (m - 1 - i) for p, q in points) for i in range(m)),
        scale=(),
        g=tuple(tuple(p**i * q ** (r - 1 - i) for i in range(r)) for p, q in points),
        b=factors,
        multiple=multiple,
    )
    signs = [int(np.sign(have @ row)) for have, row in zip(made.whole_b, rows, strict=True)]
    scale = (sign * multiple // divisor for sign, divisor in zip(signs, divisors, strict=True))
    return replace(made, scale=tuple(scale))


def _scaled(matrix: Matrix, scale: tuple[int, ...]) -> Matrix:
    """Rows multiplied by integers."""
    return tuple(tuple(each * value for value in row) for each, row in zip(scale, matrix, strict=True))


def _sums(matrix: Matrix) -> int:
    """Largest sum of magnitudes in a row."""
    return int(max(sum(map(abs, row)) for row in matrix))


@dataclass(frozen=True)
class Form:
    """Transform of both axes that fits into int16, with the matrices of the inverse and of the weights, scaled."""

    size: Size  # output tile
    axes: tuple[Axis, Axis]
    a: tuple[Matrix, Matrix]
    g: tuple[Matrix, Matrix]

    @property
    def outer(self) -> Size:
        """Input tile."""
        return len(self.g[0]), len(self.g[1])

    @property
    def planes(self) -> int:
        """Number of components."""
        return math.prod(self.outer)

    @property
    def multiple(self) -> int:
        """Factor of each sum in the output of the inverse transform."""
        return self.axes[0].multiple * self.axes[1].multiple

    @property
    def shift(self) -> int:
        """Exponent of 2 in that factor."""
        return (self.multiple & -self.multiple).bit_length() - 1

    @lazy
    def operations(self) -> tuple[int, int]:
        """Vector operations per tile, forward and back, without epilogue: columns first, then rows."""
        forward = [sum(map(operations, each.b)) for each in self.axes]
        backward = [operations(matrix) for matrix in self.a]
        high, wide = self.outer
        return wide * forward[0] + high * forward[1], wide * backward[0] + self.size[0] * backward[1]


def _fits(axes: tuple[Axis, Axis], x: Element) -> bool:
    """Whether the transform of any input of this type fits into int16."""
    least, most = _SMALLEST[x], LARGEST[x]
    parts = [(np.maximum(each.whole_b, 0).sum(1), np.maximum(-each.whole_b, 0).sum(1)) for each in axes]
    (down, minus_down), (across, minus_across) = parts
    plus = np.outer(down, across) + np.outer(minus_down, minus_across)
    minus = np.outer(down, minus_across) + np.outer(minus_down, across)
    return bool((plus * most - minus * least < _LIMIT).all() and (minus * most - plus * least <= _LIMIT).all())


def form(problem: ConvProblem, size: Size) -> Form | None:
    """Transform for an output tile of this size; None if it does not fit into int16."""
    return _form_of(size, (problem.r, problem.s), problem.types.x, problem.types.w)


@functools.lru_cache(maxsize=256)
def _form_of(size: Size, kernel: Size, x: Element, w: Element) -> Form | None:
    axes = axis(size[0], kernel[0]), axis(size[1], kernel[1])
    if not _fits(axes, x):
        return None
    down, across = axes
    scaled = _scaled(down.g, down.scale), _scaled(across.g, across.scale)
    plain = down.g, across.g
    for g, a in ((scaled, (down.a, across.a)), (plain, (_by_columns(down), _by_columns(across)))):
        if _sums(g[0]) * _sums(g[1]) * LARGEST[w] < _LIMIT:
            return Form(size, axes, a, g)
    return None


def _by_columns(each: Axis) -> Matrix:
    """Columns scaled: Aᵀ·diag(scale)."""
    return tuple(tuple(value * scale for value, scale in zip(row, each.scale, strict=True)) for row in each.a)


def _axis_sizes(kernel: int, outputs: int) -> list[int]:
    """Output tile sizes of an axis, none larger than one that covers all outputs."""
    if kernel == 1:
        return [1]
    found = [a - kernel + 1 for a in sorted(POINTS) if a > kernel]
    return [m for at, m in enumerate(found) if at == 0 or found[at - 1] < outputs]


@memoised(256)
def _exact_forms(problem: ConvProblem) -> tuple[Form, ...]:
    """Exact transforms for a plane."""
    high, wide = (divide(size, step) for size, step in zip((problem.oh, problem.ow), problem.dilation, strict=True))
    sizes = itertools.product(_axis_sizes(problem.r, high), _axis_sizes(problem.s, wide))
    return tuple(each for each in (form(problem, m) for m in sizes) if each is not None and _exact(problem, each))


@functools.lru_cache(maxsize=256)
def forms_of(problem: ConvProblem) -> tuple[Form, ...]:
    """Exact transforms for a plane, least work first; of rows×cols and cols×rows, the faster one."""

    def work(each: Form) -> float:
        tiles = transformed.tile_grid(problem, each.size, problem.dilation)[2]
        forward, backward = each.operations
        products = each.planes * problem.cg * problem.kg * (tiles + _WEIGHTS_READ)
        return products + tiles * (forward * problem.cg + 2 * backward * problem.kg)

    distinct: dict[frozenset[int], Form] = {}
    for each in sorted(_exact_forms(problem), key=work):
        distinct.setdefault(frozenset(each.size), each)
    return tuple(distinct.values())


def most_sum(problem: ConvProblem) -> int:
    """Largest possible magnitude of a sum, over all inputs and weights."""
    types = problem.types
    return LARGEST[types.x] * LARGEST[types.w] * problem.cg * problem.r * problem.s


def _exact(problem: ConvProblem, each: Form) -> bool:
    return most_sum(problem) < 1 << (31 - each.shift)


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require int8, stride 1, sums that are always exact, transforms that fit int16, and groups in whole blocks."""
    types = problem.types
    if types.x not in _SMALLEST or types.w not in (S8, S16) or not types.sum.integer:
        return f"its operands are bytes, not {types}"
    if problem.r == problem.s == 1:
        return "the kernel is 1x1"
    if problem.stride != (1, 1):
        return f"the stride is {problem.stride}"
    if max(problem.r, problem.s) >= max(POINTS):
        return f"the kernel is {problem.r}x{problem.s}, more than {max(POINTS) - 1} in an axis"
    if not _exact_forms(problem):
        return f"no transform of a {problem.r}x{problem.s} kernel is exact for sums of {problem.cg} channels of {types}"
    return transformed.whole_groups(problem, isa, pair_product(isa))


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Offsets that kernels add to input and weights: zeros."""
    return 0, 0


def _planes(each: Form, isa: Isa) -> Planes:
    return Planes(each.planes, product=pair_product(isa).name)


def _form(problem: ConvProblem, params: Params) -> Form:
    found = form(problem, (params.rows, params.cols))
    assert found is not None  # set by `candidates`
    return found


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tile sizes by the model, with a few GEMM tiles and block sizes each."""
    for each in forms_of(problem)[:_MAX_TILES]:
        for sizes in transformed.sizes(
            problem, isa, machine(), each.size, _planes(each, isa), dilation=problem.dilation
        ):
            yield Params(*each.size, *sizes)


def _all_operations(each: Form, isa: Isa) -> tuple[float, float]:
    """Operations per tile, forward and back, in FMA slots."""
    forward, backward = each.operations
    slots = isa.fma_rate / isa.additions
    return slots * forward, slots * (backward + _EPILOGUE * math.prod(each.size))


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost` over all tile sizes, in seconds."""
    forms = forms_of(problem)
    tiles = [transformed.tile_grid(problem, each.size, problem.dilation)[2] for each in forms]
    counts = [each.planes for each in forms]
    operations = [_all_operations(each, machine.isa) for each in forms]
    rows = transformed.Forms(*np.array([tiles, counts, counts, *zip(*operations, strict=True)]))
    rates = transformed.rates(problem.cg, problem.kg, machine, rows, pair_product(machine.isa).name)
    return transformed.bound(problem, machine, rows.tiles, rates)


@functools.lru_cache(maxsize=64)
def _shared(problem: ConvProblem, size: Size, machine: Machine) -> transformed.Form:
    """Cost terms that all candidates of a tile size share."""
    each = form(problem, size)
    assert each is not None  # set by `candidates`
    planes, work = _planes(each, machine.isa), _all_operations(each, machine.isa)
    return transformed.form(problem, machine, size, planes, work, problem.dilation)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: products, operations and memory accesses of transforms, and traffic of weights."""
    return transformed.cost(_shared(problem, (params.rows, params.cols), machine), params)


def least_work(problem: ConvProblem, params: Params) -> tuple[int, int]:
    """Operations and weight bytes of the products in the transformed domain."""
    each = _form(problem, params)
    return transformed.least_work(problem, Planes(each.planes, product="pmaddwd"), each.size, problem.dilation)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel blocks."""
    return blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: G·w·Gᵀ in int16, [group][a·a][panel][32-bit group of C][v][lanes of K][2]."""
    filters = Filters(isa.lanes, params.v, problem.groups, problem.kg)
    return TransformedWords(filters, problem.cg, problem.r, problem.s, *_form(problem, params).g)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the tile driver."""
    each = _form(problem, params)
    forward = IntegerTransform(isa.lanes, each.axes[0].b, each.axes[1].b, problem.types.x)
    backward = IntegerInverse(isa.lanes, *each.a, each.multiple >> each.shift, each.shift, Epilogue.of(problem))
    micro = MicroRef(winograd_integer_in, forward), MicroRef(winograd_integer_out, backward)
    last = words.last_of(problem, isa, micro[1])
    planes = _planes(each, isa)
    transform = Transform(each.size, each.outer, planes, *micro, dilation=problem.dilation, last=last)
    return [tiled_call.step(problem, params, transform, isa, space, operands)]


SOLVER = Solver(
    name="winograd_integer",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
    low_precision=True,
    offset=offset,
    least_work=least_work,
    multiplies=S16,
)
