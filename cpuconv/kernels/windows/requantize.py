"""Requantisation epilogue for adjacent int8 or uint8 channels: several vectors of sums, by saturating instructions.

In the short form, y = clamp(rint(f(sum)·scale) + zero): sums become int32, then int16 with saturation. There the zero
point is added and clamps are applied, for two vectors at a time. Saturated values are beyond every clamp, before and
after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.isa.features import offered
from cpuconv.isa.typed import clamped
from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.runtime.code.llvm import ir

I8, I16 = ir.IntType(8), ir.IntType(16)
_LARGE = 2.0**30  # upper bound within int32: a conversion of larger values gives the smallest int32
_PACK = {64: "llvm.x86.avx512.packssdw.512", 32: "llvm.x86.avx2.packssdw", 16: "llvm.x86.sse2.packssdw.128"}


class Requantize:
    """Emitter of the epilogue of `count` vectors of sums (an even number) of adjacent channels.

    The constructor loads the numbers that it reads. Sums include their bias.
    """

    def __init__(self, vec: Vector, epilogue: Epilogue, address: Any, count: int) -> None:
        self._vec, self._epilogue, self._count = vec, epilogue, count
        step = vec.size * len(epilogue.rows)
        self._places = [vec.offset(address, step * number) for number in range(count)]
        if epilogue.short:
            self._scale = [self._row("scale", number) for number in range(count)]
            low, high, zero = ([self._row(name, at) for at in range(count)] for name in ("low", "high", "zero"))
            self._low, self._high, self._zero = (
                self._pairs(list(map(self._whole, each))) for each in (low, high, zero)
            )

    def bias(self, number: int) -> Any:
        """Load the initial sums of a vector, int32."""
        vec = self._vec
        return vec.load_int(self._places[number])

    def store(self, totals: Sequence[Any], target: Any, residuals: Sequence[Any] | None = None) -> None:
        """Store sums as bytes at `target`; None: all are zero; `residuals` are vectors of float32."""
        vec, builder = self._vec, self._vec.builder
        nothing = vec.int_constant(0)
        numbers = [
            nothing if total is None else self._number(total, at, residuals and residuals[at])
            for at, total in enumerate(totals)
        ]
        for at, value in enumerate(self._pairs(numbers)):
            if self._epilogue.short:
                value = self._in_range(value, at)
            narrow = self._in_order(value)
            place = vec.offset(target, 2 * vec.lanes * at)
            builder.store(narrow, builder.bitcast(place, narrow.type.as_pointer())).align = 1

    def _row(self, name: str, number: int) -> Any:
        return self._vec.load(self._vec.offset(self._places[number], self._vec.size * self._epilogue.rows.index(name)))

    def _whole(self, value: Any) -> Any:
        return self._vec.builder.fptosi(value, self._vec.int_type)

    def _number(self, total: Any, number: int, residual: Any) -> Any:
        vec, builder = self._vec, self._vec.builder
        if self._epilogue.short:
            value = vec.mul(builder.sitofp(total, vec.type), self._scale[number])
            return vec.nearest_int(vec.minimum(vec.constant(_LARGE), value))
        rows = self._epilogue.load(vec, self._places[number])
        return self._epilogue.emit(vec, total, rows | {"bias": vec.int_constant(0)}, residual)

    def _pairs(self, numbers: Sequence[Any]) -> list[Any]:
        """Pack pairs of int32 vectors to int16 with saturation, with four elements of each in turn."""
        vec, builder = self._vec, self._vec.builder
        kind = ir.VectorType(I16, 2 * vec.lanes)
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        if (name := _PACK.get(vec.size)) and builder.module.triple.startswith("x86"):
            module, form = builder.module, ir.FunctionType(kind, [vec.int_type, vec.int_type])
            pack = module.globals.get(name) or ir.Function(module, form, name)
            return [builder.call(pack, pair) for pair in pairs]
        half = ir.VectorType(I16, vec.lanes)
        ends = -(1 << 15), (1 << 15) - 1
        narrow = [[builder.trunc(clamped(vec, each, *ends), half) for each in pair] for pair in pairs]
        order = [side * vec.lanes + at + i for at in range(0, vec.lanes, 4) for side in (0, 1) for i in range(4)]
        return [vec.shuffle(first, second, order) for first, second in narrow]

    def _in_range(self, value: Any, number: int) -> Any:
        """Add the zero point, and clamp."""
        builder, module = self._vec.builder, self._vec.builder.module
        name = f"llvm.sadd.sat.v{value.type.count}i16"
        form = ir.FunctionType(value.type, [value.type, value.type])
        value = builder.call(module.globals.get(name) or ir.Function(module, form, name), [value, self._zero[number]])
        for relation, edge in ((">", self._low[number]), ("<", self._high[number])):
            value = builder.select(builder.icmp_signed(relation, value, edge), value, edge)
        return value

    def _in_order(self, value: Any) -> Any:
        """Narrow int16, with four elements of each vector in turn, to bytes of adjacent channels."""
        vec, builder = self._vec, self._vec.builder
        quads = vec.lanes // 4
        if vec.lanes == 16 and offered("avx512vbmi"):
            halves = builder.bitcast(value, ir.VectorType(I8, 4 * vec.lanes))
            order = [8 * (2 * quad + side) + 2 * i for side in (0, 1) for quad in range(quads) for i in range(4)]
            return vec.shuffle(halves, halves, order)
        narrow = builder.trunc(value, ir.VectorType(I8, 2 * vec.lanes))
        if quads == 1:
            return narrow
        words = builder.bitcast(narrow, ir.VectorType(ir.IntType(32), 2 * quads))
        order = [2 * quad + side for side in (0, 1) for quad in range(quads)]
        return builder.bitcast(vec.shuffle(words, words, order), narrow.type)
