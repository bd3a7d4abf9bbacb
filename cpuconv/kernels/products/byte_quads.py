"""Endings of sums that are stored as bytes, four vectors at once: narrowed by instructions of x86 that saturate.

Of the short form, y = clamp(rint(f(sum)·scale) + zero): sums become int32 and int16 with saturation, where the zero
point is added, then bytes, where the clamps are met, of four vectors at once. What saturates is beyond every clamp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cpuconv.elements import U8
from cpuconv.isa.calls import call
from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.ending import Ending
from cpuconv.runtime.code.llvm import ir

QUAD = 4
_LARGE = 2.0**30  # more than any clamp, and not beyond int32: what is beyond becomes the least int32
_WORDS = {64: "llvm.x86.avx512.packssdw.512", 32: "llvm.x86.avx2.packssdw", 16: "llvm.x86.sse2.packssdw.128"}
_BYTES = {  # by the sign of what is stored
    True: {64: "llvm.x86.avx512.packuswb.512", 32: "llvm.x86.avx2.packuswb", 16: "llvm.x86.sse2.packuswb.128"},
    False: {64: "llvm.x86.avx512.packsswb.512", 32: "llvm.x86.avx2.packsswb", 16: "llvm.x86.sse2.packsswb.128"},
}


def able(vec: Vector, ending: Ending) -> bool:
    """Whether sums end as bytes, on a CPU that has the instructions."""
    return ending.bytes_ and vec.size in _WORDS and vec.builder.module.triple.startswith("x86")


class ByteQuads:
    """The ending of sums of `used` vectors of channels, in code; sums have their bias already.

    Parameters
    ----------
    vec : Vector
    ending : Ending
        Of bytes.
    address : LLVM value
        Of the rows of vector 0.
    used : int
    order : Sequence[int]
        The vectors of channels of the four that are narrowed at once.
    """

    def __init__(self, vec: Vector, ending: Ending, address: Any, used: int, order: Sequence[int]) -> None:
        self._vec, self._ending, self._order = vec, ending, order
        rows = [ending.load(vec, vec.offset(address, vec.size * len(ending.rows) * j)) for j in range(used)]
        self._rows = [each | {"bias": vec.int_constant(0)} for each in rows]
        if ending.short:
            self._zero = self._words([each["zero"] for each in self._by_order()])
            self._low, self._high = (self._edge(address, name) for name in ("low", "high"))

    def narrow(self, totals: Sequence[Any], residuals: Sequence[Any], masked: Callable[[Any, int], Any]) -> Any:
        """Bytes of four vectors of sums, vector by vector; None: one of zeros.

        `residuals` are vectors of floats, or None; `masked(value, at)` is an int32 vector without lanes that hold no
        channel, which the short form needs not.
        """
        vec, builder, short = self._vec, self._vec.builder, self._ending.short
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
                numbers.append(masked(self._ending.emit(vec, total, rows, residual), at))
        words = self._words(numbers)
        if short:
            words = [self._added(*pair) for pair in zip(words, self._zero, strict=True)]
        narrow = self._bytes(words)
        if short:
            unsigned = self._ending.y == U8
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
        """A clamp in the order of packed bytes."""
        vec, rows = self._vec, self._ending.rows
        step, at = vec.size * len(rows), vec.size * rows.index(name)
        loaded = [vec.load(vec.offset(address, step * j + at)) for j in range(len(self._rows))]
        whole = [vec.builder.fptosi(value, vec.int_type) for value in loaded]
        return self._bytes(self._words([whole[j] for j in self._order]))

    def _words(self, numbers: Sequence[Any]) -> list[Any]:
        """int16 of pairs of vectors of int32, four of each in turn."""
        vec = self._vec
        kind = ir.VectorType(ir.IntType(16), 2 * vec.lanes)
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [call(vec.builder, _WORDS[vec.size], kind, list(pair)) for pair in pairs]

    def _bytes(self, words: Sequence[Any]) -> Any:
        """Bytes of two vectors of int16, eight of each in turn."""
        vec = self._vec
        kind = ir.VectorType(ir.IntType(8), 4 * vec.lanes)
        return call(vec.builder, _BYTES[self._ending.y == U8][vec.size], kind, list(words))

    def _added(self, words: Any, zero: Any) -> Any:
        return call(self._vec.builder, f"llvm.sadd.sat.v{words.type.count}i16", words.type, [words, zero])
