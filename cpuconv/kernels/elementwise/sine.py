"""sin and cos to 2 ulp for every float32, emitted for vectors of any number of lanes. Infinity gives NaN.

x + shift·π is reduced in float64 to r + n·π with |r| <= π/2; its sine is that of r, negated for odd n. Up to `_FAR`, r
is x less n times π in two parts (Cody and Waite 1980). Beyond, it is the fraction of x times 1/π in exact pieces (Payne
and Hanek 1983): a branch that vectors with no such lane skip.
"""

from __future__ import annotations

import math
from typing import Any

from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.double import Double
from cpuconv.runtime.code.llvm import ir

_FAR = 2.0**40  # n·_PI_LOW is off by 2^-68 there, and the float32 closest to a multiple of π are 2^-30 from it
_ROUNDER = 1.5 * 2.0**52  # float64 of this magnitude are integers
_PI_LOW = 1.2246467991473532e-16  # π - math.pi
_PIECE = 28  # bits of a piece: its product with a float32 is exact in float64, with one bit left for a sum
_INVERSE, _BITS = 0x517CC1B727220A94FE13ABE8FA9A6EE06DB14ACC9E21C820F, 196  # 1/π·2^196
_PIECES = tuple(math.ldexp((_INVERSE >> _BITS - end) % (1 << _PIECE), -end) for end in range(_PIECE, _BITS + 1, _PIECE))
# minimax relative error of sin(r)/r - 1 in r² for |r| <= π/2: 9e-9; the last term makes sin(-0) = -0
_TERMS = (2.6057614e-06, -1.9809595e-04, 8.3330665e-03, -1.6666660e-01, 0.0)


def sin(vec: Vector, x: Any) -> Any:
    """sin(x)."""
    return _shifted_sine(vec, x, 0.0)


def cos(vec: Vector, x: Any) -> Any:
    """cos(x) = sin(x + π/2)."""
    return _shifted_sine(vec, x, 0.5)


def _shifted_sine(vec: Vector, x: Any, shift: float) -> Any:
    """sin(x + shift·π)."""
    builder, wide = vec.builder, Double(vec.builder, vec.lanes)
    double = builder.fpext(x, wide.type)
    near = _reduce(wide, double, shift)
    is_far = builder.fcmp_ordered(">", vec.absolute(x), vec.constant(_FAR))
    some = builder.bitcast(is_far, ir.IntType(vec.lanes))
    before = builder.block
    with builder.if_then(builder.icmp_unsigned("!=", some, some.type(0)), likely=False):
        far = builder.select(is_far, _reduce_far(wide, double, shift), near)
        branch = builder.block
    reduced = builder.phi(wide.type)
    reduced.add_incoming(near, before)
    reduced.add_incoming(far, branch)
    r = builder.fptrunc(reduced, vec.type)
    return vec.fma(r, vec.polynomial(vec.mul(r, r), _TERMS), r)


def _reduce(wide: Double, x: Any, shift: float) -> Any:
    """r, negated for odd n, for |x| <= _FAR; `Vector.fma` is rounded once also where the CPU has no FMA."""
    rounder, offset = wide.constant(_ROUNDER), wide.constant(shift)
    rounded = wide.add(wide.fma(x, wide.constant(1 / math.pi), offset), rounder)
    n = wide.sub(wide.sub(rounded, rounder), offset)
    r = Vector.fma(wide, n, wide.constant(-math.pi), x)  # exact: a multiple of 2^-52 below 2
    return _negated_if_odd(wide, Vector.fma(wide, n, wide.constant(-_PI_LOW), r), rounded)


def _reduce_far(wide: Double, x: Any, shift: float) -> Any:
    """r, negated for odd n, for every x: products with the pieces, each less its multiple of 2, are summed modulo 1."""
    fraction, n = wide.constant(shift), wide.constant(0.0)
    for piece in _PIECES:
        product = wide.mul(x, wide.constant(piece))
        pairs = wide.round(wide.mul(product, wide.constant(0.5)))
        total = wide.add(fraction, wide.fma(pairs, wide.constant(-2.0), product))
        whole = wide.round(total)
        fraction, n = wide.sub(total, whole), wide.add(n, whole)
    return _negated_if_odd(wide, wide.mul(fraction, wide.constant(math.pi)), wide.add(n, wide.constant(_ROUNDER)))


def _negated_if_odd(wide: Double, value: Any, rounded: Any) -> Any:
    """±value by the lowest bit of `rounded`, an integer plus `_ROUNDER`."""
    builder = wide.builder
    kind = ir.VectorType(I64, wide.lanes) if wide.lanes > 1 else I64
    top = ir.Constant(kind, [63] * wide.lanes if wide.lanes > 1 else 63)
    sign = builder.shl(builder.bitcast(rounded, kind), top)
    return builder.bitcast(builder.xor(builder.bitcast(value, kind), sign), wide.type)
