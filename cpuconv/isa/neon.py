"""NEON instructions on float32 for which LLVM has no operation of its own."""

from __future__ import annotations

from typing import Any

from cpuconv.isa.calls import call
from cpuconv.isa.table import current
from cpuconv.isa.vector import Vector

_LANES = (1, 4)  # of the instructions


def usable(vec: Vector) -> bool:
    """Whether the emitter generates NEON code on full vectors or scalars."""
    return vec.lanes in _LANES and current().name == "neon"


def estimated_quotient(vec: Vector, a: Any, b: Any) -> Any:
    """a / b with a relative error of at most 2^-15, for normal b with a normal inverse: an estimate, a Newton step."""
    inverse = _call(vec, "frecpe", b)
    return vec.mul(vec.mul(a, inverse), _call(vec, "frecps", b, inverse))


def _call(vec: Vector, name: str, *arguments: Any) -> Any:
    suffix = f"v{vec.lanes}f32" if vec.lanes > 1 else "f32"
    return call(vec.builder, f"llvm.aarch64.neon.{name}.{suffix}", vec.type, arguments)
