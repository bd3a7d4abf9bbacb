"""Reduction of planes in channel blocks to one or a few pixels: global poolings, reductions, windows of any size.

A rectangle of pixels is reduced row by row, each row by several accumulators, which shortens dependency chains. The
work is cut into units (image, channel block, output row).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa import Isa
from cpuconv.isa.typed import load_as_float, store_float
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.elementwise.halves import half_emitter
from cpuconv.kernels.emit.fold import FOLDS, repeat
from cpuconv.kernels.emit.intrinsics import word, zero_vector
from cpuconv.kernels.windows.planes import FIELDS, PlaneTile, plane_args, store_nearest
from cpuconv.kernels.windows.pool_strip import factor_bytes
from cpuconv.kernels.windows.pooling import Pooling
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import applied, is_symbolic, items_of, sizes_array

_TOGETHER = 8  # accumulators per row
_LONGEST = 512  # pixels of a plane that is reduced as one row


@dataclass(frozen=True)
class RectangleTile:
    """How a rectangle is reduced, whether the result is multiplied and added to; element types of input and result.

    Where these are equal, the whole pixel is reduced; otherwise the part that becomes a pixel of float32. Extremes of
    float16 are computed in float16.
    """

    lanes: int
    fold: str
    scaled: bool
    element: Element = F32
    y: Element = F32
    shifted: bool = False


@dataclass(frozen=True)
class Rectangle:
    """Pixels in memory, as LLVM values; byte strides; `rows` and `taps` (pixels per row) are at least 1.

    One vector of `element` is read per pixel.
    """

    x: Any
    line: Any
    rows: Any
    step: Any
    taps: Any
    element: Element = F32

    def fold(self, vec: Vector, name: str, term: Callable[[Any], Any] = lambda value: value) -> Any:
        """Emit the reduction of `term` of all pixels."""
        builder, fold = vec.builder, FOLDS[name]
        wide = builder.udiv(self.taps, I64(_TOGETHER))

        def pixel(row: Any, tap: Any) -> Any:
            return term(load_as_float(vec, self.element, vec.pointer(builder.add(row, builder.mul(tap, self.step)))))

        def whole_row(index: Any, values: list[Any]) -> list[Any]:
            row = builder.add(self.x, builder.mul(index, self.line))

            def eight(index: Any, sums: list[Any]) -> list[Any]:
                start = builder.mul(index, I64(_TOGETHER))
                return [fold(vec, s, pixel(row, builder.add(start, I64(i)))) for i, s in enumerate(sums)]

            def one(index: Any, sums: list[Any]) -> list[Any]:
                return [fold(vec, sums[0], pixel(row, index))]

            sums = repeat(vec, I64(0), wide, [neutral] * _TOGETHER, eight)
            while len(sums) > 1:
                sums = [fold(vec, a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
            sums = repeat(vec, builder.mul(wide, I64(_TOGETHER)), self.taps, sums, one)
            return [fold(vec, values[0], sums[0])]

        neutral = vec.constant(0.0) if name == "sum" else pixel(self.x, I64(0))
        return repeat(vec, I64(0), self.rows, [neutral], whole_row)[0]


@MicroKernel
def fold_rectangle(
    tile: RectangleTile,
    builder: ir.IRBuilder,
    x: Any,
    line: Any,
    rows: Any,
    step: Any,
    taps: Any,
    y: Any,
    factor: Any,
) -> None:
    """Reduce `rows` x `taps` pixels from x on to the pixel at y; multiply by the factor at an address, and add the
    addend that follows it."""
    element = tile.element
    vec = half_emitter(Vector(builder, tile.lanes), element, tile.fold != "sum" and tile.y == element)
    for piece in range(0, 4 * tile.lanes, vec.lanes * tile.y.bytes):
        start = builder.add(x, I64(piece)) if piece else x
        value = Rectangle(start, line, rows, step, taps, element).fold(vec, tile.fold)
        if tile.scaled:
            value = vec.mul(value, vec.broadcast(vec.pointer(factor)))
        if tile.shifted:
            value = vec.add(value, vec.broadcast(vec.offset(vec.pointer(factor), F32.bytes)))
        (store_nearest if tile.shifted else store_float)(vec, tile.y, value, vec.offset(vec.pointer(y), piece))


_call_rectangle = fold_rectangle.caller()


@kernel(f"rectangle rows columns line step factors factor {FIELDS}")
def fold_windows(tile, worker, before, part, parts, args):
    """y = windows of x, reduced one by one.

    `rows` and `columns` have two int64 words per output row and column: byte offset of the first row (column) under the
    window, and the number of rows (columns). `factors` has one entry per output, of `factor` bytes.
    """
    pixel = 4 * tile.lanes
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        row = unit % args.height
        plane = unit // args.height
        image = plane // args.blocks
        block = plane - image * args.blocks
        first, rows = word(tile, args.rows, 2 * row), word(tile, args.rows, 2 * row + 1)
        x = args.x + image * args.x_image + block // tile.side * args.x_block + first
        if tile.side > 1:
            x += block % tile.side * (4 * tile.lanes // tile.side)
        y = args.y + image * args.y_image + block * args.y_block + row * args.width * pixel
        factors = args.factors + args.factor * row * args.width
        for column in range(args.width):
            start, taps = word(tile, args.columns, 2 * column), word(tile, args.columns, 2 * column + 1)
            target = y + column * pixel
            if rows == 0 or taps == 0:
                zero_vector(tile, target)
            else:
                factor = factors + args.factor * column
                _call_rectangle(
                    args.rectangle,
                    x=x + start,
                    line=args.line,
                    rows=rows,
                    step=args.step,
                    taps=taps,
                    y=target,
                    factor=factor,
                )


def _windows_step(
    isa: Isa,
    x: TensorView,
    y: TensorView,
    fold: str,
    tables: tuple[np.ndarray, np.ndarray],
    steps: tuple[int, int],
    factors: np.ndarray | None,
    parts: int,
) -> Step:
    shifted = factors is not None and not is_symbolic(factors) and factors.ndim == 3
    tile = RectangleTile(isa.lanes, fold, factors is not None, x.element, y.element, shifted)
    args: Args = {
        **plane_args(x, y),
        "rectangle": MicroRef(fold_rectangle, tile),
        "rows": tables[0],
        "columns": tables[1],
        "line": steps[0],
        "step": steps[1],
        "factors": 0
        if factors is None
        else factors
        if is_symbolic(factors)
        else np.ascontiguousarray(factors, np.float32),
        "factor": factor_bytes(shifted),
    }
    return Step(fold_windows, PlaneTile(isa.lanes, x.block // y.block), args, parts)


def windows_step(isa: Isa, x: TensorView, y: TensorView, pooling: Pooling, parts: int) -> Step:
    """Make the call that pools `x`, in channel blocks, to `y`, with windows of any size."""
    tables = []
    for axis in (0, 1):
        seen = [pooling.taps(axis, output, x.physical[2 + axis]) for output in range(y.physical[2 + axis])]
        tables.append(np.array([(one.start * x.strides[2 + axis], len(one)) for one in seen], np.int64))
    steps = [gap * stride for gap, stride in zip(pooling.dilations, x.strides[2:4], strict=True)]
    return _windows_step(isa, x, y, pooling.fold, (tables[0], tables[1]), (steps[0], steps[1]), pooling.factors, parts)


def plane_shape(h: int, w: int) -> tuple[int, int]:
    """Rows, and pixels per row, of a reduction over a contiguous plane; a small plane is one row."""
    return (1, h * w) if h * w <= _LONGEST else (h, w)


def _contiguous(factors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(factors, np.float32)


def _factor(number: float) -> np.ndarray:
    return np.array([number], np.float32)


def planes_step(isa: Isa, x: TensorView, y: TensorView, fold: str, factor: float | None, parts: int) -> Step:
    """Make the call that reduces each plane of `x`, in channel blocks, to the one pixel of `y`, times a factor.

    `y` has the same element type, or float32.
    """
    rows, taps = items_of(applied(plane_shape, *x.physical[2:4]))
    tables = sizes_array([0, rows]).reshape(1, 2), sizes_array([0, taps]).reshape(1, 2)
    pixel = x.strides[3]
    factors = None if factor is None else applied(_factor, factor)
    return _windows_step(isa, x, y, fold, tables, (taps * pixel, pixel), factors, parts)
