"""Indices of the first element of each line by value, or of the first few: ArgMax, ArgMin, and TopK of small k.

Lanes are adjacent lines, each with its first elements so far in registers, in order; a new element moves down past all
that come before it. If lines are contiguous, lanes are the elements of one line, and their first ones are compared at
its end; that finds one element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.calls import call
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.partition import parts_if_shared
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.intrinsics import copy_element, word
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.search.order import Order
from cpuconv.kernels.search.packed_lines import ending_in, packed_input, packed_output
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import is_symbolic, now

MAX_FOUND = 8  # elements per line in registers
_VECTORS = 4  # vectors of adjacent lines, to read whole cache lines and more of each row
_ELEMENT_OPERATIONS = 10  # vector operations per element, and per element and further one in registers
_LINE_OPERATIONS = 40  # to compare the lanes of a line


@dataclass(frozen=True)
class ExtremesTile:
    """Tile of `find_extremes`.

    Attributes
    ----------
    lanes : int
    order : Order
    found : int
        Elements to find per line.
    vectors : int
        Vectors of adjacent lines; 0: lanes are elements of a line.
    final : bool
        Whether the last one of equal elements is found, not the first.
    """

    lanes: int
    order: Order
    found: int
    vectors: int
    final: bool


@MicroKernel
def find_extremes(
    tile: ExtremesTile, builder: ir.IRBuilder, x: Any, x_step: Any, size: Any, lines: Any, y: Any, y_step: Any
) -> None:
    """Write int64 indices of the first elements of lines of `size` elements.

    Adjacent lines: their elements are `x_step` bytes apart, the indices of each further element `y_step` bytes.
    Contiguous lines: `lines` of them are `x_step` bytes apart, their indices `y_step` bytes.
    """
    (_across if tile.vectors else _along)(tile, Vector(builder, tile.lanes), x, x_step, size, lines, y, y_step)


Found = tuple[Any, Any]  # keys and indices, in lanes


def _before(tile: ExtremesTile, builder: ir.IRBuilder, new: Any, old: Any) -> Any:
    """Whether a new key comes before an old one of a smaller index."""
    return builder.icmp_signed(">=" if tile.final else ">", new, old)


def _inserted(tile: ExtremesTile, vec: Vector, known: list[Found], new: Found) -> list[Found]:
    """Elements in order with a new one, whose index is greater than theirs."""
    builder = vec.builder

    def select(condition: Any, one: Found, other: Found) -> Any:
        return tuple(builder.select(condition, a, b) for a, b in zip(one, other, strict=True))

    made, entering = [], new  # the new element, or the one that it displaced before this place
    for old in known:
        before = _before(tile, builder, new[0], old[0])  # and so before all later ones
        made.append(select(before, entering, old))
        entering = select(before, old, new)
    return [*made, entering]


def _across(tile: ExtremesTile, vec: Any, x: Any, x_step: Any, size: Any, lines: Any, y: Any, y_step: Any) -> None:
    builder, order = vec.builder, tile.order
    x, y = vec.pointer(x), vec.pointer(y)

    def element(index: Any, column: int) -> Found:
        row = vec.offset(x, builder.mul(index, x_step))
        at = builder.trunc(index, order.word) if order.bytes < 8 else index
        return order.load(vec, vec.offset(row, column * vec.lanes * order.bits // 8)), vec.splat(at)

    def step(index: Any, values: list[Any]) -> list[Any]:
        pairs = [*zip(values[::2], values[1::2], strict=True)]
        made = []
        for column in range(tile.vectors):
            known = pairs[column * tile.found : (column + 1) * tile.found]
            made += _inserted(tile, vec, known, element(index, column))[: tile.found]
        return [value for pair in made for value in pair]

    start: list[Found] = []
    for column in range(tile.vectors):
        known: list[Found] = []
        for at in range(tile.found):
            known = _inserted(tile, vec, known, element(I64(at), column))
        start += known
    values = repeat(vec, I64(tile.found), size, [value for pair in start for value in pair], step)
    for at, index in enumerate(values[1::2]):
        column, number = divmod(at, tile.found)
        place = vec.offset(vec.offset(y, builder.mul(I64(number), y_step)), 8 * column * vec.lanes)
        _store_wide(vec, index, place)


def _store_wide(vec: Any, index: Any, place: Any) -> None:
    kind = ir.VectorType(I64, vec.lanes)
    index = index if index.type == kind else vec.builder.sext(index, kind)
    vec.builder.store(index, vec.builder.bitcast(place, kind.as_pointer())).align = 8


def _along(tile: ExtremesTile, vec: Any, x: Any, x_step: Any, size: Any, lines: Any, y: Any, y_step: Any) -> None:
    builder, order = vec.builder, tile.order
    x, y, bytes_ = vec.pointer(x), vec.pointer(y), order.bits // 8
    whole = builder.udiv(size, I64(vec.lanes))
    kind = ir.VectorType(order.word, vec.lanes)
    lanes = ir.Constant(kind, [*range(vec.lanes)])
    rest = first_lanes(vec, builder.sub(size, builder.mul(whole, I64(vec.lanes))))

    def line(number: Any, values: list[Any]) -> list[Any]:
        row = vec.offset(x, builder.mul(number, x_step))

        def compared(index: Any, known: list[Any], mask: Any = None) -> list[Any]:
            key = order.load(vec, vec.offset(row, builder.mul(index, I64(vec.lanes * bytes_))), mask)
            first = _before(tile, builder, key, known[0])
            first = first if mask is None else builder.and_(first, mask)
            at = known[2]
            following = builder.add(at, order.constant(vec, vec.lanes))
            return [builder.select(first, key, known[0]), builder.select(first, at, known[1]), following]

        none = order.constant(vec, -1) if tile.final else lanes
        known = repeat(vec, I64(0), whole, [order.constant(vec, order.last), none, lanes], compared)
        keys, indices, _ = compared(whole, known, rest)
        top = _reduced(vec, order, "smax", keys)
        outside = order.constant(vec, -1 if tile.final else (1 << 8 * order.bytes - 1) - 1)
        indices = builder.select(builder.icmp_signed("==", keys, vec.splat(top)), indices, outside)
        index = _reduced(vec, order, "smax" if tile.final else "smin", indices)
        index = index if order.bytes == 8 else builder.sext(index, I64)
        builder.store(index, builder.bitcast(vec.offset(y, builder.mul(number, y_step)), I64.as_pointer()))
        return values

    repeat(vec, I64(0), lines, [], line)


def _reduced(vec: Any, order: Order, name: str, value: Any) -> Any:
    text = f"llvm.vector.reduce.{name}.v{vec.lanes}i{order.word.width}"
    return call(vec.builder, text, order.word, [value])


_call = find_extremes.caller()


@dataclass(frozen=True)
class DriverTile:
    """Tile of the driver: bytes of elements, and whether lines are contiguous."""

    lanes: int
    bytes: int
    along: bool


def _contiguous(tile, args, part, parts):
    first = args.rows * part // parts
    _call(
        args.find_extremes,
        x=args.x + first * args.x_row,
        x_step=args.x_row,
        size=args.size,
        lines=args.rows * (part + 1) // parts - first,
        y=args.indices + first * args.y_row,
        y_step=args.y_row,
    )
    if args.values != 0:
        for row in range(first, args.rows * (part + 1) // parts):
            index = word(tile, args.indices + row * args.y_row, 0)
            copy_element(tile, args.x + row * args.x_row + index * tile.bytes, args.values + row * tile.bytes)


def _adjacent(tile, args, part, parts):
    units = args.rows * args.blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        row = unit // args.blocks
        first = min((unit - row * args.blocks) * args.block, args.inner - args.block)
        x = args.x + row * args.x_row + first * tile.bytes
        y = row * args.y_row + 8 * first
        _call(
            args.find_extremes,
            x=x,
            x_step=args.inner * tile.bytes,
            size=args.size,
            lines=0,
            y=args.indices + y,
            y_step=8 * args.inner,
        )
        if args.values != 0:
            for number in range(args.found):
                for at in range(args.block):
                    place = y // 8 + number * args.inner + at
                    index = word(tile, args.indices, place)
                    source = x + (index * args.inner + at) * tile.bytes
                    copy_element(tile, source, args.values + place * tile.bytes)


@specialise_on_tile(lambda tile: _contiguous if tile.along else _adjacent)
def _lines(tile, args, part, parts):
    """Find the extremes of a part of the lines."""


@kernel("find_extremes x values indices rows size inner block blocks found x_row y_row")
def extremes(tile, worker, before, part, parts, args):
    """Indices, and values if wanted, of the first elements of lines of (rows, size, inner); without overlap of parts.

    Units are lines, or (row, block of adjacent lines); the last block of a row overlaps the one before.
    """
    _lines(tile, args, part, parts)


def are_adjacent(processor: Processor, found: int, inner: int) -> bool:
    """Whether the kernel serves lines of which `inner` are adjacent, for `found` elements each."""
    return not is_symbolic(found) and found <= MAX_FOUND and inner >= processor.isa.lanes


def seconds(processor: Processor, lines: int, size: int, found: int, along: bool) -> float:
    """Modelled time, in seconds."""
    lines, size, found = map(now, (lines, size, found))
    operations = lines * (size * found * _ELEMENT_OPERATIONS + (_LINE_OPERATIONS * processor.isa.lanes if along else 0))
    return processor.computing(operations)


def extremes_steps(
    processor: Processor,
    space: Space,
    x: TensorView,
    results: Sequence[TensorView | None],
    axis: int,
    order: Order,
    found: int = 1,
    final: bool = False,
) -> list[Step]:
    """Kernel calls for the first `found` elements along an axis.

    `results`: places of values and indices with all axes of `x`; None: not wanted. Not both may be None. More than one
    element needs `are_adjacent`.
    """
    lanes, size = processor.isa.lanes, x.shape[axis]
    along = not are_adjacent(processor, found, math.prod(x.shape[axis + 1 :]))
    if along:
        x, results = ending_in(x, axis), [each and ending_in(each, axis) for each in results]
    inner = 1 if along else math.prod(x.shape[axis + 1 :])
    rows = math.prod(x.shape) // (size * inner)
    x, steps = packed_input(processor, space, x)
    after, places = list[Step](), list[TensorView | None]()
    for result in results:
        made, moved = (None, []) if result is None else packed_output(processor, space, result)
        places, after = [*places, made], [*after, *moved]
    values, indices = places
    vectors = 0 if along else _VECTORS if found == 1 and inner >= _VECTORS * lanes else 1
    itemsize, block = x.dtype.itemsize, max(1, vectors) * lanes
    args: Args = {
        "find_extremes": MicroRef(find_extremes, ExtremesTile(lanes, order, found, vectors, final)),
        "x": x.ref,
        "values": values.ref if values else 0,
        "indices": indices.ref if indices else space.reserve(8 * rows * found * inner),
        "rows": rows,
        "size": size,
        "inner": inner,
        "block": block,
        "blocks": divide(inner, block),
        "found": found,
        "x_row": size * inner * itemsize,
        "y_row": 8 * found * inner,
    }
    parts = parts_if_shared(rows * size * inner) if processor.threads > 1 else 0
    return [*steps, Step(extremes, DriverTile(lanes, itemsize, along), args, parts), *after]
