"""Requantisation epilogue for int8 and uint8: several vectors of sums at a time, by saturating instructions.

In the short form, y = clamp(rint(f(sum)·scale) + zero): sums become int32, then int16 with saturation, and the zero
point is added. Clamps are applied to int16, two vectors at a time, or to bytes, four vectors at a time. Saturated
values are beyond every clamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.elements import U8
from cpuconv.isa.calls import call
from cpuconv.isa.features import has_feature
from cpuconv.isa.typed import I8, I16, clamped, load_as_float
from cpuconv.isa.vector import I32, Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.runtime.code.llvm import ir

QUAD = 4
_LARGE = 2.0**30  # above every clamp, and within int32: a conversion of larger values gives the smallest int32
_WORDS = {64: "llvm.x86.avx512.packssdw.512", 32: "llvm.x86.avx2.packssdw", 16: "llvm.x86.sse2.packssdw.128"}
_BYTES = {  # by whether the output is unsigned
    True: {64: "llvm.x86.avx512.packuswb.512", 32: "llvm.x86.avx2.packuswb", 16: "llvm.x86.sse2.packuswb.128"},
    False: {64: "llvm.x86.avx512.packsswb.512", 32: "llvm.x86.avx2.packsswb", 16: "llvm.x86.sse2.packsswb.128"},
}


def _packs(vec: Vector) -> bool:
    """Whether the CPU has instructions that pack vectors with saturation."""
    return vec.size in _WORDS and vec.builder.module.triple.startswith("x86")


class Requantize:
    """Emitter of the epilogue of vectors of int32 sums, which include their bias, and of their stores.

    Parameters
    ----------
    vec : Vector
    epilogue : Epilogue
        With an 8-bit output.
    address : LLVM value
        Address of the rows of vector 0.
    """

    def __init__(self, vec: Vector, epilogue: Epilogue, address: Any) -> None:
        self._vec, self._epilogue, self._rows_at = vec, epilogue, address

    def store(self, sums: Sequence[Sequence[Any]], targets: Sequence[Any], residual: Any = None) -> None:
        """Emit the epilogue of the adjacent vectors of each target, and store them there.

        A vector that is None is one of zeros. `residual`: distance in bytes from a target to the residual.
        """
        raise NotImplementedError

    def _row(self, name: str, number: int) -> Any:
        """Load a row of a vector of sums."""
        vec, rows = self._vec, self._epilogue.rows
        return vec.load(vec.offset(self._rows_at, vec.size * (len(rows) * number + rows.index(name))))

    def _whole_rows(self, name: str, numbers: Sequence[int]) -> list[Any]:
        """Load rows of integers; packed to int16."""
        loaded = {number: self._row(name, number) for number in dict.fromkeys(numbers)}
        whole = {number: self._vec.builder.fptosi(row, self._vec.int_type) for number, row in loaded.items()}
        return self._words([whole[number] for number in numbers])

    def _added(self, target: Any, number: int, residual: Any) -> Any:
        """Load the residual of vector `number` of a target as float32; None without a residual."""
        vec, y = self._vec, self._epilogue.y
        place = vec.offset(target, number * vec.lanes)
        return load_as_float(vec, y, vec.offset(place, residual)) if self._epilogue.residual else None

    def _number(self, total: Any, rows: dict[str, Any], added: Any) -> Any:
        """The int32 of a vector of sums; in the short form without its zero point and clamps."""
        vec = self._vec
        if not self._epilogue.short:
            return self._epilogue.emit(vec, total, rows, added)
        scaled = vec.mul(vec.builder.sitofp(total, vec.type), rows["scale"])
        return vec.nearest_int(vec.minimum(vec.constant(_LARGE), scaled))

    def _words(self, numbers: Sequence[Any]) -> list[Any]:
        """Pack pairs of int32 vectors to int16 with saturation, with four elements of each in turn."""
        vec, builder = self._vec, self._vec.builder
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        if _packs(vec):
            kind = ir.VectorType(I16, 2 * vec.lanes)
            return [call(builder, _WORDS[vec.size], kind, list(pair)) for pair in pairs]
        half = ir.VectorType(I16, vec.lanes)
        ends = -(1 << 15), (1 << 15) - 1
        narrow = [[builder.trunc(clamped(vec, each, *ends), half) for each in pair] for pair in pairs]
        order = [side * vec.lanes + at + i for at in range(0, vec.lanes, QUAD) for side in (0, 1) for i in range(QUAD)]
        return [vec.shuffle(first, second, order) for first, second in narrow]

    def _with_zero(self, words: Any, zero: Any) -> Any:
        return call(self._vec.builder, f"llvm.sadd.sat.v{words.type.count}i16", words.type, [words, zero])

    def _within(self, value: Any, low: Any, high: Any, *, unsigned: bool = False) -> Any:
        """Clamp int16 or bytes."""
        builder = self._vec.builder
        compare = builder.icmp_unsigned if unsigned else builder.icmp_signed
        for relation, edge in ((">", low), ("<", high)):
            value = builder.select(compare(relation, value, edge), value, edge)
        return value

    def _write(self, value: Any, target: Any) -> None:
        builder = self._vec.builder
        builder.store(value, builder.bitcast(target, value.type.as_pointer())).align = 1


class RequantizePairs(Requantize):
    """Epilogue of `count` adjacent vectors, an even number, two at a time; only rows of the short form stay loaded."""

    def __init__(self, vec: Vector, epilogue: Epilogue, address: Any, count: int) -> None:
        super().__init__(vec, epilogue, address)
        if epilogue.short:
            self._scale = [self._row("scale", number) for number in range(count)]
            self._low, self._high, self._zero = (
                self._whole_rows(name, range(count)) for name in ("low", "high", "zero")
            )

    def store(self, sums: Sequence[Sequence[Any]], targets: Sequence[Any], residual: Any = None) -> None:
        """As in `Requantize`."""
        vec = self._vec
        for totals, target in zip(sums, targets, strict=True):
            added = [self._added(target, number, residual) for number in range(len(totals))]
            numbers = [
                vec.int_constant(0) if total is None else self._number(total, self._rows(number), added[number])
                for number, total in enumerate(totals)
            ]
            for pair, words in enumerate(self._words(numbers)):
                if self._epilogue.short:
                    words = self._within(self._with_zero(words, self._zero[pair]), self._low[pair], self._high[pair])
                self._write(self._narrow(words), vec.offset(target, 2 * vec.lanes * pair))

    def _rows(self, number: int) -> dict[str, Any]:
        if self._epilogue.short:
            return {"scale": self._scale[number]}
        return self._epilogue.load(self._vec, self._rows_at, number, started=True)

    def _narrow(self, words: Any) -> Any:
        """Narrow int16, with four elements of each vector in turn, to bytes of adjacent channels."""
        vec, builder = self._vec, self._vec.builder
        quads = vec.lanes // QUAD
        if vec.lanes == 16 and has_feature("avx512vbmi"):
            halves = builder.bitcast(words, ir.VectorType(I8, 4 * vec.lanes))
            order = [8 * (2 * quad + side) + 2 * i for side in (0, 1) for quad in range(quads) for i in range(QUAD)]
            return vec.shuffle(halves, halves, order)
        narrow = builder.trunc(words, ir.VectorType(I8, 2 * vec.lanes))
        if quads == 1:
            return narrow
        groups = builder.bitcast(narrow, ir.VectorType(I32, 2 * quads))
        order = [2 * quad + side for side in (0, 1) for quad in range(quads)]
        return builder.bitcast(vec.shuffle(groups, groups, order), narrow.type)


class RequantizeQuads(Requantize):
    """Epilogue of four vectors at a time, of one, two or four targets, by x86's packs; all rows stay loaded.

    Parameters
    ----------
    vec, epilogue, address
        As in `Requantize`.
    used : int
        Vectors of channels of a target, at most four.
    valid : int
        Lanes of the last vector that are channels; the others are stored as zero; 0: all.
    zeros : int
        Vectors of zeros stored after those of a target.

    Attributes
    ----------
    at_once : int
        Targets per store, at most.
    """

    def __init__(
        self, vec: Vector, epilogue: Epilogue, address: Any, used: int, *, valid: int = 0, zeros: int = 0
    ) -> None:
        super().__init__(vec, epilogue, address)
        self._used, self._valid, self._zeros = used, valid, zeros
        self._width = next(count for count in (1, 2, QUAD) if count >= used)  # vectors of a target among the four
        self.at_once = QUAD // self._width
        self._order = [min(at % self._width, used - 1) for at in range(QUAD)]
        self._rows = [epilogue.load(vec, address, number, started=True) for number in range(used)]
        if epilogue.short:
            self._zero = self._words([self._rows[number]["zero"] for number in self._order])
            self._low, self._high = (self._bytes(self._whole_rows(name, self._order)) for name in ("low", "high"))

    @staticmethod
    def able(vec: Vector, epilogue: Epilogue) -> bool:
        """Whether sums end as int8 or uint8, on a CPU that has the instructions."""
        return epilogue.requantizes and _packs(vec)

    def store(self, sums: Sequence[Sequence[Any]], targets: Sequence[Any], residual: Any = None) -> None:
        """As in `Requantize`; one store per target."""
        vec, width = self._vec, self._width
        totals: list[Any] = [None] * QUAD
        added: list[Any] = [None] * QUAD
        for at, (each, target) in enumerate(zip(sums, targets, strict=True)):
            for j, total in enumerate(each):
                totals[at * width + j], added[at * width + j] = total, self._added(target, j, residual)
        narrow = self._narrow([self._masked(at, *both) for at, both in enumerate(zip(totals, added, strict=True))])
        nothing, whole = ir.Constant(narrow.type, None), narrow.type.count
        kept, stored = self._used * vec.lanes, (self._used + self._zeros) * vec.lanes
        for at, target in enumerate(targets):
            first = at * width * vec.lanes
            lanes = [first + i if i < kept else whole for i in range(stored)]
            self._write(vec.shuffle(narrow, nothing, lanes), target)

    def _masked(self, at: int, total: Any, added: Any) -> Any:
        """The int32 of a vector; lanes without a channel are zero, in the short form by the clamps of their rows."""
        vec, nothing = self._vec, self._vec.int_constant(0)
        if total is None:
            return nothing
        value = self._number(total, self._rows[self._order[at]], added)
        if self._epilogue.short or not self._valid or at % self._width != self._used - 1:
            return value
        return vec.builder.select(vec.first_lanes_mask(self._valid), value, nothing)

    def _narrow(self, numbers: Sequence[Any]) -> Any:
        """Narrow four vectors of int32 to bytes, vector by vector."""
        vec, builder = self._vec, self._vec.builder
        words = self._words(numbers)
        if self._epilogue.short:
            words = [self._with_zero(*pair) for pair in zip(words, self._zero, strict=True)]
        narrow = self._bytes(words)
        if self._epilogue.short:
            narrow = self._within(narrow, self._low, self._high, unsigned=self._epilogue.y == U8)
        groups = builder.bitcast(narrow, vec.int_type)
        order = [QUAD * quad + at for at in range(QUAD) for quad in range(vec.lanes // QUAD)]
        return builder.bitcast(vec.shuffle(groups, groups, order), narrow.type)

    def _bytes(self, words: Sequence[Any]) -> Any:
        """Pack two vectors of int16 to bytes, with eight elements of each in turn."""
        vec = self._vec
        kind = ir.VectorType(I8, 4 * vec.lanes)
        return call(vec.builder, _BYTES[self._epilogue.y == U8][vec.size], kind, list(words))
