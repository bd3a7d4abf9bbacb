"""Lane tiles that stay in registers, and what one takes by the model."""

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

_MOST_PIXELS = 64  # outputs of a tile: bounds code size and compile time
_MOST_FMAS = 640  # straight-line FMAs of a tile
MOST_COLUMNS = 16
_MOST_LOOPED_ROWS = 4  # taller tiles of the looped kind spill: the rows of a column are loaded together
FEW_REGISTERS = 16
ISSUE = 4  # instructions a cycle
_OVERHEAD = 12.0  # cycles a tile, beside its instructions
_OVERLAP = 1.5  # sums in flight, over those that are held: of the rows before, the last FMAs are still on their way
_WIDENING, _TO_BFLOAT, _TO_BYTES = 2, 2, 11  # instructions of an input vector, and of an output vector


class Shape(NamedTuple):
    """A tile and its bands.

    Attributes
    ----------
    rows, cols : int
        Outputs of a tile.
    held : bool
        Whether the weights of the whole kernel stay in registers.
    block : int
        Tile rows of a band; 0: the input is read in place.
    mix : int
        Channels of a group, or words.
    words : GroupWords
        Of narrow elements, how words reach lanes.
    """

    rows: int
    cols: int
    held: bool
    block: int
    mix: int = 1
    words: GroupWords | None = None

    def seen(self, isa: Isa) -> Isa:
        """The instruction set for the model: its FMA is the product."""
        return words.seen(isa, self.words.product) if self.words else isa

    @property
    def products(self) -> int:
        """Products of a tap."""
        return self.mix * (self.words.product.parts if self.words else 1)


class Kernel(NamedTuple):
    """What the cost of a tile depends on, beside the tile."""

    r: int
    s: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    effective_kernel: tuple[int, int]
    activated: bool
    widening: int = 0  # instructions beside FMAs, on their ports: for an input vector
    narrowing: int = 0  # and for an output vector
    parts: int = 0  # of words: vectors of weights that one is multiplied by
    cuts: int = 0  # of words, parts that one is split into, for each of which the input vector is shuffled

    @property
    def rows_in_flight(self) -> int:
        """Output rows whose windows share an input row."""
        return (self.effective_kernel[0] - 1) // self.stride[0] + 1

    def rows(self, shape: Shape) -> int:
        """Output rows that a micro-kernel is compiled for; 0: any number."""
        return 0 if shape.held and shape.rows >= self.rows_in_flight else shape.rows


@memoised(64)  # all candidates of a problem ask
def kernel_of(problem: ConvProblem, groups: GroupWords | None = None) -> Kernel:
    """The problem without its sizes."""
    geometry = problem.r, problem.s, problem.stride, problem.dilation, problem.effective_kernel
    kernel = Kernel(*geometry, problem.activation is not None)
    if problem.types == ALL_F32 or problem.types.sum == F16:
        return kernel
    narrowing = _TO_BYTES if problem.types.sum.integer else _TO_BFLOAT
    if groups:
        return kernel._replace(narrowing=narrowing, parts=groups.product.parts, cuts=groups.product.cuts)
    return kernel._replace(widening=_WIDENING, narrowing=narrowing)


def window(problem: ConvProblem | Kernel, rows: int, cols: int) -> tuple[int, int]:
    """Input rows and columns under rows × cols outputs."""
    high, wide = problem.effective_kernel
    return (rows - 1) * problem.stride[0] + high, (cols - 1) * problem.stride[1] + wide


def sums_alive(kernel: Kernel, shape: Shape) -> int:
    """Outputs held at once: all of the tile or, with `held`, those under one input row."""
    outputs = shape.rows * shape.cols
    if not shape.held:
        return outputs
    full, rest = divmod((kernel.r - 1) * kernel.dilation[0], kernel.stride[0])
    ending = min(shape.cols, (kernel.s - 1) * kernel.dilation[1] // kernel.stride[1] + 1)
    return min(outputs, full * shape.cols + (shape.cols if rest else ending))


def registers(kernel: Kernel, isa: Isa, shape: Shape) -> int:
    """Vector registers that a tile needs: sums, weights, an input vector and its permutation.

    LLVM orders looped code more freely, which takes two more, and another two where loads in flight take registers. Of
    16 registers, tiles that hold their weights leave one: those that filled all spilled 13 to 15% of their sums.
    """
    spare = 1 + (shape.mix > 1) + (not isa.broadcast_operand) + 3 * kernel.cuts
    if shape.held:
        weights = kernel.r * kernel.s
        spare += isa.registers <= FEW_REGISTERS
        spare += 8 * (not isa.memory_operand)  # a bias, outputs to be stored, loads ahead; fewer spilled
    else:
        weights = min(kernel.s, (shape.cols - 1) * kernel.stride[1] // kernel.dilation[1] + 1)
        spare += 2 + kernel.activated + 2 * (not isa.memory_operand)
    return sums_alive(kernel, shape) + weights * max(1, kernel.cuts) + spare


def fits(kernel: Kernel, isa: Isa, shape: Shape) -> bool:
    """Whether a tile stays in registers and its code is small."""
    outputs = shape.rows * shape.cols
    body = outputs * kernel.s * (kernel.r if shape.held else shape.mix * max(1, kernel.parts))
    return (
        (outputs == 1 or (outputs <= _MOST_PIXELS and body <= _MOST_FMAS))
        and (shape.held or shape.rows <= max(_MOST_LOOPED_ROWS, shape.cols))
        and registers(kernel, isa, shape) <= isa.registers
    )


@functools.lru_cache(maxsize=1024)
def cycles(kernel: Kernel, isa: Isa, shape: Shape) -> float:
    """Modelled cycles of one tile, whatever its bands."""
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
    computed = (fmas + converted) / isa.fma_rate + 0.5 * shuffles  # they share a port
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
    """Tiles that fit, whatever the plane: those that hold all weights first; and their rows, columns and cycles."""
    found: list[Shape] = []
    for held in (True, False) if mix == 1 else (False,):
        for cols in range(1, min(MOST_COLUMNS, isa.registers) + 1):
            column = [Shape(rows, cols, held, 0, mix) for rows in range(1, _MOST_PIXELS // cols + 1)]
            found += itertools.takewhile(lambda shape: fits(kernel, isa, shape), column)  # no higher one does
    figures = [(shape.rows, shape.cols, cycles(kernel, isa, shape)) for shape in found]
    return tuple(found), np.array(figures, np.float64).reshape(-1, 3).T.copy()
