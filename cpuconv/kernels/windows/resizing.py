"""Resizing of planes: tables list the one or two inputs of each output row and column.

Planes are in channel blocks, or dense if outputs are copies. The work is cut into units (image, channel block, output
row).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa import Isa
from cpuconv.isa.typed import load_as_float, store_float
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.windows.planes import FIELDS, PlaneTile, plane_args, store_nearest
from cpuconv.kernels.windows.row_picks import pick_args
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import applied

Sources = tuple[np.ndarray, np.ndarray]
"""(outputs, taps): indices of the inputs of each output along an axis, and their weights. One tap: a copy."""


@dataclass(frozen=True)
class ResizeTile:
    """Lanes; inputs per output along an axis, 1 or 2; element type where there are 2; whether a number is added."""

    lanes: int
    taps: int
    element: Element = F32
    shifted: bool = False


@MicroKernel
def resize_rows(
    tile: ResizeTile, builder: ir.IRBuilder, x: Any, rows: Any, count: Any, columns: Any, y: Any, width: Any
) -> None:
    """Compute rows of outputs: copies of pixels, or weighted means of 2 x 2 pixels.

    Parameters
    ----------
    x
        Address of a plane.
    rows, count
        Address of the entries of the output rows, and their number; the addend, if any, follows each entry.
    columns
        Address of the entries of the output columns: the byte offset from x of each tap, then the float32 weight of
        each.
    y, width
        Address of the first row, and number of its outputs, at least 1; rows are adjacent.
    """
    vec, element = Vector(builder, tile.lanes), tile.element
    size = entry_bytes(tile.taps)

    def offsets(entry: Any) -> list[Any]:
        words = builder.inttoptr(entry, I64.as_pointer())
        return [builder.load(builder.gep(words, [I64(tap)])) for tap in range(tile.taps)]

    def weights(entry: Any) -> list[Any]:
        start = vec.offset(vec.pointer(entry), 8 * tile.taps)
        return [vec.broadcast(vec.offset(start, 4 * tap)) for tap in range(tile.taps if tile.taps > 1 else 0)]

    def mean(values: Sequence[Any], factors: Sequence[Any]) -> Any:
        return vec.fma(values[1], factors[1], vec.mul(values[0], factors[0])) if factors else values[0]

    def row(number: Any, _: list[Any]) -> list[Any]:
        own = builder.add(rows, builder.mul(number, I64(size + 8 * tile.shifted)))
        added = [vec.broadcast(vec.offset(vec.pointer(own), size))] if tile.shifted else []
        starts, row_weights = [builder.add(x, offset) for offset in offsets(own)], weights(own)
        line = vec.offset(vec.pointer(y), builder.mul(number, builder.mul(width, I64(vec.size))))

        def pixel(index: Any, values: list[Any]) -> list[Any]:
            entry = builder.add(columns, builder.mul(index, I64(size)))
            distances, factors = offsets(entry), weights(entry)
            target = vec.offset(line, builder.mul(index, I64(vec.size)))
            for piece in range(0, vec.size, vec.lanes * element.bytes):
                read = [[seen(start, offset, piece) for start in starts] for offset in distances]
                result = mean([mean(column, row_weights) for column in read], factors)
                for number in added:
                    result = vec.add(result, number)
                (store_nearest if tile.shifted else store_float)(vec, element, result, vec.offset(target, piece))
            return []

        repeat(vec, I64(0), width, [], pixel)
        return []

    def seen(start: Any, offset: Any, piece: int) -> Any:
        return load_as_float(vec, element, vec.offset(vec.pointer(builder.add(start, offset)), piece))

    repeat(vec, I64(0), count, [], row)


_call_rows = resize_rows.caller()


def entry_bytes(taps: int) -> int:
    """Bytes of a table's entry: offsets, and weights where there are several taps."""
    return 8 if taps == 1 else 12 * taps


@kernel(f"strip rows columns row_entry line {FIELDS}")
def resize(tile, worker, before, part, parts, args):
    """y = x resized, by the tables `rows` and `columns`; the entries of `rows` have `row_entry` bytes.

    `line`: bytes from a row of outputs to the next one, or 0 if entries have their offsets.
    """
    unit = args.units * part // parts
    end = args.units * (part + 1) // parts
    while unit < end:
        plane = unit // args.height
        first = unit - plane * args.height
        count = min(args.height - first, end - unit)
        unit += count
        image = plane // args.blocks
        block = plane - image * args.blocks
        _call_rows(
            args.strip,
            x=args.x + image * args.x_image + block * args.x_block,
            rows=args.rows + first * args.row_entry,
            count=count,
            columns=args.columns,
            y=args.y + image * args.y_image + block * args.y_block + first * args.line,
            width=args.width,
        )


def _fields(taps: int, added: float | None) -> list[Any]:
    """NumPy fields of an entry."""
    fields: list[Any] = [("offsets", np.int64, (taps,)), ("weights", np.float32, (taps if taps > 1 else 0,))]
    return fields if added is None else [*fields, ("added", np.float32, (2,))]


def _table(axis: int, added: float | None, sources: tuple[Sources, Sources], stride: int) -> np.ndarray:
    """The entries of an axis, whose inputs are `stride` bytes apart, each with the addend, if any."""
    inputs, weights = sources[axis]
    outputs, taps = inputs.shape
    table = np.zeros(outputs, _fields(taps, added))
    table["offsets"] = inputs * stride
    if taps > 1:
        table["weights"] = weights
    if added is not None:
        table["added"] = added
    return table


def resize_step(
    isa: Isa,
    x: TensorView,
    y: TensorView,
    sources: tuple[Sources, Sources],
    taps: int,
    parts: int,
    added: float | None = None,
) -> Step:
    """Make the call that resizes `x` to `y`, by `sources` of rows and of columns, 1 or 2 `taps` each.

    Both are in channel blocks, or, with one tap, dense. For 8-bit elements and 2 taps, `added` is added and the sum
    rounded to the nearest; otherwise they are truncated.
    """
    args: Args = {**plane_args(x, y)}
    if x.block == 1:
        args |= pick_args(isa, x, y, sources)
    else:
        tile = ResizeTile(isa.lanes, taps, x.element if taps > 1 else F32, added is not None)  # one tap: copied pixels
        args["strip"] = MicroRef(resize_rows, tile)
        args["rows"] = applied(functools.partial(_table, 0, added), sources, x.strides[2])
        args["columns"] = applied(functools.partial(_table, 1, None), sources, x.strides[3])
        args |= {"row_entry": np.dtype(_fields(taps, added)).itemsize, "line": y.strides[2]}
    return Step(resize, PlaneTile(isa.lanes), args, parts)
