"""Epilogues in float16, eight channels at a time, of convolutions whose sums are float16 (Arm).

SiLU and the sigmoid are u / (u + p), with u = 2^n for n = x·log2 e to the nearest integer, and p the polynomial of
2^(n - x·log2 e). Their error is that of a few roundings to float16 (3e-3 of the result); below -10.05, where the
sigmoid is less than 5e-5, they are zero. Other activations are those of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.elements import F32
from cpuconv.isa.calls import call
from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.runtime.code.llvm import ir

_EXPONENT, _FRACTION = 15, 10  # float16: bias of the exponent, bits of the fraction
_ROUNDER = 1.5 * 2.0**_FRACTION + _EXPONENT  # float16 of this magnitude are integers; the low bits are an exponent
_LARGEST = 10.4  # of |x|: n is within -15 and 15
_TERMS = (-0.05517167, 0.24261112, -0.69326099, 0.99992807)  # 2^-r for |r| <= 1/2: 7.5e-5


class Half(Vector):
    """`Vector` in float16."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        super().__init__(builder, lanes)
        self.size = 2 * lanes
        self.type = ir.VectorType(ir.HalfType(), lanes)
        self.int_type = ir.VectorType(ir.IntType(16), lanes)

    def constant(self, value: float) -> Any:
        """Every lane = value, rounded."""
        return ir.Constant(self.type, [float(np.float16(value))] * self.lanes)

    def rounded(self, address: Any) -> Any:
        """lanes[i] = float32 at address + 4·i, rounded."""
        return self.builder.fptrunc(Vector(self.builder, self.lanes).load(address), self.type)

    def quotient_below_one(self, a: Any, b: Any) -> Any:
        """a / b for a <= b, by an estimate and a Newton step."""
        inverse = self._estimate("frecpe", b)
        return self.mul(self.mul(inverse, a), self._estimate("frecps", b, inverse))

    def _estimate(self, name: str, *arguments: Any) -> Any:
        return call(self.builder, f"llvm.aarch64.neon.{name}.v{self.lanes}f16", self.type, arguments)


def _sigmoid(vec: Half, x: Any) -> Any:
    return _gate(vec, vec.maximum(vec.constant(-_LARGEST), x))


def _silu(vec: Half, x: Any) -> Any:
    x = vec.maximum(vec.constant(-_LARGEST), x)  # the product is zero there, of infinity too
    return vec.mul(x, _gate(vec, x))


def _gate(vec: Half, x: Any) -> Any:
    """The sigmoid of x >= -_LARGEST."""
    builder, scale, rounder = vec.builder, vec.constant(1 / math.log(2)), vec.constant(_ROUNDER)
    x = vec.minimum(vec.constant(_LARGEST), x)
    rounded = vec.fma(x, scale, rounder)
    r = vec.fma(x, scale, vec.sub(rounder, rounded))
    shift = ir.Constant(vec.int_type, [_FRACTION] * vec.lanes)
    power = builder.bitcast(builder.shl(builder.bitcast(rounded, vec.int_type), shift), vec.type)
    *terms, last = _TERMS
    total = vec.fma(vec.polynomial(r, terms), r, vec.add(power, vec.constant(last)))
    return vec.quotient_below_one(power, total)


def _relu(vec: Half, x: Any) -> Any:
    return vec.maximum(vec.constant(0.0), x)


def _relu6(vec: Half, x: Any) -> Any:
    return vec.clip(x, 0.0, 6.0)


HALF_ACTIVATIONS: dict[tuple[Any, ...] | None, Callable[[Half, Any], Any]] = {
    ("relu",): _relu,
    ("relu6",): _relu6,
    ("sigmoid",): _sigmoid,
    ("silu",): _silu,
}
"""Emitters by activation."""


def activated(vec: Half, epilogue: Epilogue, value: Any) -> Any:
    """The activation of an epilogue of a float16 vector; in float32 where `HALF_ACTIVATIONS` has none."""
    if epilogue.activation is None:
        return value
    if emitter := HALF_ACTIVATIONS.get(epilogue.activation):
        return emitter(vec, value)
    floats = Vector(vec.builder, vec.lanes)
    wide = vec.builder.fpext(value, floats.type)
    computed = replace(epilogue, sum=F32, residual=False).emit(floats, wide, {"bias": floats.constant(-0.0)})
    return vec.builder.fptrunc(computed, vec.type)
