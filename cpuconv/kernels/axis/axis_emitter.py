"""Loops over one line: they take its vectors in turn and combine them.

What is done along a line is stated once, for lines that lie side by side, for those that lie across, and for short ones
that are held in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.locks import lazy
from cpuconv.isa.vector import F32, I32, I64, Vector
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.fold import FOLDS, repeat
from cpuconv.kernels.emit.transpose import first_lanes

COMBINE: dict[str, tuple[float, Callable[[Vector, Any, Any], Any]]] = {
    "sum": (0.0, FOLDS["sum"]),
    "prod": (1.0, Vector.mul),
    "max": (-math.inf, FOLDS["max"]),
    "top": (-math.inf, Vector.maximum),  # of numbers: what it gives with NaN depends on where that is
    "min": (math.inf, FOLDS["min"]),
}
"""How elements are combined, and what changes nothing."""


@dataclass(frozen=True)
class AxisTile:
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
class At:
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
class AxisLoops:
    """Loops over a line, or over `vectors` vectors of neighbouring lines, and the operands of its work."""

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

    @property
    def count(self) -> Any:
        """Elements of a line in every lane, as a float."""
        return self.vec.splat(self.vec.builder.sitofp(self.size, F32))

    def sweep(self, values: Sequence[Any], body: Callable[[At, Any], Any]) -> list[Any]:
        """For every vector: ``values[column] = body(where, values[column])``; gives the values at the end."""
        if self.tile.held:
            return self._held(list(values), body)
        return (self._across if self.tile.across else self._along)(list(values), body)

    @lazy
    def places(self) -> list[At]:
        """The vectors of a line that is held."""
        vec, last = self.vec, self.tile.held - 1
        left = first_lanes(vec, vec.builder.sub(self.size, I64(last * vec.lanes)))
        offsets = [I64(index * vec.size) for index in range(last + 1)]
        return [
            At(vec, vec.offset(self.x, offset), vec.offset(self.y, offset), offset, index % self.tile.vectors,
                left if index == last else None, {})
            for index, offset in enumerate(offsets)
        ]  # fmt: skip

    def _held(self, values: list[Any], body: Callable[[At, Any], Any]) -> list[Any]:
        for at in self.places:
            values[at.column] = body(at, values[at.column])
        return values

    def finish(self) -> None:
        """Write what is held."""
        for at in self.places if self.tile.held else ():
            if at.held is not None and at.y in at.held:
                at.write(at.held[at.y])

    def _across(self, values: list[Any], body: Callable[[At, Any], Any]) -> list[Any]:
        builder, vec = self.vec.builder, self.vec
        mask = first_lanes(vec, self.valid) if self.tile.masked else None

        def step(index: Any, values: list[Any]) -> list[Any]:
            x = vec.offset(self.x, builder.mul(index, self.x_step))
            y = vec.offset(self.y, builder.mul(index, self.y_step))
            for j in range(self.tile.vectors):
                at = At(vec, vec.offset(x, j * vec.size), vec.offset(y, j * vec.size), None, j, mask)
                values[j] = body(at, values[j])
            return values

        return repeat(vec, I64(0), self.size, values, step)

    def _along(self, values: list[Any], body: Callable[[At, Any], Any]) -> list[Any]:
        builder, vec, unroll = self.vec.builder, self.vec, self.tile.vectors
        whole = builder.udiv(builder.sub(self.size, I64(1)), I64(vec.lanes))  # the last vector has 1 … lanes elements
        groups = builder.udiv(whole, I64(unroll))

        def at(index: Any, j: int, mask: Any = None) -> At:
            offset = builder.mul(index, I64(vec.size))
            return At(vec, vec.offset(self.x, offset), vec.offset(self.y, offset), offset, j, mask)

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
        """`body` for every vector."""

        def step(at: At, value: Any) -> Any:
            body(at)
            return value

        self.sweep([I32(0)] * self.tile.vectors, step)

    def reduce(self, kind: str, body: Callable[[At], Any]) -> list[Any]:
        """What `body` gives for the elements of a line, combined: a vector for each column of lines.

        Along a line every lane of every column is the result.
        """
        vec, (neutral, combine) = self.vec, COMBINE[kind]
        start = vec.constant(neutral)

        def step(at: At, value: Any) -> Any:
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
            At(vec, None, vec.offset(self.y, j * vec.size), None, j, mask).store(value)
