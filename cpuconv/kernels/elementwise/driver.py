"""Elementwise kernels: evaluate an expression of several operands at every element of the output.

Loops run over the axes of the output; operands have strides of their own, zero where they are broadcast. Axes that are
contiguous with each other in all operands are merged. The inner loop computes vectors of `lanes` elements along the
last axis, or the one before where the last is one vector long, as in channel blocks; invariants are computed before it.
Blocks of narrow elements are several vectors of 32-bit lanes (`loop_nests`), or a vector of float16 if the CPU computes
in it. Each expression has its own micro-kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa.typed import load_as_float, store_float, store_int
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.tail_lanes import ZeroTailTile, zero_tail_lanes
from cpuconv.kernels.elementwise.expression import Expression, Operand, Parameter, vanishes, with_parameters
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.elementwise.halves import Half, computes_in_halves
from cpuconv.kernels.elementwise.loop_nests import Axis, loop_nests
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.transpose import first_lanes, present_rows, store_present
from cpuconv.problem.integers import divide
from cpuconv.problem.quantization import bounds
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import greatest, least, sizes_array

MAX_OPERANDS = 8
_UNITS, _UNROLL = 8, 4  # units of work per thread, if there are several threads; vectors per loop iteration
_ROWS, _ROWS_EACH, _LENGTH, _LENGTH_EACH, _AXES = range(5)  # words of a table; _AXES: the first of the others


@dataclass(frozen=True)
class Access:
    """Access to the vectors of an operand or of the output.

    Attributes
    ----------
    lane : int | None
        Bytes from lane to lane: those of an element, 0 (broadcast), or None: from the table.
    step : int | None
        Bytes from vector to vector in the inner loop, or None: from the table.
    element : Element
        Type in memory: float32, or a narrower type, whose lanes are contiguous.
    """

    lane: int | None
    step: int | None
    element: Element = F32


@dataclass(frozen=True)
class LoopTile:
    """Tile of a micro-kernel: the expression, accesses of the output (first) and the operands, number of outer axes."""

    lanes: int
    expression: Expression
    accesses: tuple[Access, ...]
    axes: int
    halves: bool = False  # whether it computes in float16

    @property
    def columns(self) -> int:
        """Words of the table per access: strides along the axes, between rows, between vectors, between lanes."""
        return self.axes + 3


@dataclass(frozen=True)
class DriverTile:
    """Empty tile: one driver serves all expressions."""


# --- the micro-kernel -----------------------------------------------------------------------------------------------


@MicroKernel
def loops(
    tile: LoopTile,
    builder: Any,
    table: Any,
    first: Any,
    last: Any,
    y: Any,
    x0: Any,
    x1: Any,
    x2: Any,
    x3: Any,
    x4: Any,
    x5: Any,
    x6: Any,
    x7: Any,
) -> None:
    """Compute units first … last-1 (at least one); `table` has the words that `_loops` writes."""
    addresses = [y, x0, x1, x2, x3, x4, x5, x6, x7][: len(tile.accesses)]
    nest = _Nest(tile, (Half if tile.halves else Math)(builder, tile.lanes), table, addresses)
    loop(builder, 0, builder.sub(last, first), lambda i: nest.unit(builder.add(first, i)))


class _Nest:
    """Emitter of the loops of one unit: outer axes, rows, vectors."""

    def __init__(self, tile: LoopTile, vec: Math, table: Any, addresses: Sequence[Any]) -> None:
        self.tile, self.vec, self.builder, self.one = tile, vec, vec.builder, type(vec)(vec.builder, 1)
        self.words = vec.builder.inttoptr(table, I64.as_pointer())
        self.starts = [vec.pointer(address) for address in addresses]
        columns = range(len(tile.accesses))
        self.axis_steps = [[self.word(self._column(k) + axis) for axis in range(tile.axes)] for k in columns]
        self.row_steps, self.steps, self.lane_steps = (
            [self.word(self._column(k) + tile.axes + at) for k in columns] for at in range(3)
        )
        for k, access in enumerate(tile.accesses):
            if access.step is not None:
                self.steps[k] = I64(access.step)
        self.numbers: dict[Expression, Any] = {
            node: vec.broadcast(vec.offset(vec.pointer(table), 8 * (self._column(len(columns)) + node.position)))
            for node in tile.expression.nodes
            if isinstance(node, Parameter)
        }
        moving = {Operand(k) for k, access in enumerate(tile.accesses[1:]) if access.step != 0}
        self.moving = {node for node in tile.expression.nodes if moving.intersection(node.nodes)}

    def word(self, index: int) -> Any:
        """Load a word of the table."""
        return self.builder.load(self.builder.gep(self.words, [I64(index)]))

    def _column(self, access: int) -> int:
        return _AXES + self.tile.axes + access * self.tile.columns

    def unit(self, number: Any) -> None:
        """Emit the rows of a unit; the last two axes are blocks of rows and blocks of vectors."""
        builder, axes = self.builder, self.tile.axes
        places = []
        for axis in reversed(range(1, axes)):
            size = self.word(_AXES + axis)
            places.append(builder.urem(number, size))
            number = builder.udiv(number, size)
        places = [number, *reversed(places)]

        def left(whole: int, each: int, place: Any) -> Any:
            each = self.word(each)
            rest = builder.sub(self.word(whole), builder.mul(place, each))
            return builder.select(builder.icmp_signed("<", rest, each), rest, each)

        bases = [self._moved(start, steps, places) for start, steps in zip(self.starts, self.axis_steps, strict=True)]
        length = left(_LENGTH, _LENGTH_EACH, places[-1])
        rows = left(_ROWS, _ROWS_EACH, places[-2])
        loop(
            builder, 0, rows, lambda row: self.row([self._moved(*each, [row]) for each in self._by_row(bases)], length)
        )

    def _by_row(self, bases: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        return [(base, [step]) for base, step in zip(bases, self.row_steps, strict=True)]

    def _moved(self, start: Any, steps: Sequence[Any], places: Sequence[Any]) -> Any:
        """The address `places` strides further."""
        for step, place in zip(steps, places, strict=True):
            start = self.vec.offset(start, self.builder.mul(step, place))
        return start

    def row(self, starts: Sequence[Any], length: Any) -> None:
        """Emit the first `length` elements of a row: iterations of many vectors, of one, and a partial vector."""
        builder, lanes, unroll = self.builder, I64(self.tile.lanes), _UNROLL
        still: dict[Expression, Any] = {
            Operand(k): self._load(k + 1, starts[k + 1])
            for k, access in enumerate(self.tile.accesses[1:])
            if access.step == 0
        }
        still.update(self.numbers)
        for node in self.tile.expression.nodes:
            if node not in self.moving:
                node.emit(self.vec, still)
        vectors = builder.udiv(length, lanes)
        turns = builder.udiv(vectors, I64(unroll))
        done = builder.mul(turns, I64(unroll))
        self._repeat(turns, lambda turn: self._vectors(starts, still, builder.mul(turn, I64(unroll)), unroll))
        self._repeat(builder.sub(vectors, done), lambda i: self._vectors(starts, still, builder.add(done, i), 1))
        rest = builder.urem(length, lanes)
        with builder.if_then(builder.icmp_signed(">", rest, I64(0))):
            self._vectors(starts, still, vectors, 1, rest)

    def _repeat(self, count: Any, body: Callable[[Any], None]) -> None:
        """Emit `loop`, also for zero iterations."""
        with self.builder.if_then(self.builder.icmp_signed(">", count, I64(0))):
            loop(self.builder, 0, count, body)

    def _vectors(
        self, starts: Sequence[Any], still: dict[Expression, Any], at: Any, count: int, present: Any = None
    ) -> None:
        """Emit vectors `at` … `at` + count-1 of a row; a single one may have only the first `present` (>= 1) elements.

        All operands are loaded before the first store.
        """
        known: list[dict[Expression, Any]] = [dict(still) for _ in range(count)]
        places = [self.builder.add(at, I64(i)) for i in range(count)]
        for k, access in enumerate(self.tile.accesses[1:], 1):
            if access.step != 0:
                for place, values in zip(places, known, strict=True):
                    address = self._moved(starts[k], [self.steps[k]], [place])
                    values[Operand(k - 1)] = self._load(k, address, present)
        results = [self.tile.expression.emit(self.vec, values) for values in known]
        for place, result in zip(places, results, strict=True):
            self._store(result, self._moved(starts[0], [self.steps[0]], [place]), present)

    def _load(self, k: int, address: Any, present: Any = None) -> Any:
        """Load a vector of an operand; lanes from `present` on are not read."""
        vec, lane, element = self.vec, self.tile.accesses[k].lane, self.tile.accesses[k].element
        if lane == 0:
            return vec.broadcast(address) if element == F32 else vec.splat(load_as_float(self.one, element, address))
        if lane is None and element == F32:
            place = self._lane(k, address, present)
            return vec.gather([place(i) for i in range(vec.lanes)])
        if lane is None:
            place, value = self._lane(k, address, present), vec.constant(0.0)
            for i in range(vec.lanes):
                one = load_as_float(self.one, element, place(i))
                value = self.builder.insert_element(value, one, I64(i))
            return value
        if element != F32:
            return load_as_float(vec, element, address, None if present is None else first_lanes(vec, present))
        return vec.load(address) if present is None else vec.load_masked(address, first_lanes(vec, present))

    def _store(self, value: Any, address: Any, present: Any = None) -> None:
        """Store the output's vector; lanes from `present` on are not written."""
        vec, builder, element = self.vec, self.builder, self.tile.accesses[0].element
        lane = self.tile.accesses[0].lane
        if element.integer:
            value = vec.nearest_int(vec.clip(value, *bounds(element)))
        store: Any = functools.partial(store_int, fits=True) if element.integer else store_float
        if element != F32 and lane is None:
            place, there = self._lane(0, address, present), I64(vec.lanes) if present is None else present
            for i in reversed(range(vec.lanes)):  # missing lanes are written to the first one's address, before it
                one = builder.extract_element(value, I64(i))
                first = builder.extract_element(value, I64(0))
                one = builder.select(builder.icmp_signed("<", I64(i), there), one, first)
                store(self.one, element, one, place(i))
        elif element != F32:
            store(vec, element, value, address, None if present is None else first_lanes(vec, present))
        elif self.tile.accesses[0].lane is not None:
            if present is None:
                vec.store(value, address)
            else:
                vec.store_masked(value, address, first_lanes(vec, present))
        elif present is None:
            vec.scatter(value, [self._lane(0, address, None)(i) for i in range(vec.lanes)])
        else:
            floats = [builder.extract_element(value, I64(i)) for i in range(vec.lanes)]
            store_present(Vector(builder, 1), floats, address, self.lane_steps[0], present)

    def _lane(self, k: int, address: Any, present: Any) -> Callable[[int], Any]:
        """Addresses of lanes; those from `present` on are the first one's."""
        return present_rows(self.vec, address, self.lane_steps[k], I64(self.vec.lanes) if present is None else present)


_call_loops = loops.caller()


@kernel("loops table units y x0 x1 x2 x3 x4 x5 x6 x7")
def elementwise(tile, worker, before, part, parts, args):
    """y = expression(x0, x1, …): a part of the units of the micro-kernel `loops`."""
    first = args.units * part // parts
    last = args.units * (part + 1) // parts
    if first < last:
        _call_loops(
            args.loops,
            table=args.table,
            first=first,
            last=last,
            y=args.y,
            x0=args.x0,
            x1=args.x1,
            x2=args.x2,
            x3=args.x3,
            x4=args.x4,
            x5=args.x5,
            x6=args.x6,
            x7=args.x7,
        )


# --- steps -----------------------------------------------------------------------------------------------------------


def _word(value: int, known: Sequence[int]) -> int | None:
    return value if value in known else None


def _loops(
    lanes: int,
    axes: Sequence[Axis],
    elements: Sequence[Element],
    expression: Expression,
    units: int,
    numbers: Sequence[float],
    halves: bool,
) -> tuple[LoopTile, np.ndarray, int]:
    """The micro-kernel's tile, its table, and the number of units: those of the outer axes, or about `units`."""
    *outer, inner = axes
    lane_steps = inner.steps
    if inner.size == lanes and outer:
        inner = outer.pop()
        length, steps = inner.size * lanes, inner.steps
    else:
        length, steps = inner.size, tuple(lanes * step for step in inner.steps)
    rows = outer.pop() if outer else Axis(1, (0,) * len(steps))
    count = math.prod(axis.size for axis in outer)
    rows_each = divide(rows.size, least(rows.size, divide(units, count)))
    count *= divide(rows.size, rows_each)
    turn = lanes * _UNROLL
    length_each = divide(divide(length, divide(units, count)), turn) * turn
    outer += [
        Axis(divide(rows.size, rows_each), tuple(rows_each * step for step in rows.steps)),
        Axis(divide(length, length_each), tuple(length_each // lanes * step for step in steps)),
    ]
    accesses = tuple(
        Access(_word(lane, (each.bytes, 0)), _word(step, (0, each.bytes, each.bytes * lanes, F32.bytes * lanes)), each)
        for lane, step, each in zip(lane_steps, steps, elements, strict=True)
    )
    table = [rows.size, rows_each, length, length_each, *(axis.size for axis in outer)]
    for k in range(len(accesses)):
        table += [*(axis.steps[k] for axis in outer), rows.steps[k], steps[k], lane_steps[k]]
    with np.errstate(over="ignore"):  # overflow to infinity, as in a kernel
        table += np.array(numbers, np.float32).view(np.int32).tolist()
    tile = LoopTile(lanes, expression, accesses, len(outer), halves)
    return tile, sizes_array(table), math.prod(axis.size for axis in outer)


def elementwise_steps(
    processor: Processor,
    expression: Expression,
    output: TensorView,
    operands: Sequence[TensorView],
    exact: bool = True,
) -> list[Step]:
    """Make the kernel calls that compute an expression.

    Parameters
    ----------
    processor : Processor
    expression : Expression
        Reads all operands by position, 1 to `MAX_OPERANDS`.
    output : TensorView
        Not empty; float32, int8 or uint8 (rounded and clamped), or blocked bfloat16. Images of a blocked output may be
        apart; a plain output may have any strides but 0.
    operands : Sequence[TensorView]
        Types of the output, or int32, of shapes that broadcast to its shape. For a blocked output: blocked float32,
        int32 and one narrower type, of equal rank and channels, or plain and equal for all channels. For a plain
        output: plain. Plain operands may have any strides. An operand may share the output's memory if its strides are
        equal.
    exact : bool
        Intermediate results are not rounded to float16.

    Returns
    -------
    list[Step]
        They leave zeros in lanes without a channel.
    """
    assert 0 < len(operands) <= MAX_OPERANDS
    parts = processor.parts(output.size + sum(operand.size for operand in operands))
    units = greatest(1, least(1, parts) * _UNITS * processor.threads)  # 1 if there are no parts
    lanes, places = processor.isa.lanes, (output, *operands)
    elements = [place.element for place in places]
    halves = computes_in_halves(expression, elements, exact)
    wide = 2 * lanes if halves else lanes
    emitted, numbers = with_parameters(expression, every=any(element.integer for element in elements))
    steps = []
    for nest in loop_nests(output, operands, wide):
        tile, table, count = _loops(wide, nest.axes, elements, emitted, units, numbers, halves)
        refs = [place.ref + start for place, start in zip(places, nest.starts, strict=True)]
        args: Args = {"loops": MicroRef(loops, tile), "table": table, "units": count, "y": refs[0]}
        for k in range(MAX_OPERANDS):
            args[f"x{k}"] = refs[k + 1] if k < len(operands) else 0
        steps.append(Step(elementwise, DriverTile(), args, parts))
    if output.block > 1 and output.shape[1] % output.block:
        all_blocked = all(operand.block > 1 for operand in operands)
        short = any(operand.block == lanes for operand in operands) and divide(output.shape[1], lanes) * lanes
        if short and short % output.block or not (all_blocked and vanishes(expression)):
            steps.append(zero_tail_channels(processor, output))
    return steps


def zero_tail_channels(processor: Processor, output: TensorView) -> Step:
    """Make the step that zeros the lanes of the last channel block without a channel."""
    n, c, *plane = output.shape
    image, block, *_ = output.strides
    args: Args = {"y": output.ref + c // output.block * block, "image": image, "batch": n, "pixels": math.prod(plane)}
    parts = processor.parts(output.size // divide(c, output.block))
    return Step(zero_tail_lanes, ZeroTailTile(processor.isa.lanes, c % output.block, output.element), args, parts)
