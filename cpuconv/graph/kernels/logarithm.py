"""The natural logarithm of vectors."""

from __future__ import annotations

import math
from typing import Any

from cpuconv.isa.vector import Vector

_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_POLYNOMIAL = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_TINY = 2.0**-126  # the smallest normal number
_SCALE = 2.0**24  # makes denormals normal


def log(vec: Vector, x: Any) -> Any:
    """The natural logarithm to 2 ulp (Cephes logf): -infinity of zero, NaN below, infinity of infinity."""
    builder = vec.builder
    small = builder.fcmp_ordered("<", x, vec.constant(_TINY))
    normal = builder.select(small, vec.mul(x, vec.constant(_SCALE)), x)
    bits = builder.bitcast(normal, vec.int_type)
    # x = m·2^e with m in [1/√2, √2): subtracting the bits of 1/√2 carries into the exponent where m is beyond
    shifted = builder.sub(bits, vec.int_constant(0x3F3504F3))
    exponent = vec.builder.sitofp(builder.ashr(shifted, vec.int_constant(23)), vec.type)
    exponent = vec.sub(exponent, builder.select(small, vec.constant(24.0), vec.constant(0.0)))
    mantissa = builder.add(builder.and_(shifted, vec.int_constant(0x7FFFFF)), vec.int_constant(0x3F3504F3))
    r = vec.sub(builder.bitcast(mantissa, vec.type), vec.constant(1.0))
    p = vec.constant(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = vec.fma(p, r, vec.constant(coefficient))
    square = vec.mul(r, r)
    tail = vec.fma(exponent, vec.constant(_LN2_LOW), vec.mul(vec.mul(p, r), square))
    tail = vec.fma(square, vec.constant(-0.5), tail)
    result = vec.fma(exponent, vec.constant(_LN2_HIGH), vec.add(r, tail))
    result = builder.select(builder.fcmp_ordered("==", x, vec.constant(0.0)), vec.constant(-math.inf), result)
    result = builder.select(builder.fcmp_unordered("<", x, vec.constant(0.0)), vec.constant(math.nan), result)
    return builder.select(builder.fcmp_ordered("==", x, vec.constant(math.inf)), x, result)
