"""Micro-kernel that copies elements of rows at fixed places: resizing of dense planes to the nearest input.

Lanes are outputs. If the inputs of each vector of outputs lie within a vector of inputs, as in enlarged rows, that
vector is loaded and permuted. Otherwise elements are copied one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, S16, U8
from cpuconv.isa import Isa
from cpuconv.isa.typed import load_as_int, load_narrow, store_narrow
from cpuconv.isa.vector import I64, PERMUTED_LANES, Vector
from cpuconv.kernels.binding.steps import Args, MicroRef, OneOf
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.fold import repeat
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import applied, is_symbolic, items_of

_ELEMENTS = {each.bytes: each for each in (U8, S16, F32)}


@dataclass(frozen=True)
class PickTile:
    """`lanes`: elements per permuted vector (1: scalar copies); `bytes`: bytes per element."""

    lanes: int
    bytes: int


@MicroKernel
def pick_rows(
    tile: PickTile, builder: ir.IRBuilder, x: Any, rows: Any, count: Any, columns: Any, y: Any, width: Any
) -> None:
    """Copy elements of rows of a plane to one or two rows of outputs each.

    Parameters
    ----------
    x, y
        Addresses of the planes.
    rows, count
        Address of three int64 words per row, and their number: byte offset in x, and those of the rows in y, which may
        be equal.
    columns, width
        Address of an entry for each vector of outputs (`_entry`), and number of outputs, at least one vector.
    """
    vec, element, lanes = Vector(builder, tile.lanes), _ELEMENTS[tile.bytes], tile.lanes
    vectors = builder.udiv(builder.add(width, I64(lanes - 1)), I64(lanes))
    words, table = builder.inttoptr(rows, I64.as_pointer()), vec.pointer(columns)

    def row(number: Any, _: list[Any]) -> list[Any]:
        first = builder.mul(number, I64(3))
        offsets = [builder.load(builder.gep(words, [builder.add(first, I64(at))])) for at in range(3)]
        source, *targets = (vec.pointer(builder.add(*pair)) for pair in zip((x, y, y), offsets, strict=True))
        with builder.if_else(builder.icmp_signed("==", *offsets[1:])) as (one, two):
            with one:
                repeat(vec, I64(0), vectors, [], functools.partial(outputs, source, targets[:1]))
            with two:
                repeat(vec, I64(0), vectors, [], functools.partial(outputs, source, targets))
        return []

    def outputs(source: Any, targets: list[Any], at: Any, _: list[Any]) -> list[Any]:
        entry = vec.offset(table, builder.mul(at, I64(_entry(lanes).itemsize)))
        offset, first = (builder.load(builder.bitcast(vec.offset(entry, 8 * i), I64.as_pointer())) for i in range(2))
        place, targets = vec.offset(source, offset), [vec.offset(target, first) for target in targets]
        if lanes == 1:
            value = load_narrow(vec, element, place)
        elif element == F32:
            value = vec.permuted(vec.load(place), load_as_int(vec, U8, vec.offset(entry, 16)))
        else:
            value = builder.bitcast(load_as_int(vec, element, place), vec.type)
            value = vec.permuted(value, load_as_int(vec, U8, vec.offset(entry, 16)))
            value = builder.trunc(
                builder.bitcast(value, vec.int_type), ir.VectorType(ir.IntType(8 * tile.bytes), lanes)
            )
        for each in targets:
            store_narrow(vec, element, value, each)
        return []

    repeat(vec, I64(0), count, [], row)


def _entry(lanes: int) -> np.dtype:
    """A vector of outputs: byte offsets of its inputs and of itself, and the place of each output among the inputs.

    The last vector of a row may overlap the one before.
    """
    return np.dtype([("x", np.int64), ("y", np.int64), ("places", np.uint8, (lanes if lanes > 1 else 0,))])


def _vector_starts(count: int, lanes: int) -> np.ndarray:
    """First output of each vector."""
    return np.minimum(np.arange(divide(count, lanes)) * lanes, count - lanes)


def _columns(lanes: int, element: int, size: int, inputs: np.ndarray) -> np.ndarray | None:
    """The entries for outputs that read these of `size` inputs; None if they need more than a vector."""
    if min(size, len(inputs)) < lanes:
        return None
    read = inputs[_vector_starts(len(inputs), lanes)[:, None] + np.arange(lanes)]
    starts = np.minimum(read.min(1), size - lanes)
    places = read - starts[:, None]
    if places.max() >= lanes:
        return None
    table = np.zeros(len(starts), _entry(lanes))
    table["x"], table["y"] = starts * element, _vector_starts(len(inputs), lanes) * element
    if lanes > 1:
        table["places"] = places
    return table


def _rows(inputs: np.ndarray, line: int) -> np.ndarray:
    """The words of rows of outputs, `line` bytes apart, by the byte offset of their input; equal ones in pairs."""
    words, at = [], 0
    while at < len(inputs):
        last = min(at + 1, len(inputs) - 1)
        last = last if inputs[last] == inputs[at] else at
        words.append((inputs[at], at * line, last * line))
        at = last + 1
    return np.array(words, np.int64)


def _tables(
    options: tuple[int, ...], element: int, size: int, sources: Sequence[Sequence[np.ndarray]]
) -> tuple[int, np.ndarray, np.ndarray, int, int]:
    """Index of the first number of lanes that suits rows of `size` elements; tables of rows and columns; their sizes.

    A plane of rows no longer than a vector is one row.
    """
    (rows, _), (columns, _) = sources
    rows, columns = rows[:, 0] * size, columns[:, 0]
    if size <= options[0]:
        rows, columns = np.zeros(1, np.int64), (rows[:, None] + columns).ravel()
        size = columns.max() + 1
    tables = (_columns(lanes, element, size, columns) for lanes in options)
    at, table = next((at, table) for at, table in enumerate(tables) if table is not None)
    words = _rows(rows * element, len(columns) * element)
    return at, words, table, len(words), len(columns)


def pick_args(isa: Isa, x: TensorView, y: TensorView, sources: Any) -> Args:
    """The arguments of `resize` that depend on the rows of dense planes.

    `sources`: indices and weights of the one input of each output, of rows and of columns.
    """

    options, element = (*PERMUTED_LANES.get(isa.name, ()), 1), x.dtype.itemsize
    refs = tuple(MicroRef(pick_rows, PickTile(lanes, element)) for lanes in options)
    made = applied(functools.partial(_tables, options, element), x.shape[-1], sources)
    index, rows, columns, height, width = items_of(made)
    strip = OneOf(refs, index) if is_symbolic(index) else refs[index]
    args: Args = {"strip": strip, "rows": rows, "columns": columns, "row_entry": 3 * 8, "line": 0}
    return args | {"units": y.shape[0] * y.shape[1] * height, "height": height, "width": width}
