"""Vectors of float64 with float32 in memory, for transforms that are rounded once; operations on zeros emit nothing."""

from __future__ import annotations

from typing import Any

from cpuconv.isa.vector import Vector
from cpuconv.runtime.code.llvm import ir

F64 = ir.DoubleType()
ZERO = object()  # a value known to be zero when code is emitted


class Double(Vector):
    """`Vector` in float64: `load` and `store` move float64, `widen` and `narrow` float32. Operands may be ZERO."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        super().__init__(builder, lanes)
        self.floats = Vector(builder, lanes)
        self.size = 8 * lanes
        self.type = ir.VectorType(F64, lanes) if lanes > 1 else F64

    def constant(self, value: float) -> Any:
        """Every lane = value."""
        if value == 0:
            return ZERO
        return ir.Constant(self.type, [value] * self.lanes if self.lanes > 1 else value)

    def store(self, value: Any, address: Any, align: int = 8) -> None:
        """float64 at address + 8·i = lanes[i]."""
        super().store(ir.Constant(self.type, None) if value is ZERO else value, address, align)

    def widen(self, address: Any) -> Any:
        """lanes[i] = float32 at address + 4·i; the address is aligned to a vector."""
        return self.builder.fpext(self.floats.load(address, align=self.floats.size), self.type)

    def narrow(self, value: Any, address: Any) -> None:
        """float32 at address + 4·i = lanes[i], rounded; the address is aligned to a vector."""
        zero = self.floats.constant(0.0)
        rounded = zero if value is ZERO else self.builder.fptrunc(value, self.floats.type)
        self.floats.store(rounded, address, align=self.floats.size)

    def add(self, a: Any, b: Any) -> Any:
        """a + b."""
        return b if a is ZERO else a if b is ZERO else super().add(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        """a − b."""
        return a if b is ZERO else self.negative(b) if a is ZERO else super().sub(a, b)

    def negative(self, a: Any) -> Any:
        """−a."""
        return ZERO if a is ZERO else super().negative(a)

    def mul(self, a: Any, b: Any) -> Any:
        """a·b."""
        return ZERO if a is ZERO or b is ZERO else super().mul(a, b)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c, rounded once where the CPU has an FMA instruction."""
        if a is ZERO or b is ZERO:
            return c
        return self.mul(a, b) if c is ZERO else self._intrinsic("fmuladd", [a, b, c])
