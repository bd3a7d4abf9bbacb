"""AVX-512 instructions on 16 float32 for which LLVM has no operation of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.isa.calls import call
from cpuconv.isa.table import current
from cpuconv.isa.vector import I32, Vector, single
from cpuconv.runtime.code.llvm import ir

LANES = 16
ENTRIES = 2 * LANES  # entries of the table that `pick` reads
_ALL, _AS_SET = ir.IntType(16)(-1), I32(4)  # the mask of all lanes; rounding by the CPU's current mode


def usable(vec: Vector) -> bool:
    """Whether the emitter generates AVX-512 code on full vectors."""
    return vec.lanes == LANES and current().name == "avx512"


def pick(vec: Vector, table: Sequence[float], index: Any) -> Any:
    """table[index mod 32] of 32 float32, for each int32 lane of `index`."""
    halves = [ir.Constant(vec.type, [single(value) for value in table[at : at + LANES]]) for at in (0, LANES)]
    return _call(vec, "vpermi2var.ps.512", [halves[0], index, halves[1]])


def scale(vec: Vector, a: Any, n: Any) -> Any:
    """a·2^⌊n⌋; 0 or infinity where that is out of the range of float32."""
    return _call(vec, "mask.scalef.ps.512", [a, n, vec.constant(0.0), _ALL, _AS_SET])


def reciprocal(vec: Vector, a: Any) -> Any:
    """1/a with a relative error of at most 2^-14."""
    return _call(vec, "rcp14.ps.512", [a, vec.constant(0.0), _ALL])


def _call(vec: Vector, name: str, arguments: Sequence[Any]) -> Any:
    return call(vec.builder, f"llvm.x86.avx512.{name}", vec.type, arguments)
