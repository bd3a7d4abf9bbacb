"""e^x, sigmoid and tanh, emitted for vectors of any number of lanes. NaN is propagated.

With n = x/log 2 to the nearest 1/steps and r = x - n·log 2, the power is 2^n·e^r, where e^r is a polynomial. Adding a
`rounder` to x/log 2 leaves n·steps in the low bits of a float32. A CPU with a 32-entry float32 lookup (AVX-512) takes
2^n's fraction from a table, so r is small and two terms suffice. Others use an integer n, which is added to the
exponent bits.

Where results are rounded to float16 (`Vector.rounds_to_half`), NEON code of sigmoid and SiLU has a shorter polynomial
and no division: they are within 1e-4 of the result.
"""

from __future__ import annotations

import math
from typing import Any

from cpuconv.isa import avx512, neon
from cpuconv.isa.vector import Vector

LN2 = math.log(2)  # float32 is 3e-9 off: n times that is exact enough, without a second part
_ROUNDER = 1.5 * 2.0**23  # float32 of this magnitude are integers
_RANGE = (-87.0, 89.0)  # overflows to infinity at its upper end
_OPEN = (-87.0, 87.0)  # range in which e^x and its inverse are normal numbers
_SATURATED = 10.0  # from here on tanh is 1 in float32

_TABLE = tuple(2.0 ** (i / avx512.ENTRIES) for i in range(avx512.ENTRIES))
_SHORT = LN2 / 2 / avx512.ENTRIES  # maximum |r| with the table
_SHORT_TERMS = (0.5, 1 + _SHORT**2 / 8, 1.0)  # within 6e-8: r³/6 is nearest to a line there at _SHORT²/8·r
# minimax relative error for |r| <= log 2/2: 9e-8
_TERMS = (0.00829028, 0.041898161, 0.16667639, 0.49999148, 0.9999997, 1.0)
_HALF_TERMS = (0.16566842, 0.50496326, 1.00016419, 0.99992807)  # the same: 7.5e-5, below a rounding to float16


def factors(vec: Vector, x: Any, times: float = 1.0, polynomial: tuple[float, ...] | None = None) -> tuple[Any, Any]:
    """Two factors of e^(times·x), the first close to 1, for times·x within [-87, 89]; ±`times` is a power of two or
    `LN2`, of which the factors are those of 2^x.

    From 88.4 or 88.8 on, depending on the CPU, their product is infinity. `polynomial`: another one of e^x.
    """
    table = avx512.usable(vec)
    rounder = _ROUNDER / (avx512.ENTRIES if table else 1)
    binary, rounding = times == LN2, vec.constant(rounder)
    rounded = vec.add(x, rounding) if binary else vec.fma(x, vec.constant(times / LN2), rounding)
    n = vec.sub(rounded, rounding)
    r = vec.sub(x, n) if binary else vec.fma(n, vec.constant(-LN2 / times), x)
    terms = polynomial or (_SHORT_TERMS if table else _TERMS)
    near = vec.polynomial(r, [term * times**power for power, term in zip(range(len(terms))[::-1], terms, strict=True)])
    bits = vec.builder.bitcast(rounded, vec.int_type)
    if table:
        return near, avx512.scale(vec, avx512.pick(vec, _TABLE, bits), n)
    exponent = vec.builder.shl(bits, vec.int_constant(23))
    return near, vec.builder.bitcast(vec.builder.add(exponent, vec.int_constant(127 << 23)), vec.type)


def exp(vec: Vector, x: Any) -> Any:
    """e^x to 3 ulp; infinity from 88.4 or 88.8 on, and e^-87 below -87."""
    return vec.mul(*factors(vec, vec.clip(x, *_RANGE)))


def exp_below(vec: Vector, x: Any, times: float = 1.0) -> Any:
    """e^(times·x) for x <= 0 to 3 ulp; zero below e^-87, near the smallest normal number. `times`: 1, or LN2."""
    small = vec.builder.fcmp_ordered("<", x, vec.constant(_RANGE[0] / times))
    return vec.builder.select(small, vec.constant(0.0), vec.mul(*factors(vec, x, times)))


def quotient(vec: Vector, a: Any, b: Any) -> Any:
    """a / b to 2 ulp, for normal b with a normal inverse: an estimate and a Newton step, if the CPU has estimates."""
    if not avx512.usable(vec):
        return vec.div(a, b)
    inverse = avx512.reciprocal(vec, b)
    return vec.mul(a, vec.fma(inverse, vec.fma(vec.negative(b), inverse, vec.constant(1.0)), inverse))


def over_one_plus_exp(vec: Vector, a: Any, x: Any, times: float) -> Any:
    """a / (1 + e^(times·x)), for times·x within ±87; up to 89 where the CPU divides."""
    near, power = factors(vec, x, times)
    return quotient(vec, a, vec.fma(near, power, vec.constant(1.0)))


def sigmoid(vec: Vector, x: Any) -> Any:
    """1 / (1 + e^-x); e^-87 below -87."""
    return _gated(vec, vec.constant(1.0), x)


def silu(vec: Vector, x: Any) -> Any:
    """x / (1 + e^-x)."""
    return _gated(vec, x, x)


def _gated(vec: Vector, a: Any, x: Any) -> Any:
    """a / (1 + e^-x)."""
    x = vec.clip(x, *_OPEN)
    if not (vec.rounds_to_half and neon.usable(vec)):
        return over_one_plus_exp(vec, a, x, -1.0)
    near, power = factors(vec, x, -1.0, _HALF_TERMS)
    return neon.estimated_quotient(vec, a, vec.fma(near, power, vec.constant(1.0)))


def tanh(vec: Vector, x: Any) -> Any:
    """1 - 2 / (1 + e^2x), with the absolute precision of 1."""
    x = vec.clip(x, -_SATURATED, _SATURATED)
    inverse = over_one_plus_exp(vec, vec.constant(1.0), x, 2.0)
    return vec.fma(inverse, vec.constant(-2.0), vec.constant(1.0))
