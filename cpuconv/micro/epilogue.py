"""What happens to an accumulator before it is stored: activations, emitted for vectors of any number of lanes.

`ACTIVATIONS` maps each name to an emitter f(vector, x, *parameters). NaN passes through all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from cpuconv.isa.vector import Vector

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # Cody and Waite's split: n·high is exact
_EXP_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_EXP_RANGE = (-87.0, 89.0)  # above, the exponent bits say infinity
# Abramowitz and Stegun 7.1.26: |error| <= 1.5e-7
_ERF_P, _ERF_POLYNOMIAL = 0.3275911, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _polynomial(vec: Vector, x: Any, coefficients: tuple[float, ...]) -> Any:
    """Horner's rule, highest power first."""
    result = vec.constant(coefficients[0])
    for coefficient in coefficients[1:]:
        result = vec.fma(result, x, vec.constant(coefficient))
    return result


def clip(vec: Vector, x: Any, low: float, high: float) -> Any:
    """min(max(x, low), high)."""
    return vec.minimum(vec.constant(high), vec.maximum(vec.constant(low), x))


def exp(vec: Vector, x: Any) -> Any:
    """e^x to 2 ulp (Cephes expf); from 88.4 on infinity, and below -87 the smallest normal number."""
    builder = vec.builder
    x = clip(vec, x, *_EXP_RANGE)
    n = vec.round(vec.mul(x, vec.constant(_LOG2_E)))
    r = vec.fma(n, vec.constant(-_LN2_HIGH), x)
    r = vec.fma(n, vec.constant(-_LN2_LOW), r)
    p = vec.fma(_polynomial(vec, r, _EXP_POLYNOMIAL), vec.mul(r, r), vec.add(r, vec.constant(1.0)))
    exponent = builder.add(builder.fptosi(n, vec.int_type), vec.int_constant(127))
    return vec.mul(p, builder.bitcast(builder.shl(exponent, vec.int_constant(23)), vec.type))


def _sigmoid(vec: Vector, x: Any) -> Any:
    one = vec.constant(1.0)
    return vec.div(one, vec.add(one, exp(vec, vec.sub(vec.constant(-0.0), x))))


def _tanh(vec: Vector, x: Any) -> Any:
    one, two = vec.constant(1.0), vec.constant(2.0)
    e = exp(vec, vec.mul(vec.absolute(x), two))
    return vec.copysign(vec.sub(one, vec.div(two, vec.add(e, one))), x)


def _erf(vec: Vector, x: Any) -> Any:
    one = vec.constant(1.0)
    magnitude = vec.absolute(x)
    t = vec.div(one, vec.fma(magnitude, vec.constant(_ERF_P), one))
    tail = vec.mul(vec.mul(_polynomial(vec, t, _ERF_POLYNOMIAL), t), exp(vec, vec.mul(vec.mul(x, x), vec.constant(-1))))
    return vec.copysign(vec.sub(one, tail), x)


def _hardsigmoid(vec: Vector, x: Any) -> Any:
    return clip(vec, vec.fma(x, vec.constant(1 / 6), vec.constant(0.5)), 0.0, 1.0)


def _gelu(vec: Vector, x: Any) -> Any:
    half = vec.mul(x, vec.constant(0.5))
    return vec.fma(half, _erf(vec, vec.mul(x, vec.constant(math.sqrt(0.5)))), half)


def _gelu_tanh(vec: Vector, x: Any) -> Any:
    cubic = vec.fma(vec.mul(vec.mul(x, x), x), vec.constant(0.044715), x)
    half = vec.mul(x, vec.constant(0.5))
    return vec.fma(half, _tanh(vec, vec.mul(cubic, vec.constant(math.sqrt(2 / math.pi)))), half)


def _leaky_relu(vec: Vector, x: Any, slope: float) -> Any:
    positive = vec.builder.fcmp_ordered(">", x, vec.constant(0.0))
    return vec.builder.select(positive, x, vec.mul(x, vec.constant(slope)))


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda vec, x: vec.maximum(vec.constant(0.0), x),
    "relu6": lambda vec, x: clip(vec, x, 0.0, 6.0),
    "clip": clip,
    "leaky_relu": _leaky_relu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "silu": lambda vec, x: vec.mul(x, _sigmoid(vec, x)),
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda vec, x: vec.mul(x, _hardsigmoid(vec, x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}


def activate(vec: Vector, x: Any, activation: tuple[Any, ...] | None) -> Any:
    """`x` through a normalised activation (None: as it is)."""
    if activation is None:
        return x
    name, *parameters = activation
    return ACTIVATIONS[name](vec, x, *parameters)


def finish(vec: Vector, x: Any, bias: Any, residual: ir.Value | None, activation: tuple[Any, ...] | None) -> Any:
    """activation(x + bias + residual)."""
    x = vec.add(x, bias)
    if residual is not None:
        x = vec.add(x, residual)
    return activate(vec, x, activation)
