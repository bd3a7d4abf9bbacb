"""Requantisation epilogue for int8 and uint8: four vectors at a time, by x86's saturating pack instructions.

In the short form, y = clamp(rint(f(sum)·scale) + zero): sums are packed to int16 with saturation, and the zero point is
added. Then they are packed to bytes and clamped, four vectors at a time. Saturated values are beyond every clamp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cpuconv.elements import U8
from cpuconv.isa.calls import call
from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.runtime.code.llvm import ir

QUAD = 4
_LARGE = 2.0**30  # above every clamp, and within int32: a conversion of larger values gives the smallest int32
_WORDS = {64: "llvm.x86.avx512.packssdw.512", 32: "llvm.x86.avx2.packssdw", 16: "llvm.x86.sse2.packssdw.128"}
_BYTES = {  # by whether the output is unsigned
    True: {64: "llvm.x86.avx512.packuswb.512", 32: "llvm.x86.avx2.packuswb", 16: "llvm.x86.sse2.packuswb.128"},
    False: {64: "llvm.x86.avx512.packsswb.512", 32: "llvm.x86.avx2.packsswb", 16: "llvm.x86.sse2.packsswb.128"},
}


def able(vec: Vector, epilogue: Epilogue) -> bool:
    """Whether sums end as int8 or uint8, on a CPU that has the instructions."""
    return epilogue.requantizes and vec.size in _WORDS and vec.builder.module.triple.startswith("x86")


class RequantizeQuads:
    """Emitter of the epilogue of `used` vectors of channels; the sums include their bias.

    Parameters
    ----------
    vec : Vector
    epilogue : Epilogue
        With an 8-bit output.
    address : LLVM value
        Address of the rows of vector 0.
    used : int
    order : Sequence[int]
        Channel vector of each of the four vectors that are narrowed together.
    """

    def __init__(self, vec: Vector, epilogue: Epilogue, address: Any, used: int, order: Sequence[int]) -> None:
        self._vec, self._epilogue, self._order = vec, epilogue, order
        rows = [epilogue.load(vec, vec.offset(address, vec.size * len(epilogue.rows) * j)) for j in range(used)]
        self._rows = [each | {"bias": vec.int_constant(0)} for each in rows]
        if epilogue.short:
            self._zero = self._words([each["zero"] for each in self._by_order()])
            self._low, self._high = (self._edge(address, name) for name in ("low", "high"))

    def narrow(self, totals: Sequence[Any], residuals: Sequence[Any], masked: Callable[[Any, int], Any]) -> Any:
        """Narrow four vectors of sums to bytes, vector by vector; None: a vector of zeros.

        `residuals` are vectors of float32, or None; `masked(value, at)` zeroes the lanes without a channel of an int32
        vector. The short form does not need it.
        """
        vec, builder, short = self._vec, self._vec.builder, self._epilogue.short
        numbers = []
        for at, (total, residual) in enumerate(zip(totals, residuals, strict=True)):
            if total is None:
                numbers.append(vec.int_constant(0))
                continue
            rows = self._rows[self._order[at]]
            if short:
                scaled = vec.mul(builder.sitofp(total, vec.type), rows["scale"])
                numbers.append(vec.nearest_int(vec.minimum(vec.constant(_LARGE), scaled)))
            else:
                numbers.append(masked(self._epilogue.emit(vec, total, rows, residual), at))
        words = self._words(numbers)
        if short:
            words = [self._added(*pair) for pair in zip(words, self._zero, strict=True)]
        narrow = self._bytes(words)
        if short:
            unsigned = self._epilogue.y == U8
            compare = builder.icmp_unsigned if unsigned else builder.icmp_signed
            for relation, edge in ((">", self._low), ("<", self._high)):
                narrow = builder.select(compare(relation, narrow, edge), narrow, edge)
        quads = vec.lanes // QUAD
        dwords = builder.bitcast(narrow, vec.int_type)
        in_order = vec.shuffle(dwords, dwords, [QUAD * quad + at for at in range(QUAD) for quad in range(quads)])
        return builder.bitcast(in_order, narrow.type)

    def _by_order(self) -> list[dict[str, Any]]:
        return [self._rows[j] for j in self._order]

    def _edge(self, address: Any, name: str) -> Any:
        """A clamp bound in the order of packed bytes."""
        vec, rows = self._vec, self._epilogue.rows
        step, at = vec.size * len(rows), vec.size * rows.index(name)
        loaded = [vec.load(vec.offset(address, step * j + at)) for j in range(len(self._rows))]
        whole = [vec.builder.fptosi(value, vec.int_type) for value in loaded]
        return self._bytes(self._words([whole[j] for j in self._order]))

    def _words(self, numbers: Sequence[Any]) -> list[Any]:
        """Pack pairs of int32 vectors to int16, with four elements of each in turn."""
        vec = self._vec
        kind = ir.VectorType(ir.IntType(16), 2 * vec.lanes)
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [call(vec.builder, _WORDS[vec.size], kind, list(pair)) for pair in pairs]

    def _bytes(self, words: Sequence[Any]) -> Any:
        """Pack two vectors of int16 to bytes, with eight elements of each in turn."""
        vec = self._vec
        kind = ir.VectorType(ir.IntType(8), 4 * vec.lanes)
        return call(vec.builder, _BYTES[self._epilogue.y == U8][vec.size], kind, list(words))

    def _added(self, words: Any, zero: Any) -> Any:
        return call(self._vec.builder, f"llvm.sadd.sat.v{words.type.count}i16", words.type, [words, zero])
