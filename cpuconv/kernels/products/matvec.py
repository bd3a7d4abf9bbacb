"""Vector-matrix multiplication: reads the matrix once, at memory bandwidth.

Where columns are contiguous, lanes are columns. A constant matrix is packed, each vector of columns as one stream
("columns"). Any other is read in place, a wide one several rows at a time, with the sums in the output ("rows").
Where rows are contiguous, lanes are elements of several columns, and partial sums are reduced at the end ("dots").
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from baselib.data_classes import dataclass
from cpuconv import elements
from cpuconv.isa import Isa
from cpuconv.isa.typed import load_as_float
from cpuconv.isa.vector import F32, I32, I64, Vector
from cpuconv.kernels.binding.partition import parts_if_shared
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Ref, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.intrinsics import word
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.packing.packed_formats import Panels, Rounded
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_CHAINS = 8  # independent sums: FMA latency times FMAs per cycle
_UNROLL = 4  # rows of the matrix per iteration
_STREAMS = 8  # rows or columns that are read concurrently
_WIDEST, _NARROWEST = 4096, 256  # columns of a group whose sums are in the output: they stay in L1
_SLOWER = 2  # time per FLOP relative to GEMM: sharing work pays sooner
_PARTS = 4  # parts per thread: a late thread leaves some to the others


# --- micro-kernels --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatvecStripTile:
    """Which loop of `_LOOPS`, and the number of rows, columns or column vectors that it reads concurrently.

    `epilogue`: adds a bias, and optionally a residual and an activation; the matrix is then packed in whole vectors of
    type `w`.
    """

    lanes: int
    loop: str
    streams: int
    epilogue: bool = False
    residual: bool = False
    activation: tuple[Any, ...] | None = None
    w: elements.Element = elements.F32


class _Memory(NamedTuple):
    """Operands of `matvec_strip`."""

    x: Any
    x_step: Any
    matrix: Any
    row_step: Any
    column_step: Any
    depth: Any
    y: Any
    y_step: Any
    bias: Any
    residual: Any
    valid: Any


def _columns(tile: MatvecStripTile, vec: Vector, m: _Memory) -> None:
    """Sum a few vectors of columns over all rows."""
    builder, streams = vec.builder, range(tile.streams)
    valid = builder.sub(m.valid, I64((tile.streams - 1) * tile.lanes))
    chains = min(_UNROLL, divide(_CHAINS, tile.streams))
    start, address, bias = vec.pointer(m.x), vec.pointer(m.matrix), vec.pointer(m.bias)
    firsts = [vec.offset(address, builder.mul(m.column_step, I64(s))) for s in streams]
    masks = [first_lanes(vec, valid) if s == tile.streams - 1 else vec.first_lanes_mask(vec.lanes) for s in streams]

    def several(count: int) -> Any:
        def body(index: Any, sums: list[Any]) -> list[Any]:
            row = builder.mul(index, I64(count))
            for k in range(count):
                at = builder.add(row, I64(k))
                element = vec.broadcast(vec.offset(start, builder.mul(at, m.x_step)))
                distance = builder.mul(at, m.row_step)
                for s in streams:
                    chain = k % chains * tile.streams + s
                    place = vec.offset(firsts[s], distance)
                    value = load_as_float(vec, tile.w, place) if tile.epilogue else vec.load_masked(place, masks[s])
                    sums[chain] = vec.fma(element, value, sums[chain])
            return sums

        return body

    turns = builder.udiv(m.depth, I64(_UNROLL))
    sums = repeat(vec, I64(0), turns, [vec.constant(0.0)] * (chains * tile.streams), several(_UNROLL))
    sums = repeat(vec, builder.mul(turns, I64(_UNROLL)), m.depth, sums, several(1))
    for s in streams:
        value = _total(vec, sums[s :: tile.streams])
        target = vec.offset(vec.pointer(m.y), s * vec.size)
        if tile.epilogue:
            extra = vec.load_masked(vec.offset(target, m.residual), masks[s]) if tile.residual else None
            epilogue = Epilogue(activation=tile.activation)
            value = epilogue.emit(vec, value, epilogue.load(vec, bias, s), extra)
        vec.store_masked(value, target, masks[s])


def _rows(tile: MatvecStripTile, vec: Vector, m: _Memory) -> None:
    """Add a few rows at a time to all columns; the sums are in the output meanwhile."""
    builder = vec.builder
    start, address, target = vec.pointer(m.x), vec.pointer(m.matrix), vec.pointer(m.y)
    whole, left = builder.udiv(m.valid, I64(vec.lanes)), builder.urem(m.valid, I64(vec.lanes))
    mask, vectors = first_lanes(vec, left), builder.udiv(builder.add(m.valid, I64(vec.lanes - 1)), I64(vec.lanes))

    def add(first: Any, count: int) -> list[Any]:
        """Add `count` rows; 0: initialise with zeros."""
        numbers = [builder.add(first, I64(k)) for k in range(count)]
        elements = [vec.broadcast(vec.offset(start, builder.mul(k, m.x_step))) for k in numbers]
        lines = [vec.offset(address, builder.mul(k, m.row_step)) for k in numbers]

        def vector(index: Any, mask: Any = None) -> list[Any]:
            at = builder.mul(index, I64(vec.size))
            place = vec.offset(target, at)
            load = vec.load if mask is None else lambda place: vec.load_masked(place, mask)
            total = load(place) if count else vec.constant(0.0)
            for element, line in zip(elements, lines, strict=True):
                total = vec.fma(element, load(vec.offset(line, at)), total)
            if mask is None:
                vec.store(total, place)
            else:
                vec.store_masked(total, place, mask)
            return []

        repeat(vec, I64(0), whole, [], lambda index, _: vector(index))
        repeat(vec, whole, vectors, [], lambda index, _: vector(index, mask))
        return []

    add(I64(0), 0)
    turns = builder.udiv(m.depth, I64(tile.streams))
    done = builder.mul(turns, I64(tile.streams))
    repeat(vec, I64(0), turns, [], lambda turn, _: add(builder.mul(turn, I64(tile.streams)), tile.streams))
    repeat(vec, done, m.depth, [], lambda row, _: add(row, 1))


def _dots(tile: MatvecStripTile, vec: Vector, m: _Memory) -> None:
    """Sum a few columns; rows of the matrix, and elements of x, are contiguous."""
    builder, streams = vec.builder, range(tile.streams)
    chains = divide(_CHAINS, tile.streams)
    start, address = vec.pointer(m.x), vec.pointer(m.matrix)
    firsts = [vec.offset(address, builder.mul(m.column_step, I64(s))) for s in streams]
    zero = vec.constant(0.0)

    def some(count: int, mask: Any = None) -> Any:
        def body(index: Any, sums: list[Any]) -> list[Any]:
            for k in range(count):
                at = builder.mul(builder.add(builder.mul(index, I64(count)), I64(k)), I64(vec.size))
                places = [vec.offset(first, at) for first in (start, *firsts)]
                element, *values = (vec.load(p) if mask is None else vec.load_masked(p, mask) for p in places)
                for s in streams:
                    chain = k * tile.streams + s
                    sums[chain] = vec.fma(element, values[s], sums[chain])
            return sums

        return body

    vectors = builder.udiv(m.depth, I64(vec.lanes))
    turns = builder.udiv(vectors, I64(chains))
    sums = repeat(vec, I64(0), turns, [zero] * (chains * tile.streams), some(chains))
    sums = repeat(vec, builder.mul(turns, I64(chains)), vectors, sums, some(1))
    left = builder.urem(m.depth, I64(vec.lanes))
    sums = repeat(vec, vectors, builder.udiv(builder.add(m.depth, I64(vec.lanes - 1)), I64(vec.lanes)), sums,
                  some(1, first_lanes(vec, left)))  # fmt: skip
    for s in streams:
        value = _total(vec, sums[s :: tile.streams])
        distance = vec.lanes // 2
        while distance:
            turned = vec.shuffle(value, value, [lane ^ distance for lane in range(vec.lanes)])
            value, distance = vec.add(value, turned), distance // 2
        target = vec.offset(vec.pointer(m.y), builder.mul(m.y_step, I64(s)))
        builder.store(builder.extract_element(value, I32(0)), builder.bitcast(target, F32.as_pointer()))


def _total(vec: Vector, values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = vec.add(total, value)
    return total


_LOOPS = {"columns": _columns, "rows": _rows, "dots": _dots}


@MicroKernel
def matvec_strip(
    tile: MatvecStripTile,
    builder: ir.IRBuilder,
    x: Any,
    x_step: Any,
    matrix: Any,
    row_step: Any,
    column_step: Any,
    depth: Any,
    y: Any,
    y_step: Any,
    bias: Any,
    residual: Any,
    valid: Any,
) -> None:
    """y[column] = epilogue(sum over rows of x[row] · matrix[row][column]) for a range of columns.

    Parameters
    ----------
    x_step, row_step, y_step
        Byte strides of elements, rows and results; results of "columns" and "rows" are contiguous.
    column_step
        Byte stride of vectors of columns, or in "dots" of columns.
    depth
        Rows.
    residual
        Distance from y to the residual, in bytes.
    valid
        Columns; in "dots" they are `tile.streams`.
    """
    memory = _Memory(x, x_step, matrix, row_step, column_step, depth, y, y_step, bias, residual, valid)
    _LOOPS[tile.loop](tile, Vector(builder, tile.lanes), memory)


_call = matvec_strip.caller()


# --- the driver -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatvecTile:
    """Parameters of the driver, the same for all micro-kernels."""

    lanes: int


@kernel(
    "full last x x_step matrix row_step column_step group_step depth y y_step y_group bias residual offsets items "
    "groups width valid"
)
def matvec(tile, worker, before, part, parts, args):
    """y = x · matrix for each item: its three int64 words of `offsets` are the byte offsets of its operands.

    Units are (item, group of `width` columns); the micro-kernel `last` does the last group, of `valid` columns.
    """
    units = args.items * args.groups
    for unit in range(units * part // parts, units * (part + 1) // parts):
        item = unit // args.groups
        group = unit - item * args.groups
        end = group == args.groups - 1
        offsets = args.offsets + 24 * item
        _call(
            args.last if end else args.full,
            x=args.x + word(tile, offsets, 0),
            x_step=args.x_step,
            matrix=args.matrix + word(tile, offsets, 1) + group * args.group_step,
            row_step=args.row_step,
            column_step=args.column_step,
            depth=args.depth,
            y=args.y + word(tile, offsets, 2) + group * args.y_group,
            y_step=args.y_step,
            bias=args.bias + group * args.y_group,
            residual=args.residual - args.y,
            valid=args.valid if end else args.width,
        )


# --- steps ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatvecProblem:
    """Vector-matrix multiplications in memory: addresses, and byte strides of elements.

    Attributes
    ----------
    depth, columns, items : int
    x, matrix, y : Ref
    x_step, row_step, column_step, y_step : int
    offsets : numpy.ndarray, (items * 3,)
        Byte offsets of the vector, the matrix and the result of each item, int64.
    """

    depth: int
    columns: int
    x: Ref
    matrix: Ref
    y: Ref
    x_step: int
    row_step: int
    column_step: int
    y_step: int
    offsets: Any
    items: int

    @property
    def reads_columns(self) -> bool:
        """Whether lanes can be columns: columns and results are contiguous."""
        return self.column_step == elements.F32.bytes and self.y_step == elements.F32.bytes

    @property
    def reads_rows(self) -> bool:
        """Whether lanes can be elements of columns: rows and x are contiguous."""
        return self.row_step == elements.F32.bytes and self.x_step == elements.F32.bytes


def matvec_step(processor: Processor, work: MatvecProblem) -> Step | None:
    """One call for matrices that are read in place; None where neither rows nor columns are contiguous."""
    lanes, column_step = processor.isa.lanes, work.column_step
    if work.reads_columns:
        vectors, column_step = divide(work.columns, lanes), lanes * elements.F32.bytes
        if vectors <= processor.isa.registers // 2:
            width = vectors * lanes
            micros = [MicroRef(matvec_strip, MatvecStripTile(lanes, "columns", vectors))] * 2
        else:
            width = min(_WIDEST, max(_NARROWEST, divide(vectors, processor.threads) * lanes))
            micros = [MicroRef(matvec_strip, MatvecStripTile(lanes, "rows", _STREAMS))] * 2
    elif work.reads_rows:
        width = min(_STREAMS, work.columns)
        rest = (work.columns - 1) % width + 1
        micros = [MicroRef(matvec_strip, MatvecStripTile(lanes, "dots", count)) for count in (width, rest)]
    else:
        return None
    groups = divide(work.columns, width)
    args: Args = {
        "full": micros[0],
        "last": micros[1],
        "x": work.x,
        "x_step": work.x_step,
        "matrix": work.matrix,
        "row_step": work.row_step,
        "column_step": column_step,
        "group_step": width * work.column_step,
        "depth": work.depth,
        "y": work.y,
        "y_step": work.y_step,
        "y_group": width * work.y_step,
        "bias": 0,
        "residual": 0,
        "offsets": work.offsets,
        "items": work.items,
        "groups": groups,
        "width": width,
        "valid": work.columns - (groups - 1) * width,
    }
    return Step(matvec, MatvecTile(lanes), args, _parts(processor, work.items * work.depth * work.columns))


def packing(isa: Isa, depth: int, columns: int, *, w: elements.Element = elements.F32) -> Packing:
    """Packing of a constant matrix for `linear_step`: [vector of columns][row][lanes], floats of type `w`."""
    form = Panels.of(ConvProblem(1, depth, 1, 1, columns, 1, 1), isa, 1)
    return form if w == elements.F32 else Rounded(form, w)


def linear_step(
    processor: Processor, x: TensorView, matrix: Ref, y: TensorView, bias: Ref, residual: TensorView | None,
    activation: Any, w: elements.Element = elements.F32,
) -> Step:  # fmt: skip
    """y = activation(x · matrix + bias + residual), the matrix packed by `packing`, the bias in whole vectors."""
    lanes, (depth,), (count,) = processor.isa.lanes, x.shape[-1:], y.shape[-1:]
    tile = MatvecStripTile(lanes, "columns", 1, True, residual is not None, activation, w)
    args: Args = {
        "full": MicroRef(matvec_strip, tile),
        "last": MicroRef(matvec_strip, tile),
        "x": x.ref,
        "x_step": elements.F32.bytes,
        "matrix": matrix,
        "row_step": lanes * w.bytes,
        "column_step": 0,
        "group_step": depth * lanes * w.bytes,
        "depth": depth,
        "y": y.ref,
        "y_step": elements.F32.bytes,
        "y_group": lanes * elements.F32.bytes,
        "bias": bias,
        "residual": residual.ref if residual else 0,
        "offsets": np.zeros(3, np.int64),
        "items": 1,
        "groups": divide(count, lanes),
        "width": lanes,
        "valid": count - (divide(count, lanes) - 1) * lanes,
    }
    return Step(matvec, MatvecTile(lanes), args, _parts(processor, depth * count))


def _parts(processor: Processor, products: int) -> int:
    return parts_if_shared(2 * _SLOWER * products, _PARTS) if processor.threads > 1 else 0
