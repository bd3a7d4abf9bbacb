"""erf, and gates x·(1/2 + g(x)) with an odd g of limit 1/2: GELU and its tanh approximation.

A CPU with a 32-entry float32 lookup (AVX-512) evaluates g(x)/x by cubics of x², one for each of 31 intervals of
[0, 5.25²]: 16 of one length, then 15 of twice that. Others compute a quotient of polynomials, or an exponential.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.isa import avx512
from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.exponential import over_one_plus_exp

# erf(x)/x on [-4, 4] as a quotient of polynomials in x² (Eigen, generic_fast_erf_float); beyond, erf is 1 in float32
_ERF_RANGE = 4.0
_ERF_ABOVE = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_BELOW = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)

_END = 5.25  # g is 1/2 in float32 from here on
_HALF = 0.5 - 2.0**-25  # the float32 below 1/2, _END times a float32: x far below zero is multiplied by 0
_PER_OCTAVE_BITS = 4  # interval index: bits of a float32 from 1 to 4 below its exponent
_PER_SQUARE = float(np.nextafter(np.float32(2.875 / _END**2), np.float32(1)))  # at the end 1 + 2.875 = entry 31
_TANH_LINEAR, _TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715
_TANH_ENDS = (-10.06, 9.9)  # e^-z is infinity (e^88.7) and e^-84.9 there, z being twice the argument of tanh


def erf(vec: Vector, x: Any) -> Any:
    """erf(x) to a few ulp."""
    x = vec.clip(x, -_ERF_RANGE, _ERF_RANGE)
    square = vec.mul(x, x)
    above = vec.mul(x, vec.polynomial(square, _ERF_ABOVE))
    return vec.clip(vec.div(above, vec.polynomial(square, _ERF_BELOW)), -1.0, 1.0)


def gelu(vec: Vector, x: Any) -> Any:
    """x·(1 + erf(x/√2))/2."""
    if avx512.usable(vec):
        return _gate(vec, x, _half_erf)
    half = vec.mul(x, vec.constant(0.5))
    return vec.fma(half, erf(vec, vec.mul(x, vec.constant(math.sqrt(0.5)))), half)


def gelu_tanh(vec: Vector, x: Any) -> Any:
    """x·(1 + tanh(u))/2 with u = √(2/π)·(x + 0.044715·x³), computed as x / (1 + e^-2u)."""
    if avx512.usable(vec):
        return _gate(vec, x, _half_tanh)
    near = vec.clip(x, *_TANH_ENDS)
    inner = vec.fma(vec.mul(near, near), vec.constant(2 * _TANH_LINEAR * _TANH_CUBIC), vec.constant(2 * _TANH_LINEAR))
    return over_one_plus_exp(vec, x, vec.mul(near, inner), -1.0)


def _gate(vec: Vector, x: Any, g: Callable[[float], float]) -> Any:
    near = vec.clip(x, -_END, _END)
    square = vec.mul(near, near)
    place = vec.builder.bitcast(vec.fma(square, vec.constant(_PER_SQUARE), vec.constant(1.0)), vec.int_type)
    entry = vec.builder.lshr(place, vec.int_constant(23 - _PER_OCTAVE_BITS))
    highest, *others = _cubics(g)
    result = avx512.pick(vec, highest, entry)
    for coefficients in others:
        result = vec.fma(result, square, avx512.pick(vec, coefficients, entry))
    return vec.mul(x, vec.fma(near, result, vec.constant(_HALF)))


@functools.cache
def _cubics(g: Callable[[float], float]) -> tuple[tuple[float, ...], ...]:
    """Coefficients of g(√s)/√s in s, highest power first, each for all entries in the order of `pick`."""
    edges = [(place - 1) / _PER_SQUARE for place in (*np.arange(1, 2, 1 / 16), *np.arange(2, 4, 1 / 8))]
    rows = [_cubic(g, low, high) for low, high in itertools.pairwise(edges)]
    rows.append((0.0, 0.0, 0.0, _HALF / _END))
    rows = rows[16:] + rows[:16]  # the index bits are 10000 for 1 and 00000 for 2
    return tuple(zip(*rows, strict=True))


def _cubic(g: Callable[[float], float], low: float, high: float) -> tuple[float, ...]:
    """The cubic that interpolates g(√s)/√s at four Chebyshev points of [low, high]."""
    from numpy.polynomial import chebyshev  # takes 3 ms

    middle, reach = (low + high) / 2, (high - low) / 2

    def values(points: Any) -> Any:
        roots = np.sqrt(middle + reach * points)
        return np.array([g(float(root)) for root in roots]) / roots

    of_points = np.polynomial.Polynomial(chebyshev.cheb2poly(chebyshev.chebinterpolate(values, 3)))
    of_squares = of_points(np.polynomial.Polynomial([-middle / reach, 1 / reach]))
    return tuple(float(coefficient) for coefficient in of_squares.coef[::-1])


def _half_erf(x: float) -> float:
    return math.erf(x * math.sqrt(0.5)) / 2


def _half_tanh(x: float) -> float:
    return math.tanh(_TANH_LINEAR * (x + _TANH_CUBIC * x**3)) / 2
