"""FFT convolution by tiles, for dense kernels of 5x5 and larger, where r·s products per pixel are expensive.

Sources: Zlateski, Jia, Li and Durand, "FFT Convolutions are Faster than Winograd on Modern CPUs, Here is Why" (2018):
tiles whose transforms stay in cache (overlap-save), and complex products by three real ones (Gauss) or by four; Cooley
and Tukey (1965). Three products take fewer FMAs. Four products read two planes instead of three, so that weights and
transforms are smaller. Both are candidates. A tile of rows×cols inputs gives the outputs whose windows are inside it.
The transformed weights are conjugated, which turns the circular convolution into a correlation, and normalised.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.steps import MicroRef, Operands, Space, Step
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.transforms.fft import GAUSS, REAL, REGULAR, FftTransform, fft_in, fft_out, plane_count
from cpuconv.kernels.transforms.fft_weights import FftWeights, fft_weights
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked, tiled_call, transformed, words
from cpuconv.solvers.shared.solver import Solver
from cpuconv.solvers.shared.tiled_call import Transform
from cpuconv.solvers.shared.transformed import Form, Forms, Planes, Rates, Size

# By tile size: operations of the complex codelet, and of the real ones forward and back (a test counts them).
SIZES: dict[int, tuple[int, int, int]] = {
    2: (4, 2, 2),
    4: (17, 7, 11),
    8: (60, 25, 41),
    12: (141, 59, 75),
    16: (180, 77, 124),
    20: (297, 127, 155),
    24: (376, 161, 213),
    28: (485, 211, 251),
    32: (488, 213, 335),
    40: (756, 329, 417),
    48: (948, 413, 556),
    64: (1240, 549, 846),
}
_LARGEST = max(SIZES)
_MAX_FORMS = 6  # tile sizes with three or four products that become candidates
_L2_SHARES = (0.7, 1.4, 3.0)  # shares of L2 for the transforms of a block; large blocks read the weights less often
_PLANE_OPERATIONS = 8  # operations that take as long as storing and loading a plane
_WEIGHTS_READ = 8  # tiles for which using a weight takes as long as reading it from L3
_MAX_WEIGHTS = 512 << 20  # bytes of transformed weights, which grow with the tile, not with the kernel
_MIN_TAPS = 25  # with fewer taps there is only one candidate


@dataclass(frozen=True)
class Params:
    """Transform and GEMM of a candidate.

    Attributes
    ----------
    rows, cols : int
            Input tile.
    products : int
            Real products per complex product: three (Gauss) or four.
    v : int
            Weight vectors per GEMM tile.
    n : int
            Tiles per GEMM tile.
    block : int
            Tiles per block, whose transforms stay in L2.
    chunk : int
            Weight panels per pass over a block.
    """

    rows: int
    cols: int
    products: int
    v: int
    n: int
    block: int
    chunk: int


def outputs(problem: ConvProblem, rows: int, cols: int) -> tuple[int, int]:
    """Rows and columns of outputs per input tile; less than one if the tile is too small."""
    reach_h, reach_w = problem.effective_kernel
    return min(rows - reach_h + 1, problem.oh), min(cols - reach_w + 1, problem.ow)


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require stride 1, one group, a kernel (with dilation) smaller than the largest tile, and float32 sums."""
    if (why := transformed.why_not_floats(problem.types)) is not None:
        return why
    if problem.stride != (1, 1):
        return f"the stride is {problem.stride}"
    if problem.groups != 1:
        return f"there are {problem.groups} groups"
    if max(problem.effective_kernel) >= _LARGEST:
        return f"the kernel spans {problem.effective_kernel}, not less than the largest tile of {_LARGEST}"
    if _min_planes(problem.effective_kernel) > _max_planes(problem):
        return f"the transformed weights of any tile would take more than {_MAX_WEIGHTS >> 20} MB"
    return None


@functools.lru_cache(maxsize=64)
def _min_planes(kernel: Size) -> int:
    """Components of the smallest tile for a kernel of this extent."""
    rows, cols = (min(size for size in SIZES if size >= reach) for reach in kernel)
    return plane_count(rows, cols, REGULAR)


def planes(rows: int, cols: int, products: int) -> Planes:
    """Components of the transform of a tile."""
    count = plane_count(rows, cols, products)
    return Planes(REAL, (count - REAL) // 2) if products == REGULAR else Planes(count)


def operations(rows: int, cols: int, products: int, out_rows: int) -> tuple[int, int]:
    """Additions and multiplications per tile, forward and back, including Gauss's sums."""
    half = cols // 2
    column = SIZES[rows][0]
    sums = rows * half if products == GAUSS else 0
    return rows * SIZES[cols][1] + half * column + sums, out_rows * SIZES[cols][2] + half * column + 2 * sums


FORMS = [(rows, cols, products) for rows in SIZES for cols in SIZES for products in (GAUSS, REGULAR)]


@functools.cache
def _figures() -> np.ndarray:
    """Figures of `FORMS` by which tile sizes are selected, as arrays.

    Rows, columns, components, products, operations forward, operations backward for the columns, and operations
    backward per row of outputs.
    """
    kinds = [planes(*form) for form in FORMS]
    counts = [(each.count, each.products) for each in kinds]
    work = [(*operations(*form, 0), SIZES[form[1]][2]) for form in FORMS]
    return np.array([(*form[:2], *count, *each) for form, count, each in zip(FORMS, counts, work, strict=True)]).T


@functools.lru_cache(maxsize=64)
def _able(kernel: Size, max_planes: int) -> tuple[np.ndarray, np.ndarray]:
    """Select from `FORMS` those for a kernel of this extent with at most `max_planes` components; and their figures,
    with outputs per tile in place of its rows and columns.
    """
    rows, cols, count = _figures()[:3]
    able = np.flatnonzero((rows >= kernel[0]) & (cols >= kernel[1]) & (count <= max_planes))
    figures = _figures()[:, able]
    figures[:2] -= np.array(kernel)[:, None] - 1
    return able, figures


@functools.lru_cache(maxsize=8)  # called for the bound and for the candidates of a problem
def able_forms(problem: ConvProblem) -> tuple[np.ndarray, Forms]:
    """Select from `FORMS` those that can run the problem; and their figures."""
    able, figures = _able(problem.effective_kernel, _max_planes(problem))
    high, wide, count, products, forward, backward, backward_row = figures
    high, wide = np.minimum(high, problem.oh), np.minimum(wide, problem.ow)
    tiles = max(1, problem.n) * (-problem.oh // high) * (-problem.ow // wide)  # both operands are negative: rounds up
    return able, Forms(tiles, count, products, forward, backward + high * backward_row)


def _forms(problem: ConvProblem, closed: bool) -> list[tuple[int, int, int]]:
    """Tile sizes, and products per complex product, with the least work for a whole plane.

    Of rows×cols and cols×rows, the faster one. `closed`: only tiles that the plane does not truncate.
    """
    able, (tiles, count, products, forward, backward) = able_forms(problem)
    moved = _PLANE_OPERATIONS * count
    work = (products * tiles + count * _WEIGHTS_READ) * float(problem.c * problem.k)
    work += tiles * ((forward + moved) * problem.c + (backward + moved) * problem.k)
    if closed:
        high, wide = _able(problem.effective_kernel, _max_planes(problem))[1][:2]
        whole = (high <= problem.oh) & (wide <= problem.ow)
        able, work = able[whole], work[whole]
    distinct: dict[tuple[frozenset[int], int], tuple[int, int, int]] = {}
    for index in able[np.lexsort((-able, work))].tolist():
        form = FORMS[index]
        distinct.setdefault((frozenset(form[:2]), form[2]), form)
        if len(distinct) == _MAX_FORMS:
            break
    return list(distinct.values())


def _max_planes(problem: ConvProblem) -> int:
    """Largest number of components within the limit on transformed weights."""
    return _MAX_WEIGHTS // (F32.bytes * problem.c * problem.k)


def is_closed(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether the transforms are among those for networks with open sizes: tiles that no plane truncates."""
    reach = problem.effective_kernel
    return outputs(problem, params.rows, params.cols) == (params.rows - reach[0] + 1, params.cols - reach[1] + 1)


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tile sizes by the model, with GEMM tiles and block sizes; for small kernels, the first of them."""
    found = (
        Params(*form, *sizes)
        for form in _forms(problem, isa.closed)
        for sizes in transformed.sizes(problem, isa, machine(), outputs(problem, *form[:2]), planes(*form), _L2_SHARES)
    )
    yield from itertools.islice(found, None if problem.r * problem.s >= _MIN_TAPS else 1)


def alike(problem: ConvProblem, isa: Isa, params: Params) -> Iterator[Params]:
    """Candidates that give equal bits: those of the same tile size, if the plane does not truncate it.

    The tile size need not be one of the fastest.
    """
    form = params.rows, params.cols, params.products
    if form in FORMS and max(form[:2]) >= max(problem.effective_kernel) and is_closed(problem, params, isa):
        m = outputs(problem, *form[:2])
        for sizes in transformed.sizes(problem, isa, machine(), m, planes(*form), _L2_SHARES):
            yield Params(*form, *sizes)


@functools.lru_cache(maxsize=64)
def _rates(c: int, k: int, kernel: Size, max_planes: int, machine: Machine) -> Rates:
    """Rates of the forms that can run a layer, without inverse transforms, which depend on rows of outputs."""
    _, _, count, products, forward, _, _ = _able(kernel, max_planes)[1]
    none = np.zeros_like(count)
    return transformed.rates(c, k, machine, Forms(none, count, products, forward, none))


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost` over all tile sizes, in seconds."""
    forms = able_forms(problem)[1]
    each = _rates(problem.c, problem.k, problem.effective_kernel, _max_planes(problem), machine)
    # Operations overlap with loads and stores, but add at least this to them.
    backward = transformed.APART * forms.backward * (divide(problem.k, machine.isa.lanes) / machine.isa.fma_rate)
    return transformed.bound(problem, machine, forms.tiles, each._replace(transforms=each.transforms + backward))


@functools.lru_cache(maxsize=64)
def _form(problem: ConvProblem, rows: int, cols: int, products: int, machine: Machine) -> Form:
    """Cost terms that all candidates of a tile size share."""
    out = outputs(problem, rows, cols)
    work = operations(rows, cols, products, out[0])
    return transformed.form(problem, machine, out, planes(rows, cols, products), work)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: FMAs of products, operations and memory accesses of transforms, and traffic of weights."""
    return transformed.cost(_form(problem, params.rows, params.cols, params.products, machine), params)


def least_work(problem: ConvProblem, params: Params) -> tuple[int, int]:
    """Operations and weight bytes of the products in the frequency domain."""
    form = params.rows, params.cols, params.products
    return transformed.least_work(problem, planes(*form), outputs(problem, *form[:2]))


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel blocks."""
    return blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: the planes of `fft_weights` in float64, then float32 in the order of `transformed.packing`."""
    form = params.rows, params.cols, params.products
    steps = (step if taps > 1 else 1 for step, taps in zip(problem.dilation, (problem.r, problem.s), strict=True))
    transform = MicroRef(fft_weights, FftWeights(isa.lanes, *form, problem.r, problem.s, *steps))
    return transformed.widened(problem, transformed.packing(problem, params.v, isa, planes(*form), transform))


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the tile driver."""
    a = params.rows, params.cols
    form = *a, params.products
    m = outputs(problem, *a)
    types, ending = problem.types, (operands.residual is not None, problem.activation)
    forward = FftTransform(isa.lanes, *form, element=types.x)
    backward = FftTransform(isa.lanes, *form, *m, *ending, element=types.y)
    micro = MicroRef(fft_in, forward), MicroRef(fft_out, backward)
    last = words.last_of(problem, isa, micro[1])
    transform = Transform(m, a, planes(*form), *micro, scratch=params.rows * params.cols, last=last)
    return [tiled_call.step(problem, params, transform, isa, space, operands)]


SOLVER = Solver(
    name="fft",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
    accuracy="standard",
    rounding=("rows", "cols", "products"),
    low_precision=True,
    least_work=least_work,
    multiplies=F32,
    alike=alike,
    is_closed=is_closed,
)
