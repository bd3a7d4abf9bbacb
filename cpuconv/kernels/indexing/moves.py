"""Moves at indices that are known at run time: which rows of a tensor they read or write, and their kernel calls.

A move is described by axes, as in `kernels.copies.movement`, and the tensor's axes that indices replace. Rows are the
contiguous elements behind these axes. So one kernel serves all ranks, and Gather, GatherElements, GatherND and their
inverse operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from baselib.data_classes import dataclass
from cpuconv.kernels.binding.failure import FAILURE, name_words
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, Ref, Space, Step
from cpuconv.kernels.binding.tensor_view import DENSE, TensorView
from cpuconv.kernels.copies.copying import SHORTEST_RUN, run_lanes
from cpuconv.kernels.copies.movement import merge_axes
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.indexing.driver import (
    ALONE,
    ALONG,
    BEHIND,
    CIRCULAR,
    ELEMENT,
    ELEMENTS,
    FROM_END,
    FROM_START,
    RUN,
    IndexTile,
    move_at_indices,
)
from cpuconv.problem.integers import divide
from cpuconv.symbolic.sizes import greatest, least, now, sizes_array

_WORDS = (1, 2, 4, 8, 16)  # bytes of rows that are moved as one element
_LONG = 8  # points from which an axis behind the indexed one is the inner loop
_UNIT = 1 << 15  # bytes per unit of work, where points allow
_UNITS, _MIN_POINTS = 4, 64  # units of turns per thread, where points allow, and their minimum points
_CYCLES = 2.5  # cycles per point and index


class Axis(NamedTuple):
    """An axis of a move: size, and byte strides in the tensor, in the indices, and in the other tensor."""

    size: int
    data: int
    indices: int
    other: int


_ONE = Axis(1, 0, 0, 0)


@dataclass(frozen=True)
class IndexedRows:
    """Rows of a tensor at indices, and their places in another tensor.

    Attributes
    ----------
    outer : list of Axis
        Rows of different indices along these axes are different ones.
    points : Axis
        The innermost loop; each point has an index for each of `components`.
    components : list of (int, int)
        Size and byte stride of the axes of the tensor that indices replace.
    row : int
        Bytes per row.
    turns : Axis
        Repetitions of the points with other indices; different points have different rows.
    index_component : int
        Bytes between the indices of a point.
    negative : int
        As `IndexTile.negative`.
    """

    outer: list[Axis]
    points: Axis
    components: list[tuple[int, int]]
    row: int
    turns: Axis = _ONE
    index_component: int = 0
    negative: int = FROM_END

    @property
    def ordered(self) -> bool:
        """Whether points must be in order, as several may have the same row."""
        return self.turns is _ONE


def _merged(axes: Iterable[Iterable[int]]) -> list[Axis]:
    return [Axis(*axis) for axis in merge_axes([tuple(axis) for axis in axes])]


def elements_along(data: TensorView, indices: TensorView, other: TensorView, axis: int) -> IndexedRows:
    """Elements whose index along one axis is given, in any order of strides; other indices are their own position.

    Indices that are the same along the last axes, as of an Expand, are those of rows.
    """
    axes = [Axis(*each) for each in zip(indices.shape, data.strides, indices.strides, other.strides, strict=True)]
    before, along, behind = _merged(axes[:axis]), axes[axis]._replace(data=0), _merged(axes[axis + 1 :])
    components, row = [(data.shape[axis], data.strides[axis])], data.dtype.itemsize
    if behind and behind[-1][1:] == (row, 0, row):
        row *= behind.pop().size
    if behind and now(behind[-1].size) >= least(_LONG, now(along.size)):
        points = behind.pop()
        return IndexedRows(before + behind, points, components, row, turns=along)
    return IndexedRows(before + behind, along, components, row)


def slices_at(data: TensorView, indices: TensorView, other: TensorView, batch: int) -> IndexedRows:
    """Slices of dense data whose first indices, behind `batch` common axes, are the last axis of dense indices."""
    *shape, count = indices.shape
    axes = zip(data.shape[:batch], data.strides, indices.strides, other.strides, strict=False)
    points = merge_axes(list(zip(shape[batch:], indices.strides[batch:], other.strides[batch:], strict=False)))
    (size, index, place), *rest = [*points, (1, 0, 0)]
    assert not points or len(rest) == 1
    components = list(zip(data.shape, data.strides, strict=True))[batch : batch + count]
    each, row = Axis(size, 0, index, place), data.dtype.itemsize * math.prod(data.shape[batch + count :])
    if not points and not batch:
        each, row = _single_slice(data, other, count)
    return IndexedRows(_merged(axes), each, components, row, index_component=indices.strides[-1])


def slices_along(data: TensorView, indices: TensorView, other: TensorView, axis: int) -> IndexedRows:
    """Slices of dense data at dense indices along one axis; the axes of the indices replace it."""
    rank = len(indices.shape)
    before = zip(data.shape[:axis], data.strides, (0,) * axis, other.strides, strict=False)
    points = merge_axes(list(zip(indices.shape, indices.strides, other.strides[axis : axis + rank], strict=True)))
    (size, index, place), *rest = [*points, (1, 0, 0)]
    each, row = Axis(size, 0, index, place), data.dtype.itemsize * math.prod(data.shape[axis + 1 :])
    if not rank and not axis:
        each, row = _single_slice(data, other, 1)
    outer = [*_merged(before), *(Axis(size, 0, *strides) for size, *strides in rest[:-1])]
    return IndexedRows(outer, each, [(data.shape[axis], data.strides[axis])], row)


def _single_slice(data: TensorView, other: TensorView, axis: int) -> tuple[Axis, int]:
    """Points and bytes per row of one slice of dense data: all of `other`, whose first axis may have gaps."""
    shape = data.shape[axis:]
    axes = merge_axes(
        list(zip(shape, data.strides[axis:], other.strides[len(other.shape) - len(shape) :], strict=True))
    )
    row = data.dtype.itemsize * math.prod(shape)
    if not axes or axes[0][2] * axes[0][0] == row:
        return _ONE, row
    (size, step, place), *_ = axes
    return Axis(size, step, 0, place), step


def slices_from(data: TensorView, indices: TensorView, other: TensorView, axis: int, circular: bool) -> IndexedRows:
    """Slices from an index along one axis on, of dense tensors: an index for each of the first axis of the data.

    `circular`: positions behind the end of the axis continue at its start.
    """
    starts = (*indices.strides, *(0,) * len(data.shape))
    outer = _merged(zip(data.shape[:axis], data.strides, starts, other.strides, strict=False))
    (size, step), length, each = (data.shape[axis], data.strides[axis]), other.shape[axis], other.strides[axis]
    if circular:
        return IndexedRows(outer, Axis(length, 0, 0, each), [(size, step)], step, negative=CIRCULAR)
    return IndexedRows(outer, _ONE, [(size - length + 1, step)], length * step, negative=FROM_START)


def seconds(processor: Processor, points: int, components: int, row: int) -> float:
    """Modelled time of moves of `points` rows of `row` bytes, in seconds."""
    return processor.moving(points * (2 * row + 8 * components)) + processor.computing(
        points * components * _CYCLES * processor.isa.lanes
    )


def dense(processor: Processor, space: Space, x: TensorView) -> tuple[list[Step], TensorView]:
    """Calls that make a tensor dense, and the dense one: itself, or a copy in the workspace."""
    if x.format == DENSE:
        return [], x
    copied = TensorView.plain(space.reserve(x.size), x.shape, x.dtype)
    return move_tensor(processor, space, x, copied), copied


def moves(
    processor: Processor,
    rows: IndexedRows,
    data: TensorView,
    indices: TensorView,
    other: TensorView,
    name: str,
    put: str = "",
) -> Step:
    """Make the call that moves rows of `data` to `other`, or back with `put`, "none" or a reduction.

    `name` is that of the node, for reports of indices out of bounds.
    """
    reduced = put not in ("", "none")
    word, form = _form(rows.row, data.dtype.itemsize, reduced)
    ordered = bool(put) and rows.ordered
    outer = math.prod(axis.size for axis in rows.outer)
    block = rows.points.size if ordered else _block(rows, divide(_UNITS * processor.threads, outer))
    blocks = divide(rows.points.size, block)
    units = outer * blocks
    ranged = ordered and processor.threads > now(units)
    size, step = rows.components[0]
    tile = IndexTile(
        lanes=run_lanes(processor.isa) if form == RUN else processor.isa.lanes,
        index_bytes=indices.dtype.itemsize,
        row=form,
        word=word,
        components=len(rows.components),
        put=put,
        kind=data.dtype.name if reduced else "",
        ranged=ranged,
        negative=rows.negative,
        group=ALONE if ranged or form != ELEMENT else _group(rows, word, indices.dtype.itemsize),
    )
    args: Args = {
        "data": data.ref,
        "indices": indices.ref,
        "other": other.ref,
        "units": units,
        "outer": sizes_array(number for axis in rows.outer for number in axis),
        "axes": len(rows.outer),
        "blocks": blocks,
        "block": block,
        "points": rows.points.size,
        "turns": rows.turns.size,
        "index_turn": rows.turns.indices,
        "other_turn": rows.turns.other,
        "data_point": rows.points.data,
        "index_point": rows.points.indices,
        "other_point": rows.points.other,
        "table": sizes_array(number for pair in rows.components for number in pair),
        "index_component": rows.index_component,
        "size": size,
        "step": step,
        "row": rows.row,
        "span": greatest(data.size, data.shape[0] * data.strides[0]) if data.shape else data.size,
        "failure": Ref(FAILURE),
        "name": name_words(name),
    }
    points = math.prod(axis.size for axis in (*rows.outer, rows.points, rows.turns))
    parts = processor.parts(points * (2 * rows.row + 8 * len(rows.components)))
    return Step(move_at_indices, tile, args, least(1, parts) if ranged else parts)


def _block(rows: IndexedRows, wanted: int) -> int:
    """Points per unit of work: with turns, many of them, as each turn reads them from elsewhere."""
    if rows.ordered:
        return greatest(1, _UNIT // rows.row)
    return greatest(_MIN_POINTS, divide(divide(rows.points.size, wanted), _MIN_POINTS) * _MIN_POINTS)


def _group(rows: IndexedRows, word: int, index: int) -> int:
    """How groups of indices are checked and moved."""
    (_, step), *more = rows.components
    if more or rows.negative != FROM_END or rows.points[2:] != (index, word):
        return ALONE
    return {(0, word): ALONG}.get((rows.points.data, step), BEHIND if rows.points.data == word else ALONE)


def _form(row: int, itemsize: int, reduced: bool) -> tuple[int, int]:
    """Bytes per move, and how rows are moved."""
    if reduced:
        return itemsize, ELEMENT if row == itemsize else ELEMENTS
    if row in _WORDS:
        return row, ELEMENT
    return (itemsize, RUN) if row >= SHORTEST_RUN else (itemsize, ELEMENTS)


def put_steps(
    processor: Processor,
    space: Space,
    rows: IndexedRows,
    data: TensorView,
    indices: TensorView,
    updates: TensorView,
    y: TensorView,
    name: str,
    put: str = "none",
) -> list[Step]:
    """Calls that copy the data, unless the output is in its place, and put updates there; `rows` are those of `y`."""
    copies = [] if data.ref == y.ref else move_tensor(processor, space, data, y)
    return [*copies, moves(processor, rows, y, indices, updates, name, put)]


_ROWS: dict[str, Callable[..., IndexedRows]] = {
    "Gather": slices_along,
    "GatherElements": elements_along,
    "GatherND": slices_at,
    "ScatterElements": elements_along,
    "ScatterND": slices_at,
}
"""Rows of an operator, from the tensor, the indices, the other tensor, and the axis or the number of common axes."""


def gather_step(
    processor: Processor, op: str, data: TensorView, indices: TensorView, y: TensorView, number: int, name: str
) -> Step:
    """Make the call of a gather; `number` is its axis, or that of common axes."""
    return moves(processor, _ROWS[op](data, indices, y, number), data, indices, y, name)


def scatter_steps(
    processor: Processor,
    space: Space,
    op: str,
    data: TensorView,
    indices: TensorView,
    updates: TensorView,
    y: TensorView,
    number: int,
    name: str,
    reduction: str,
) -> list[Step]:
    """Make the calls of a scatter; `number` as for `gather_step`."""
    steps = list[Step]()
    if _ROWS[op] is slices_at:
        for_indices, indices = dense(processor, space, indices)
        for_updates, updates = dense(processor, space, updates)
        steps = for_indices + for_updates
    rows = _ROWS[op](y, indices, updates, number)
    return steps + put_steps(processor, space, rows, data, indices, updates, y, name, reduction)
