"""Loops over a line, whose vectors they load and combine one after another.

An operation is written once, for contiguous lines, for lines across lanes, and for short lines in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.elements import F32 as FLOATS
from cpuconv.elements import Element
from cpuconv.isa.typed import load_as_float, store_float, store_int
from cpuconv.isa.vector import F32, I32, I64, Vector
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.fold import FOLDS, fold_lanes, repeat
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.problem.quantization import bounds

COMBINE: dict[str, tuple[float, Callable[[Vector, Any, Any], Any]]] = {
    "sum": (0.0, FOLDS["sum"]),
    "prod": (1.0, Vector.mul),
    "max": (-math.inf, FOLDS["max"]),
    "top": (-math.inf, Vector.maximum),  # for inputs without NaN: with NaN the result depends on its position
    "min": (math.inf, FOLDS["min"]),
}
"""Combining operations of reductions, with their neutral elements."""


LINE_REGISTERS = (1, 2, 3, 4, 6, 8, 12, 16)  # numbers of vectors for which a line is kept in registers


@dataclass(frozen=True)
class AxisTile:
    """Tile: an operation on lines, and the mapping of lines to lanes.

    Attributes
    ----------
    lanes : int
    vectors : int
        Independent vectors per iteration: along a line, or of adjacent lines.
    operation : str
        One of `OPERATIONS`.
    across : bool
        Whether lanes are adjacent lines.
    registers : int
        Registers for a whole line: the smallest number in `LINE_REGISTERS` that is enough; 0: each pass loads the line
        again.
    masked : bool
        Across: only the first `valid` lanes are lines.
    epsilon : float
        Epsilon of normalisations.
    shift : bool
        Whether normalisations add a bias.
    lines : int
        Contiguous lines per call of a reduction, in registers one after another: 1 or `lanes`.
    x, y : Element
        Types of input and output: float32, bfloat16, or quantised int8 or uint8.
    """

    lanes: int
    vectors: int
    operation: str
    across: bool
    registers: int = 0
    masked: bool = False
    epsilon: float = 0.0
    shift: bool = False
    lines: int = 1
    x: Element = FLOATS
    y: Element = FLOATS

    @property
    def scratch(self) -> int:
        """Bytes of float32 scratch per element of a line, if a narrow output loses intermediate values; else 0."""
        if self.registers or self.y == FLOATS or self.operation != "Softmax":
            return 0
        return FLOATS.bytes * (self.lanes * self.vectors if self.across else 1)


class Bytes:
    """Quantised integers of a type: numbers[0] · (q - numbers[1]), `numbers` being float32 in memory."""

    def __init__(self, vec: Vector, element: Element, numbers: Any) -> None:
        self._vec, self._element = vec, element
        self._scale, self._zero = (vec.broadcast(vec.offset(numbers, 4 * at)) for at in range(2))

    def load(self, address: Any, mask: Any) -> Any:
        """Load and dequantise a vector; lanes outside the mask are those of the integer 0."""
        vec = self._vec
        return vec.mul(vec.sub(load_as_float(vec, self._element, address, mask), self._zero), self._scale)

    def of(self, value: Any) -> Any:
        """Quantise float32 to int32 lanes within the range of the type."""
        vec = self._vec
        whole = vec.add(vec.round(vec.div(value, self._scale)), self._zero)
        return vec.nearest_int(vec.clip(whole, *bounds(self._element)))

    def store(self, value: Any, address: Any, mask: Any) -> None:
        """Quantise float32 and store the integers."""
        store_int(self._vec, self._element, self.of(value), address, mask, fits=True)


class Narrow:
    """Floating-point elements narrower than float32."""

    def __init__(self, vec: Vector, element: Element) -> None:
        self._vec, self._element = vec, element

    def load(self, address: Any, mask: Any) -> Any:
        """Load and widen a vector; lanes outside the mask are zero."""
        return load_as_float(self._vec, self._element, address, mask)

    def store(self, value: Any, address: Any, mask: Any) -> None:
        """Round float32 and store."""
        store_float(self._vec, self._element, value, address, mask)


@dataclass(frozen=True)
class At:
    """One vector of a line: addresses of input and output, its index among `vectors`, and its lanes."""

    vec: Math
    x: Any
    y: Any
    offset: Any  # bytes from the start of a contiguous line
    column: int
    mask: Any  # None: all lanes
    registers: dict[Any, Any] | None = None  # values in registers by address: loaded, or not stored yet
    read: Bytes | Narrow | None = None  # converts x; None: x is float32
    written: Bytes | Narrow | None = None
    scratch_address: Any = None  # address of scratch for float32 values; None: at y

    def save(self, value: Any) -> Any:
        """Save float32 values for `saved`, and return them."""
        if self.scratch_address is None:
            self.store(value)
        else:
            self.vec.store(value, self.scratch_address)
        return value

    def saved(self) -> Any:
        """The values of `save`."""
        return self.load(self.y) if self.scratch_address is None else self.vec.load(self.scratch_address)

    def input(self) -> Any:
        """The input as float32."""
        if self.read is None:
            return self.load(self.x)
        known = {} if self.registers is None else self.registers
        if self.x not in known:
            known[self.x] = self.read.load(self.x, self.mask)
        return known[self.x]

    def load(self, address: Any) -> Any:
        if self.registers is not None and address in self.registers:
            return self.registers[address]
        value = self.vec.load(address) if self.mask is None else self.vec.load_masked(address, self.mask)
        if self.registers is not None:
            self.registers[address] = value
        return value

    def store(self, value: Any) -> None:
        """Set the output; a line in registers is stored at the end."""
        if self.registers is not None:
            self.registers[self.y] = value
        else:
            self.write(value)

    def write(self, value: Any) -> None:
        """Store to memory."""
        if self.written is not None:
            self.written.store(value, self.y, self.mask)
        elif self.mask is None:
            self.vec.store(value, self.y)
        else:
            self.vec.store_masked(value, self.y, self.mask)


@dataclass(frozen=True)
class AxisLoops:
    """Loops over a line, or over `vectors` vectors of adjacent lines, and the operands of the operation."""

    tile: AxisTile
    vec: Math
    x: Any
    x_step: Any
    y: Any
    y_step: Any
    size: Any
    valid: Any
    scale: Any
    bias: Any
    numbers: Any  # scale and zero point of an integer input, then of an integer output
    scratch: Any

    @lazy
    def ends(self) -> tuple[Bytes | Narrow | None, Bytes | Narrow | None]:
        """Conversions of input and output; None: float32."""
        x, y = (self._end(at, element) for at, element in enumerate((self.tile.x, self.tile.y)))
        return x, y

    def _end(self, at: int, element: Element) -> Bytes | Narrow | None:
        if element == FLOATS:
            return None
        integer = element.integer
        return Bytes(self.vec, element, self.vec.offset(self.numbers, 8 * at)) if integer else Narrow(self.vec, element)

    def spot(self, start: Any, element: Element, index: Any) -> Any:
        """Address of vector number `index` of contiguous elements."""
        size = self.vec.lanes * element.bytes
        if isinstance(index, int):
            return self.vec.offset(start, I64(index * size) if self.tile.registers else index * size)
        return self.vec.offset(start, self.vec.builder.mul(index, I64(size)))

    def scratch_address(self, number: Any) -> Any:
        """Address of the scratch of vector `number` of a line, or of adjacent lines."""
        if not self.tile.scratch:
            return None
        return self.spot(self.scratch, FLOATS, number)

    @property
    def count(self) -> Any:
        """Number of elements of a line in every lane, as float32."""
        return self.vec.splat(self.vec.builder.sitofp(self.size, F32))

    def sweep(self, values: Sequence[Any], body: Callable[[At, Any], Any]) -> list[Any]:
        """For every vector: ``values[column] = body(at, values[column])``; returns the final values."""
        if self.tile.registers:
            return self._in_registers(list(values), body)
        return (self._across if self.tile.across else self._along)(list(values), body)

    @lazy
    def places(self) -> list[At]:
        """Vectors of a line in registers; the last ones, by which a line may be shorter, are masked."""
        vec, registers = self.vec, self.tile.registers
        whole = max((each for each in LINE_REGISTERS if each < registers), default=0)
        left = [first_lanes(vec, vec.builder.sub(self.size, I64(at * vec.lanes))) for at in range(whole, registers)]
        return [
            At(vec, self.spot(self.x, self.tile.x, index), self.spot(self.y, self.tile.y, index),
                I64(index * vec.size), index % self.tile.vectors, mask, {}, *self.ends)
            for index, mask in enumerate([None] * whole + left)
        ]  # fmt: skip

    def _in_registers(self, values: list[Any], body: Callable[[At, Any], Any]) -> list[Any]:
        for at in self.places:
            values[at.column] = body(at, values[at.column])
        return values

    def finish(self) -> None:
        """Store the line in registers."""
        for at in self.places if self.tile.registers else ():
            if at.registers is not None and at.y in at.registers:
                at.write(at.registers[at.y])

    def _across(self, values: list[Any], body: Callable[[At, Any], Any]) -> list[Any]:
        builder, vec = self.vec.builder, self.vec
        mask = first_lanes(vec, self.valid) if self.tile.masked else None
        ends = self.ends

        def step(index: Any, values: list[Any]) -> list[Any]:
            x = vec.offset(self.x, builder.mul(index, self.x_step))
            y = vec.offset(self.y, builder.mul(index, self.y_step))
            for j in range(self.tile.vectors):
                places = self.spot(x, self.tile.x, j), self.spot(y, self.tile.y, j)
                scratch_address = self.scratch_address(builder.add(builder.mul(index, I64(self.tile.vectors)), I64(j)))
                at = At(vec, *places, None, j, mask, None, *ends, scratch_address)
                values[j] = body(at, values[j])
            return values

        return repeat(vec, I64(0), self.size, values, step)

    def _along(self, values: list[Any], body: Callable[[At, Any], Any]) -> list[Any]:
        builder, vec, unroll = self.vec.builder, self.vec, self.tile.vectors
        whole = builder.udiv(builder.sub(self.size, I64(1)), I64(vec.lanes))  # the last vector has 1 … lanes elements
        groups = builder.udiv(whole, I64(unroll))
        ends = self.ends

        def at(index: Any, j: int, mask: Any = None) -> At:
            offset = builder.mul(index, I64(vec.size))
            places = self.spot(self.x, self.tile.x, index), self.spot(self.y, self.tile.y, index)
            return At(vec, *places, offset, j, mask, None, *ends, self.scratch_address(index))

        def several(index: Any, values: list[Any]) -> list[Any]:
            first = builder.mul(index, I64(unroll))
            return [body(at(builder.add(first, I64(j)), j), values[j]) for j in range(unroll)]

        def one(index: Any, values: list[Any]) -> list[Any]:
            return [body(at(index, 0), values[0])]

        values = repeat(vec, I64(0), groups, values, several)
        values[:1] = repeat(vec, builder.mul(groups, I64(unroll)), whole, values[:1], one)
        left = builder.sub(self.size, builder.mul(whole, I64(vec.lanes)))
        values[0] = body(at(whole, 0, first_lanes(vec, left)), values[0])
        return values

    def each(self, body: Callable[[At], None]) -> None:
        """Call `body` for every vector."""

        def step(at: At, value: Any) -> Any:
            body(at)
            return value

        self.sweep([I32(0)] * self.tile.vectors, step)

    def reduce(self, kind: str, body: Callable[[At], Any]) -> list[Any]:
        """Reduce the values of `body` for the elements of a line: one vector per column of lines.

        Along a line, every lane of every column has the result; along several lines, each lane that of one line.
        """
        vec, combine = self.vec, COMBINE[kind][1]
        if self.tile.lines > 1:
            starts = [vec.offset(self.x, vec.builder.mul(I64(at), self.x_step)) for at in range(self.tile.lines)]
            return [fold_lanes(vec, combine, [replace(self, x=start)._columns(kind, body)[0] for start in starts])]
        values = self._columns(kind, body)
        return values if self.tile.across else [fold_lanes(vec, combine, values)] * self.tile.vectors

    def _columns(self, kind: str, body: Callable[[At], Any]) -> list[Any]:
        """Reduce vectors to one per column of lines; along a line, to one."""
        vec, (neutral, combine) = self.vec, COMBINE[kind]
        start = vec.constant(neutral)

        def step(at: At, value: Any) -> Any:
            new = body(at)
            if at.mask is not None:
                new = vec.builder.select(at.mask, new, start)
            return combine(vec, value, new)

        values = self.sweep([start] * self.tile.vectors, step)
        while len(values) > 1 and not self.tile.across:
            half = len(values) // 2
            values = [combine(vec, a, b) for a, b in zip(values[:half], values[half:], strict=True)]
        return values

    def result(self, values: list[Any]) -> None:
        """Store one element per line."""
        vec = self.vec
        written = self.ends[1]
        one_line = not self.tile.across and self.tile.lines == 1
        if one_line and isinstance(written, Bytes):
            one = vec.builder.extract_element(written.of(values[0]), I32(0))
            store_int(Vector(vec.builder, 1), self.tile.y, one, self.y, fits=True)
            return
        if one_line:
            store_float(Vector(vec.builder, 1), self.tile.y, vec.builder.extract_element(values[0], I32(0)), self.y)
            return
        mask = first_lanes(vec, self.valid) if self.tile.masked else None
        for j, value in enumerate(values):
            At(vec, None, self.spot(self.y, self.tile.y, j), None, j, mask, None, *self.ends).store(value)
