"""Kernel of moves by index: rows of a tensor at indices are read, written or reduced."""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.copies.copying import copy_run
from cpuconv.kernels.copies.unaligned import copy_word
from cpuconv.kernels.emit.intrinsics import emitter, word
from cpuconv.kernels.indexing.combining import combine_element, combine_rows
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel

ELEMENT, ELEMENTS, RUN = range(3)
"""Rows: one element of `word` bytes, several, or bytes, at least 16 of them."""
FROM_END, FROM_START, CIRCULAR = range(3)
"""Negative indices: they count from the end of the axis, or are out of bounds; or a point's index is that of the first
one plus the point's number, modulo the size of the axis."""


GROUP = 8  # indices that are checked at once
ALONE, ALONG, BEHIND = range(3)
"""Points of one element, which are contiguous outside the tensor, as are their indices: in the tensor, elements are
contiguous along the axis that indices replace, or from point to point."""


@dataclass(frozen=True)
class IndexTile:
    """Tile of the kernel.

    Attributes
    ----------
    lanes : int
    index_bytes : int
        Bytes of an index: 4 or 8.
    row : int
        `ELEMENT`, `ELEMENTS` or `RUN`.
    word : int
        Bytes of an element.
    components : int
        Indices of a point.
    put : str
        "": rows are read; "none": written; else reduced.
    kind : str
        Element type of a reduction.
    ranged : bool
        Whether parts divide the memory of the tensor, not the units: several units or points may write one element.
    negative : int
        `FROM_END`, `FROM_START` or `CIRCULAR`.
    group : int
        `ALONG` or `BEHIND` where groups of indices are checked at once; else `ALONE`.
    """

    lanes: int
    index_bytes: int
    row: int
    word: int
    components: int
    put: str = ""
    kind: str = ""
    ranged: bool = False
    negative: int = FROM_END
    group: int = ALONE


@emitter
def _index(tile: Any, vec: Vector, address: Any) -> Any:
    """Load an index."""
    kind = ir.IntType(8 * tile.index_bytes)
    return vec.builder.sext(vec.builder.load(vec.builder.inttoptr(address, kind.as_pointer())), I64)


@emitter
def _from_start(tile: Any, vec: Vector, index: Any, size: Any, position: Any) -> Any:
    """The place along an axis that an index gives, which may count from the end; -1 if it is out of bounds."""
    builder = vec.builder
    if tile.negative == CIRCULAR:
        index = builder.srem(builder.add(index, position), size)
    if tile.negative != FROM_START:
        index = builder.select(builder.icmp_signed("<", index, I64(0)), builder.add(index, size), index)
    return builder.select(builder.icmp_unsigned("<", index, size), index, I64(-1))


@emitter
def _move_group(tile: Any, vec: Vector, data: Any, indices: Any, size: Any, step: Any, other: Any) -> Any:
    """Move the elements of `GROUP` points if each index is from 0 to below `size`; return whether it was so."""
    builder, kind = vec.builder, ir.VectorType(ir.IntType(8 * tile.index_bytes), GROUP)
    value = builder.load(builder.inttoptr(indices, kind.as_pointer()))
    value.align = tile.index_bytes
    if tile.index_bytes == 4:
        largest = I64((1 << 31) - 1)
        size = builder.trunc(builder.select(builder.icmp_signed("<", size, largest), size, largest), I32)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), size, I32(0))
    sizes = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, GROUP), [0] * GROUP))
    inside = builder.bitcast(builder.icmp_unsigned("<", value, sizes), ir.IntType(GROUP))
    valid = builder.icmp_unsigned("==", inside, ir.Constant(ir.IntType(GROUP), -1))
    with builder.if_then(valid, likely=True):
        for point in range(GROUP):
            index = _index.py_func(builder, tile, builder.add(indices, I64(point * tile.index_bytes)))
            place = builder.add(data, builder.mul(index, I64(tile.word) if tile.group == ALONG else step))
            place = builder.add(place, I64(point * tile.word if tile.group == BEHIND else 0))
            element = builder.add(other, I64(point * tile.word))
            source, target = (element, place) if tile.put else (place, element)
            (combine_element if tile.kind else copy_word).py_func(builder, tile, source, target)
    return builder.zext(valid, I64)


@emitter
def _set_word(tile: Any, vec: Vector, address: Any, value: Any) -> None:
    """Store an int64."""
    vec.builder.store(value, vec.builder.inttoptr(address, I64.as_pointer()))


@inline
def _report(tile, args, index, size):
    """Report an index out of bounds; of several, any one counts."""
    _set_word(tile, args.failure + 8, index)
    _set_word(tile, args.failure + 16, size)
    _set_word(tile, args.failure, args.name)


# --- rows -----------------------------------------------------------------------------------------------------------


def _element(tile, args, source, target):
    copy_word(tile, source, target)


def _elements(tile, args, source, target):
    for at in range(0, args.row, tile.word):
        copy_word(tile, source + at, target + at)


def _run(tile, args, source, target):
    copy_run(tile, source, target, args.row)


def _reduced_element(tile, args, source, target):
    combine_element(tile, source, target)


def _reduced_row(tile, args, source, target):
    combine_rows(tile, source, target, args.row // tile.word)


_COPIES = (_element, _elements, _run)


@specialise_on_tile(lambda tile: _COPIES[tile.row] if not tile.kind else _reduced_row if tile.row else _reduced_element)
def _move(tile, args, source, target):
    """Copy a row, or reduce it into the target."""


@inline
def _at(tile, args, place, other, low, high):
    """Move a row of the tensor, if it belongs to this part."""
    if tile.put == "":
        _move(tile, args, place, other)
    elif tile.ranged:
        if place >= low and place < high:
            _move(tile, args, other, place)
    else:
        _move(tile, args, other, place)


# --- points ---------------------------------------------------------------------------------------------------------


def _points_of_one_index(tile, args, data, indices, other, first, count, low, high):
    size, step = args.size, args.step
    data_point, index_point, other_point = args.data_point, args.index_point, args.other_point
    point = 0
    while point < count:
        place, near, element = data + point * data_point, indices + point * index_point, other + point * other_point
        moved = 0
        if tile.group and count - point >= GROUP:
            moved = GROUP * _move_group(tile, place, near, size, step, element)
        if moved == 0:
            index = _index(tile, near)
            at = _from_start(tile, index, size, first + point)
            if at < 0:
                _report(tile, args, index, size)
            else:
                _at(tile, args, place + at * step, element, low, high)
            moved = 1
        point += moved


def _points_of_several_indices(tile, args, data, indices, other, first, count, low, high):
    table, index_component = args.table, args.index_component
    data_point, index_point, other_point = args.data_point, args.index_point, args.other_point
    for point in range(count):
        place, sign = data + point * data_point, 0
        start = indices + point * index_point
        for component in range(tile.components):
            index = _index(tile, start + component * index_component)
            at = _from_start(tile, index, word(tile, table, 2 * component), first + point)
            place += at * word(tile, table, 2 * component + 1)
            sign = min(sign, at)
        if sign < 0:
            for component in range(tile.components):
                index, size = _index(tile, start + component * index_component), word(tile, table, 2 * component)
                if _from_start(tile, index, size, first + point) < 0:
                    _report(tile, args, index, size)
        else:
            _at(tile, args, place, other + point * other_point, low, high)


@specialise_on_tile(lambda tile: _points_of_several_indices if tile.components > 1 else _points_of_one_index)
def _points(tile, args, data, indices, other, first, count, low, high):
    """Move the rows of `count` points."""


@kernel(
    "data indices other units outer axes blocks block points turns index_turn other_turn data_point index_point "
    "other_point table index_component size step row span failure name"
)
def move_at_indices(tile, worker, before, part, parts, args):
    """Move rows between `other` and places of `data` at indices.

    Units are indices along the outer axes, and blocks of points. `outer` is the address of (size, strides of data,
    indices and other) of each of `axes` axes, fastest last. A unit repeats its points for each of its `turns`, in
    order. `table` has the size and stride of the axis of each index of a point, `size` and `step` those of the first.
    """
    first, last, low, high = args.units * part // parts, args.units * (part + 1) // parts, 0, 0
    if tile.ranged:
        first, last = 0, args.units
        low, high = args.data + args.span * part // parts, args.data + args.span * (part + 1) // parts
    for unit in range(first, last):
        start = unit % args.blocks * args.block
        rest = unit // args.blocks
        data = args.data + start * args.data_point
        indices = args.indices + start * args.index_point
        other = args.other + start * args.other_point
        for axis in range(args.axes - 1, -1, -1):
            size = word(tile, args.outer, 4 * axis)
            at = rest % size
            rest = rest // size
            data += at * word(tile, args.outer, 4 * axis + 1)
            indices += at * word(tile, args.outer, 4 * axis + 2)
            other += at * word(tile, args.outer, 4 * axis + 3)
        count = min(args.block, args.points - start)
        for turn in range(args.turns):
            _points(
                tile,
                args,
                data,
                indices + turn * args.index_turn,
                other + turn * args.other_turn,
                start,
                count,
                low,
                high,
            )
