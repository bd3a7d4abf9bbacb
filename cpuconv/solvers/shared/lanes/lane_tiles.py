"""Lane tiles that fit into registers, and their modelled time."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np

from cpuconv.elements import F16
from cpuconv.isa import Isa
from cpuconv.kernels.windows.group_words import GroupWords
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import words
from cpuconv.symbolic.sizes import memoised

_MAX_PIXELS = 64  # outputs per tile: limits code size and compile time
_MAX_FMAS = 640  # unrolled FMAs per tile
MAX_COLUMNS = 16
_MAX_LOOPED_ROWS = 4  # higher tiles of the looped kind spill: the rows of a column are loaded together
FEW_REGISTERS = 16
ISSUE = 4  # instructions per cycle
_OVERHEAD = 12.0  # cycles per tile in addition to its instructions
_OVERLAP = 1.5  # sums in flight over sums in use: the last FMAs of earlier rows have not finished
_WIDENING, _TO_BFLOAT, _TO_BYTES = 2, 2, 11  # conversion instructions per input vector, and per output vector


class Shape(NamedTuple):
    """Lane tile and its bands.

    Attributes
    ----------
    rows, cols : int
            Output rows and columns.
    held : bool
            Whether all weights of the kernel stay in registers.
    block : int
            Tile rows per band; 0: the input is read in place.
    mix : int
            Channels, or 32-bit groups, per group.
    words : GroupWords
            Shuffles of narrow elements to lanes.
    """

    rows: int
    cols: int
    held: bool
    block: int
    mix: int = 1
    words: GroupWords | None = None

    def seen(self, isa: Isa) -> Isa:
        """Instruction set for the tile model, in which the problem's product replaces the FMA."""
        return words.seen(isa, self.words.product) if self.words else isa

    @property
    def products(self) -> int:
        """Products per tap."""
        return self.mix * (self.words.product.parts if self.words else 1)


class Kernel(NamedTuple):
    """Properties of a problem, besides the tile, on which the cost of a tile depends."""

    r: int
    s: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    effective_kernel: tuple[int, int]
    activated: bool
    widening: int = 0  # instructions on FMA ports per input vector, in addition to FMAs
    narrowing: int = 0  # the same per output vector
    parts: int = 0  # for 32-bit groups: weight vectors that one is multiplied by
    cuts: int = 0  # for 32-bit groups: parts that one is split into; the input vector is shuffled for each

    @property
    def rows_in_flight(self) -> int:
        """Output rows whose windows overlap one input row."""
        return (self.effective_kernel[0] - 1) // self.stride[0] + 1

    def rows(self, shape: Shape) -> int:
        """Output rows a micro-kernel is compiled for; 0: any number."""
        return 0 if shape.held and shape.rows >= self.rows_in_flight else shape.rows


@memoised(64)  # called for all candidates of a problem
def kernel_of(problem: ConvProblem, groups: GroupWords | None = None) -> Kernel:
    """Kernel properties of a problem, independent of its plane size."""
    geometry = problem.r, problem.s, problem.stride, problem.dilation, problem.effective_kernel
    kernel = Kernel(*geometry, problem.activation is not None)
    if problem.types == ALL_F32 or problem.types.sum == F16:
        return kernel
    narrowing = _TO_BYTES if problem.types.sum.integer else _TO_BFLOAT
    if groups:
        return kernel._replace(narrowing=narrowing, parts=groups.product.parts, cuts=groups.product.cuts)
    return kernel._replace(widening=_WIDENING, narrowing=narrowing)


def window(problem: ConvProblem | Kernel, rows: int, cols: int) -> tuple[int, int]:
    """Input rows and columns in the windows of rows × cols outputs."""
    high, wide = problem.effective_kernel
    return (rows - 1) * problem.stride[0] + high, (cols - 1) * problem.stride[1] + wide


def sums_alive(kernel: Kernel, shape: Shape) -> int:
    """Sums in flight: all of the tile or, with `held`, those whose windows overlap one input row."""
    outputs = shape.rows * shape.cols
    if not shape.held:
        return outputs
    full, rest = divmod((kernel.r - 1) * kernel.dilation[0], kernel.stride[0])
    ending = min(shape.cols, (kernel.s - 1) * kernel.dilation[1] // kernel.stride[1] + 1)
    return min(outputs, full * shape.cols + (shape.cols if rest else ending))


def registers(kernel: Kernel, isa: Isa, shape: Shape) -> int:
    """Vector registers that a tile needs for sums, weights, an input vector and its permutation.

    LLVM orders looped code more freely, which takes two more, and another two where loads in flight take registers.
    With 16 registers, tiles with all weights in registers leave one free; those that used all spilled 13 to 15%.
    """
    spare = 1 + (shape.mix > 1) + (not isa.broadcast_operand) + 3 * kernel.cuts
    if shape.held:
        weights = kernel.r * kernel.s
        spare += isa.registers <= FEW_REGISTERS
        spare += 8 * (not isa.memory_operand)  # a bias, outputs to store, early loads; with fewer, values were spilled
    else:
        weights = min(kernel.s, (shape.cols - 1) * kernel.stride[1] // kernel.dilation[1] + 1)
        spare += 2 + kernel.activated + 2 * (not isa.memory_operand)
    return sums_alive(kernel, shape) + weights * max(1, kernel.cuts) + spare


def fits(kernel: Kernel, isa: Isa, shape: Shape) -> bool:
    """Whether a tile fits into registers and its code is small."""
    outputs = shape.rows * shape.cols
    body = outputs * kernel.s * (kernel.r if shape.held else shape.mix * max(1, kernel.parts))
    return (
        (outputs == 1 or (outputs <= _MAX_PIXELS and body <= _MAX_FMAS))
        and (shape.held or shape.rows <= max(_MAX_LOOPED_ROWS, shape.cols))
        and registers(kernel, isa, shape) <= isa.registers
    )


@functools.lru_cache(maxsize=1024)
def cycles(kernel: Kernel, isa: Isa, shape: Shape) -> float:
    """Modelled cycles of one tile, without bands."""
    outputs = shape.rows * shape.cols
    fmas = outputs * kernel.r * kernel.s * shape.mix * max(1, kernel.parts)
    if shape.held:
        high, wide = window(kernel, shape.rows, shape.cols)
        inputs, weights = high * wide, kernel.r * kernel.s
    else:
        passes = kernel.r * shape.mix
        wide = min(window(kernel, 1, shape.cols)[1], shape.cols * kernel.s)
        inputs, weights = passes * shape.rows * wide, passes * kernel.s
    shuffles = inputs * (kernel.cuts or (shape.mix - 1) / shape.mix)
    converted = inputs * kernel.widening + outputs * kernel.narrowing
    computed = (fmas + converted) / isa.fma_rate + 0.5 * shuffles  # shuffles share a port with FMAs
    loaded = (inputs + weights + outputs) / isa.load_rate
    busiest = max(
        computed + loaded if isa.in_order else max(computed, loaded),
        (fmas + converted + inputs + weights + shuffles + 2 * outputs) / ISSUE,
        fmas * isa.latency / min(outputs, _OVERLAP * sums_alive(kernel, shape)),
    )
    loop = 0.0 if shape.held else 2.0 * kernel.r * shape.mix
    return busiest + 0.5 * outputs * isa.store_cost + loop + _OVERHEAD


@functools.lru_cache(maxsize=256)
def all_tiles(kernel: Kernel, isa: Isa, mix: int) -> tuple[tuple[Shape, ...], np.ndarray]:
    """Tiles that fit, for any plane, those with all weights in registers first; and their rows, columns and cycles."""
    found: list[Shape] = []
    for held in (True, False) if mix == 1 else (False,):
        for cols in range(1, min(MAX_COLUMNS, isa.registers) + 1):
            column = [Shape(rows, cols, held, 0, mix) for rows in range(1, _MAX_PIXELS // cols + 1)]
            found += itertools.takewhile(lambda shape: fits(kernel, isa, shape), column)  # no taller tile fits
    figures = [(shape.rows, shape.cols, cycles(kernel, isa, shape)) for shape in found]
    return tuple(found), np.array(figures, np.float64).reshape(-1, 3).T.copy()
