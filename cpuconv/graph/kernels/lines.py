"""Lines: work on all elements along one axis of plain memory, such as a softmax or a sum.

A tensor is seen as (outer, axis, inner), where `axis` may be several neighbouring axes as one. With inner = 1 a line
lies side by side, and the lanes of a vector are elements of one line; else lanes are neighbouring lines. Either way a
line is gone through a few times by one micro-kernel, which stays in L1 or L2 with it. A short line that lies side by
side is held in registers meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llvmlite import ir

from cpuconv.graph.kernels.fold import FOLDS, repeat
from cpuconv.graph.kernels.functions import FUNCTIONS, Math
from cpuconv.isa.vector import F32, I32, I64, Vector
from cpuconv.micro.transpose import first_lanes
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_log = FUNCTIONS["log"].emit
_LEAST = -87.0  # e to this power is the smallest normal number; below, it is zero here
_LOG2_E, _ROUNDER = 1.4426950408889634, 1.5 * 2**23
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # n·high is exact
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1.0, 1.0)


@dataclass(frozen=True)
class LineTile:
    """What is done along lines, and how lanes lie.

    Attributes
    ----------
    lanes : int
    vectors : int
        Vectors under way at once: along a line, or of neighbouring lines.
    work : str
        One of `WORKS`.
    across : bool
        Whether lanes are neighbouring lines.
    held : int
        Vectors of a line, where all are held in registers; 0: they are read again.
    masked : bool
        Across: only the first `valid` lanes are lines.
    epsilon : float
        Of normalisations.
    shift : bool
        Whether normalisations add a bias.
    """

    lanes: int
    vectors: int
    work: str
    across: bool
    held: int = 0
    masked: bool = False
    epsilon: float = 0.0
    shift: bool = False


@dataclass(frozen=True)
class _At:
    """One vector of a line under way: where it is read and written, which of `vectors` it is, and its lanes."""

    vec: Math
    x: Any
    y: Any
    offset: Any  # from the start of the line, where it lies side by side
    column: int
    mask: Any  # None: all lanes
    held: dict[Any, Any] | None = None  # what is known by address, and what is not written yet

    def load(self, address: Any) -> Any:
        if self.held is not None and address in self.held:
            return self.held[address]
        value = self.vec.load(address) if self.mask is None else self.vec.load_first(address, self.mask)
        if self.held is not None:
            self.held[address] = value
        return value

    def store(self, value: Any) -> None:
        """Write to the output; what is held is written at the end."""
        if self.held is not None:
            self.held[self.y] = value
        else:
            self.write(value)

    def write(self, value: Any) -> None:
        """Write to memory."""
        if self.mask is None:
            self.vec.store(value, self.y)
        else:
            self.vec.store_first(value, self.y, self.mask)


@dataclass(frozen=True)
class _Line:
    """A line, or `vectors` vectors of neighbouring lines, and its operands."""

    tile: LineTile
    vec: Math
    x: Any
    x_step: Any
    y: Any
    y_step: Any
    size: Any
    valid: Any
    scale: Any
    bias: Any

    @property
    def count(self) -> Any:
        """Elements of a line in every lane, as a float."""
        return self.vec.splat(self.vec.builder.sitofp(self.size, F32))

    def sweep(self, values: Sequence[Any], body: Callable[[_At, Any], Any]) -> list[Any]:
        """For every vector: ``values[column] = body(where, values[column])``; gives the values at the end."""
        if self.tile.held:
            return self._held(list(values), body)
        return (self._across if self.tile.across else self._along)(list(values), body)

    @cached_property
    def places(self) -> list[_At]:
        """The vectors of a line that is held."""
        vec, last = self.vec, self.tile.held - 1
        left = first_lanes(vec, vec.builder.sub(self.size, I64(last * vec.lanes)))
        offsets = [I64(index * vec.size) for index in range(last + 1)]
        return [
            _At(vec, vec.offset(self.x, offset), vec.offset(self.y, offset), offset, index % self.tile.vectors,
                left if index == last else None, {})
            for index, offset in enumerate(offsets)
        ]  # fmt: skip

    def _held(self, values: list[Any], body: Callable[[_At, Any], Any]) -> list[Any]:
        for at in self.places:
            values[at.column] = body(at, values[at.column])
        return values

    def finish(self) -> None:
        """Write what is held."""
        for at in self.places if self.tile.held else ():
            if at.held is not None and at.y in at.held:
                at.write(at.held[at.y])

    def _across(self, values: list[Any], body: Callable[[_At, Any], Any]) -> list[Any]:
        builder, vec = self.vec.builder, self.vec
        mask = first_lanes(vec, self.valid) if self.tile.masked else None

        def step(index: Any, values: list[Any]) -> list[Any]:
            x = vec.offset(self.x, builder.mul(index, self.x_step))
            y = vec.offset(self.y, builder.mul(index, self.y_step))
            for j in range(self.tile.vectors):
                at = _At(vec, vec.offset(x, j * vec.size), vec.offset(y, j * vec.size), None, j, mask)
                values[j] = body(at, values[j])
            return values

        return repeat(vec, I64(0), self.size, values, step)

    def _along(self, values: list[Any], body: Callable[[_At, Any], Any]) -> list[Any]:
        builder, vec, unroll = self.vec.builder, self.vec, self.tile.vectors
        whole = builder.udiv(builder.sub(self.size, I64(1)), I64(vec.lanes))  # the last vector has 1 … lanes elements
        groups = builder.udiv(whole, I64(unroll))

        def at(index: Any, j: int, mask: Any = None) -> _At:
            offset = builder.mul(index, I64(vec.size))
            return _At(vec, vec.offset(self.x, offset), vec.offset(self.y, offset), offset, j, mask)

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

    def each(self, body: Callable[[_At], None]) -> None:
        """`body` for every vector."""

        def step(at: _At, value: Any) -> Any:
            body(at)
            return value

        self.sweep([I32(0)] * self.tile.vectors, step)

    def reduce(self, kind: str, body: Callable[[_At], Any]) -> list[Any]:
        """What `body` gives for the elements of a line, combined: a vector for each column of lines.

        Along a line every lane of every column is the result.
        """
        vec, (neutral, combine) = self.vec, COMBINE[kind]
        start = vec.constant(neutral)

        def step(at: _At, value: Any) -> Any:
            new = body(at)
            if at.mask is not None:
                new = vec.builder.select(at.mask, new, start)
            return combine(vec, value, new)

        values = self.sweep([start] * self.tile.vectors, step)
        if self.tile.across:
            return values
        while len(values) > 1:
            half = len(values) // 2
            values = [combine(vec, a, b) for a, b in zip(values[:half], values[half:], strict=True)]
        (total,) = values
        distance = vec.lanes // 2
        while distance:
            turned = vec.shuffle(total, total, [lane ^ distance for lane in range(vec.lanes)])
            total, distance = combine(vec, total, turned), distance // 2
        return [total] * self.tile.vectors

    def result(self, values: list[Any]) -> None:
        """Write one element a line."""
        vec = self.vec
        if not self.tile.across:
            scalar = vec.builder.extract_element(values[0], I32(0))
            vec.builder.store(scalar, vec.builder.bitcast(self.y, F32.as_pointer()))
            return
        mask = first_lanes(vec, self.valid) if self.tile.masked else None
        for j, value in enumerate(values):
            _At(vec, None, vec.offset(self.y, j * vec.size), None, j, mask).store(value)


# --- what is done along a line --------------------------------------------------------------------------------------


COMBINE: dict[str, tuple[float, Callable[[Vector, Any, Any], Any]]] = {
    "sum": (0.0, FOLDS["sum"]),
    "prod": (1.0, Vector.mul),
    "max": (-math.inf, FOLDS["max"]),
    "top": (-math.inf, Vector.maximum),  # of numbers: what it gives with NaN depends on where that is
    "min": (math.inf, FOLDS["min"]),
}
"""How elements are combined, and what changes nothing."""


def _softmax(line: _Line) -> None:
    """exp(x - max) / sum of exp(x - max)."""
    vec = line.vec

    def power(at: _At) -> Any:
        value = _exp_below(vec, vec.sub(at.load(at.x), top[at.column]))
        at.store(value)
        return value

    top = line.reduce("top", lambda at: at.load(at.x))
    total = line.reduce("sum", power)
    inverse = [vec.div(vec.constant(1.0), value) for value in total]
    line.each(lambda at: at.store(vec.mul(at.load(at.y), inverse[at.column])))


def _log_softmax(line: _Line) -> None:
    """x - max - log(sum of exp(x - max))."""
    vec = line.vec
    top = line.reduce("top", lambda at: at.load(at.x))
    total = line.reduce("sum", lambda at: _exp_below(vec, vec.sub(at.load(at.x), top[at.column])))
    less = [_log(vec, value) for value in total]
    line.each(lambda at: at.store(vec.sub(vec.sub(at.load(at.x), top[at.column]), less[at.column])))


def _exp_below(vec: Math, x: Any) -> Any:
    """e^x of x <= 0 to 2 ulp, exactly zero where it is below the normal numbers (Cephes expf).

    Adding `_ROUNDER` leaves n, the nearest integer to x / log 2, in the last bits of a float.
    """
    builder = vec.builder
    rounded = vec.fma(x, vec.constant(_LOG2_E), vec.constant(_ROUNDER))
    n = vec.sub(rounded, vec.constant(_ROUNDER))
    r = vec.fma(n, vec.constant(-_LN2_HIGH), x)
    r = vec.fma(n, vec.constant(-_LN2_LOW), r)
    exponent = builder.shl(builder.bitcast(rounded, vec.int_type), vec.int_constant(23))
    power = builder.bitcast(builder.add(exponent, vec.int_constant(127 << 23)), vec.type)
    value = vec.mul(vec.polynomial(r, _EXP), power)
    return vec.where("<", x, vec.constant(_LEAST), vec.constant(0.0), value)


def _standard(line: _Line, affine: Callable[[_At, Any], Any]) -> None:
    """affine((x - mean) / sqrt(variance + epsilon))."""
    vec = line.vec
    mean = [vec.div(value, line.count) for value in line.reduce("sum", lambda at: at.load(at.x))]

    def square(at: _At) -> Any:
        away = vec.sub(at.load(at.x), mean[at.column])
        return vec.mul(away, away)

    epsilon = vec.constant(line.tile.epsilon)
    variance = [vec.add(vec.div(value, line.count), epsilon) for value in line.reduce("sum", square)]
    inverse = [vec.div(vec.constant(1.0), vec.square_root(value)) for value in variance]
    line.each(lambda at: at.store(affine(at, vec.mul(vec.sub(at.load(at.x), mean[at.column]), inverse[at.column]))))


def _layer_normalization(line: _Line) -> None:
    """Along a line: scale and bias are of its elements."""
    vec = line.vec

    def affine(at: _At, value: Any) -> Any:
        scale = at.load(vec.offset(line.scale, at.offset))
        if not line.tile.shift:
            return vec.mul(value, scale)
        return vec.fma(value, scale, at.load(vec.offset(line.bias, at.offset)))

    _standard(line, affine)


def _instance_normalization(line: _Line) -> None:
    """Along a line: one scale and one bias."""
    vec = line.vec
    scale, bias = vec.broadcast(line.scale), vec.broadcast(line.bias)
    _standard(line, lambda at, value: vec.fma(value, scale, bias))


def _reduction(
    kind: str, of: Callable[[Math, Any], Any], end: Callable[[Math, Any, Any], Any]
) -> Callable[[_Line], None]:
    """end(combined of(x), number of elements)."""

    def emit(line: _Line) -> None:
        values = line.reduce(kind, lambda at: of(line.vec, at.load(at.x)))
        line.result([end(line.vec, value, line.count) for value in values])

    return emit


def _itself(vec: Math, x: Any, count: Any = None) -> Any:
    return x


def _square(vec: Math, x: Any) -> Any:
    return vec.mul(x, x)


WORKS: dict[str, Callable[[_Line], None]] = {
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "LayerNormalization": _layer_normalization,
    "InstanceNormalization": _instance_normalization,
    "ReduceSum": _reduction("sum", _itself, _itself),
    "ReduceMean": _reduction("sum", _itself, Vector.div),
    "ReduceMax": _reduction("max", _itself, _itself),
    "ReduceMin": _reduction("min", _itself, _itself),
    "ReduceProd": _reduction("prod", _itself, _itself),
    "ReduceL1": _reduction("sum", Vector.absolute, _itself),
    "ReduceL2": _reduction("sum", _square, lambda vec, x, count: vec.square_root(x)),
    "ReduceSumSquare": _reduction("sum", _square, _itself),
    "ReduceLogSum": _reduction("sum", _itself, lambda vec, x, count: _log(vec, x)),
}
"""What micro-kernels do along a line, by the name of the operator."""


# --- the kernel -----------------------------------------------------------------------------------------------------


@MicroKernel
def line(
    tile: LineTile,
    builder: ir.IRBuilder,
    x: Any,
    x_step: Any,
    y: Any,
    y_step: Any,
    size: Any,
    valid: Any,
    scale: Any,
    bias: Any,
) -> None:
    """The work of a tile on a line of `size` (>= 1) elements, or on vectors of neighbouring lines.

    Parameters
    ----------
    x_step, y_step
        Across: bytes from an element of a line to the next.
    valid
        Masked: lanes that are lines.
    """
    vec = Math(builder, tile.lanes)
    x, y, scale, bias = (vec.pointer(address) for address in (x, y, scale, bias))
    whole = _Line(tile, vec, x, x_step, y, y_step, size, valid, scale, bias)
    WORKS[tile.work](whole)
    whole.finish()


_call_line = line.caller()


@dataclass(frozen=True)
class LinesTile:
    """Lanes of the instruction set, and vectors that a call of the micro-kernel for many lines takes."""

    lanes: int
    vectors: int


@kernel(
    "micro micro_last x y scale bias images rows blocks wide inner x_image x_row x_step y_image y_row y_step size "
    "channels channel_step"
)
def lines(tile, worker, before, part, parts, args):
    """The work of the micro-kernels on all lines: (image, row, block of neighbouring lines).

    `wide` blocks have `tile.vectors` vectors of lines, the others one vector.
    """
    units = args.images * args.rows * args.blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        row = unit // args.blocks
        block = unit - row * args.blocks
        image = row // args.rows
        channel = row % args.channels * args.channel_step
        vector = block * tile.vectors if block < args.wide else block + args.wide * (tile.vectors - 1)
        first = vector * tile.lanes
        _call_line(
            args.micro if block < args.wide else args.micro_last,
            args.x + image * args.x_image + (row - image * args.rows) * args.x_row + 4 * first,
            args.x_step,
            args.y + image * args.y_image + (row - image * args.rows) * args.y_row + 4 * first,
            args.y_step,
            args.size,
            min(tile.lanes, args.inner - first),
            args.scale + channel,
            args.bias + channel,
        )
