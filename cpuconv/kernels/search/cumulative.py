"""CumSum: cumulative sums along an axis.

Lanes are adjacent lines, or, if lines are contiguous, elements of one line: a vector's own sums take a step per
doubling of their distance (Hillis and Steele, 1986), then the sum of all elements before it is added. 16-bit
floating-point types are summed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F16, F32
from cpuconv.isa.typed import load_as_float, store_float
from cpuconv.isa.vector import F32 as FLOAT
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.search.extremes import are_adjacent
from cpuconv.kernels.search.order import load_integers, store_integers
from cpuconv.kernels.search.packed_lines import ending_in, packed_input, packed_output
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_VECTORS = 4  # vectors of adjacent lines, to hide the latency of an addition
_FLOATS = {"float32": F32, "float16": F16, "bfloat16": BF16}  # types that are summed in float32
DTYPES = (*_FLOATS, "float64", "int32", "uint32", "int64", "uint64")
"""Names of the types that kernels sum."""


@dataclass(frozen=True)
class SumsTile:
    """Tile of `accumulate`.

    Attributes
    ----------
    lanes : int
    dtype : str
        Name of the element type.
    vectors : int
        Vectors of adjacent lines; 0: lanes are elements of a line.
    exclusive : bool
        Whether a sum leaves out its own element.
    reverse : bool
        Whether sums along a contiguous line start at its end.
    """

    lanes: int
    dtype: str
    vectors: int
    exclusive: bool
    reverse: bool

    @property
    def bits(self) -> int:
        """Size of an element, in bits."""
        return 16 if self.dtype == "bfloat16" else 8 * np.dtype(self.dtype).itemsize


class _Elements:
    """Vectors of elements of a type, and their sums."""

    def __init__(self, tile: SumsTile, builder: ir.IRBuilder) -> None:
        self.vec, self.builder = Vector(builder, tile.lanes), builder
        self._integer, self._element = ir.IntType(tile.bits), _FLOATS.get(tile.dtype)
        self._floating = "float" in tile.dtype
        double = ir.DoubleType() if self._floating else self._integer
        self.type = ir.VectorType(double if self._element is None else FLOAT, tile.lanes)

    def load(self, address: Any, mask: Any = None) -> Any:
        """The elements at an address; 0 outside the mask."""
        if self._element is not None:
            return load_as_float(self.vec, self._element, address, mask)
        return self.builder.bitcast(load_integers(self.vec, address, self._integer, mask), self.type)

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        """Store sums, rounded to the type."""
        if self._element is not None:
            store_float(self.vec, self._element, value, address, mask)
        else:
            kind = ir.VectorType(self._integer, self.vec.lanes)
            store_integers(self.vec, self.builder.bitcast(value, kind), address, mask)

    def add(self, a: Any, b: Any) -> Any:
        """a + b; integers wrap."""
        return self.builder.fadd(a, b) if self._floating else self.builder.add(a, b)

    @property
    def zeros(self) -> Any:
        """Zero in every lane."""
        return ir.Constant(self.type, None)


@MicroKernel
def accumulate(
    tile: SumsTile, builder: ir.IRBuilder, x: Any, y: Any, step: Any, size: Any, lines: Any, line_step: Any
) -> None:
    """Sums of lines of `size` elements.

    Adjacent lines: an element follows after `step` bytes. Contiguous lines: `lines` of them,
    `line_step` bytes apart.
    """
    elements = _Elements(tile, builder)
    vec = elements.vec
    (_across if tile.vectors else _along)(tile, elements, vec.pointer(x), vec.pointer(y), step, size, lines, line_step)


def _across(tile: SumsTile, of: _Elements, x: Any, y: Any, step: Any, size: Any, lines: Any, line_step: Any) -> None:
    def row(index: Any, sums: list[Any]) -> list[Any]:
        start, made = of.builder.mul(index, step), []
        for column, known in enumerate(sums):
            at = of.builder.add(start, I64(column * tile.lanes * tile.bits // 8))
            made.append(of.add(known, of.load(of.vec.offset(x, at))))
            of.store(known if tile.exclusive else made[-1], of.vec.offset(y, at))
        return made

    repeat(of.vec, I64(0), size, [of.zeros] * tile.vectors, row)


def _along(tile: SumsTile, of: _Elements, x: Any, y: Any, step: Any, size: Any, lines: Any, line_step: Any) -> None:
    vec, builder = of.vec, of.builder
    lanes, vector = vec.lanes, I64(vec.lanes * tile.bits // 8)
    whole = builder.udiv(size, I64(lanes))
    rest = first_lanes(vec, builder.sub(size, builder.mul(whole, I64(lanes))))
    order = range(lanes)[::-1] if tile.reverse else range(lanes)  # lanes from the first summand to the last

    def moved(value: Any, before: Any, distance: int) -> Any:
        """Move lanes by a distance in the order of summation; those of `before` enter."""
        sources = [0] * lanes
        for place, lane in enumerate(order):
            sources[lane] = order[place - distance] + lanes if place >= distance else order[place - distance + lanes]
        return vec.shuffle(before, value, sources)

    def line(number: Any, values: list[Any]) -> list[Any]:
        start = builder.mul(number, line_step)

        def summed(index: Any, sums: list[Any], mask: Any = None) -> list[Any]:
            at = builder.add(start, builder.mul(index, vector))
            value, distance = of.load(vec.offset(x, at), mask), 1
            while distance < lanes:
                value, distance = of.add(value, moved(value, of.zeros, distance)), 2 * distance
            value = of.add(value, sums[0])
            of.store(moved(value, sums[0], 1) if tile.exclusive else value, vec.offset(y, at), mask)
            return [vec.shuffle(value, value, [order[-1]] * lanes)]

        if tile.reverse:
            repeat(
                vec, I64(0), whole, summed(whole, [of.zeros], rest),
                lambda at, sums: summed(builder.sub(builder.sub(whole, I64(1)), at), sums),
            )  # fmt: skip
        else:
            summed(whole, repeat(vec, I64(0), whole, [of.zeros], summed), rest)
        return values

    repeat(vec, I64(0), lines, [], line)


_call = accumulate.caller()


@dataclass(frozen=True)
class DriverTile:
    """Tile of the driver: bytes of elements, and whether lanes are adjacent lines."""

    bytes: int
    across: bool


@kernel("accumulate x y start step size inner block blocks rows row")
def accumulate_lines(tile, worker, before, part, parts, args):
    """Sum lines of (rows, size, inner).

    Units are lines, or (row, block of adjacent lines); the last block of a row overlaps the one before.
    """
    units = args.rows * args.blocks
    first = units * part // parts
    last = units * (part + 1) // parts
    if tile.across:
        for unit in range(first, last):
            row = unit // args.blocks
            column = min((unit - row * args.blocks) * args.block, args.inner - args.block)
            at = row * args.row + args.start + column * tile.bytes
            _call(args.accumulate, x=args.x + at, y=args.y + at, step=args.step, size=args.size, lines=0, line_step=0)
    else:
        _call(
            args.accumulate,
            x=args.x + first * args.row,
            y=args.y + first * args.row,
            step=0,
            size=args.size,
            lines=last - first,
            line_step=args.row,
        )


def cumulative_steps(
    processor: Processor, space: Space, x: TensorView, y: TensorView, axis: int, exclusive: bool, reverse: bool
) -> list[Step]:
    """Kernel calls for the cumulative sums of `x` along an axis, in the order of its elements or reversed."""
    lanes, size = processor.isa.lanes, x.shape[axis]
    across = are_adjacent(processor, 1, math.prod(x.shape[axis + 1 :]))
    inner = math.prod(x.shape[axis + 1 :]) if across else 1
    x, y = (x, y) if across else (ending_in(x, axis), ending_in(y, axis))
    x, before = packed_input(processor, space, x)
    y, after = packed_output(processor, space, y)
    vectors = 0 if not across else _VECTORS if inner >= _VECTORS * lanes else 1
    step, block = inner * x.dtype.itemsize, max(1, vectors * lanes)
    tile = SumsTile(lanes, x.dtype.name, vectors, exclusive, reverse and not across)
    args: Args = {
        "accumulate": MicroRef(accumulate, tile),
        "x": x.ref,
        "y": y.ref,
        "start": (size - 1) * step if reverse else 0,
        "step": -step if reverse else step,
        "size": size,
        "inner": inner,
        "block": block,
        "blocks": divide(inner, block),
        "rows": math.prod(x.shape) // (size * inner),
        "row": size * step,
    }
    parts = processor.parts(2 * x.size)
    return [*before, Step(accumulate_lines, DriverTile(x.dtype.itemsize, across), args, parts), *after]
