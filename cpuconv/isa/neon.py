"""NEON instructions for which LLVM has no operation of its own, and 8-byte loads for in-order cores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cpuconv.isa.calls import call
from cpuconv.isa.features import has_feature
from cpuconv.isa.table import current
from cpuconv.isa.vector import I32, I64, Vector, single
from cpuconv.runtime.code.llvm import ir

_LANES = (1, 4)  # of the instructions
_BYTES = 16  # of a vector


def usable(vec: Vector) -> bool:
    """Whether the emitter generates NEON code on full vectors or scalars."""
    return vec.lanes in _LANES and current().name == "neon"


def computes_halves() -> bool:
    """Whether instructions compute on eight float16."""
    return current().name == "neon" and has_feature("fullfp16")


def estimated_quotient(vec: Vector, a: Any, b: Any) -> Any:
    """a / b with a relative error of at most 2^-15, for normal b with a normal inverse: an estimate, a Newton step."""
    inverse = _call(vec, "frecpe", b)
    return vec.mul(vec.mul(a, inverse), _call(vec, "frecps", b, inverse))


def load_operand(vec: Vector, address: Any, kind: Any, align: int = 4, upper: Any = None) -> Any:
    """Load a vector of LLVM's type `kind` for computation; on in-order cores by halves.

    There a load of 16 bytes issues alone, for two cycles. Two loads of eight bytes, of which one goes through a general
    register, and its insertion each issue together with an FMA. `upper`: address of the upper half, if it is known.
    """
    builder = vec.builder
    if not current().in_order or vec.size != _BYTES:
        value = builder.load(builder.bitcast(address, kind.as_pointer()))
        value.align = align
        return value
    joined: Any = ir.Constant(ir.VectorType(I64, 2), ir.Undefined)
    for half in range(2):
        place = upper if half and upper is not None else vec.offset(address, 8 * half)
        part = builder.load(builder.bitcast(place, I64.as_pointer()))
        part.align = min(align, 8)
        joined = builder.insert_element(joined, vec.opaque(part) if half else part, I32(half))
    return builder.bitcast(joined, kind)


class ElementConstants(Vector):
    """`Vector` with constants as elements of vectors, which FMAs and products take as operands.

    Four constants then take one register, and one load instead of an instruction of a vector pipe for each.
    """

    def __init__(self, builder: ir.IRBuilder, lanes: int, values: Iterable[float]) -> None:
        super().__init__(builder, lanes)
        distinct = sorted({abs(value) for value in values} - {0.0, 1.0})
        self._elements: dict[float, tuple[Any, int]] = {}
        for first in range(0, len(distinct), lanes):
            some = distinct[first : first + lanes]
            held = ir.Constant(self.type, [single(value) for value in [*some, *some[:1] * (lanes - len(some))]])
            kind = ir.FunctionType(self.type, [self.type])
            vector = builder.asm(kind, "", "=w,0", [held], side_effect=False)  # opaque: else each is materialised
            self._elements |= {value: (vector, element) for element, value in enumerate(some)}

    def constant(self, value: float) -> Any:
        """Every lane = value."""
        if abs(value) not in self._elements:
            return super().constant(value)
        vector, element = self._elements[abs(value)]
        splat = self.shuffle(vector, vector, [element] * self.lanes)
        return splat if value > 0 else self.builder.fneg(splat)


def _call(vec: Vector, name: str, *arguments: Any) -> Any:
    suffix = f"v{vec.lanes}f32" if vec.lanes > 1 else "f32"
    return call(vec.builder, f"llvm.aarch64.neon.{name}.{suffix}", vec.type, arguments)
