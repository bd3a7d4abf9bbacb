"""Emitters of elementwise functions, for vectors of any number of lanes; `cpuconv.functions` defines the functions.

Errors are within 1e-6 of the result; for powers below 1e8, within 3e-6; for activations, within 1e-6 of the result or
3e-7 of its bound. NaN and infinities are as in NumPy, except for SiLU of negative infinity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.error_function import erf, gelu, gelu_tanh
from cpuconv.kernels.elementwise.exponential import exp, sigmoid, silu, tanh
from cpuconv.kernels.elementwise.sine import cos, sin
from cpuconv.runtime.code.llvm import ir

_TINY, _TINY_EXPONENT = 2.0**-126, 23  # smaller numbers have fewer digits: they are scaled by 2^23 first
_SQRT_HALF_BITS = 0x3F3504F3
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # n·high is exact
_ATANH = tuple(2 / (2 * k + 1) for k in reversed(range(7)))  # 2·atanh(s)/s in s², |s| <= 1/3
_EXPM1 = tuple(1 / math.factorial(k) for k in range(8, 0, -1))  # (e^x - 1)/x, |x| <= 1/2


class Math(Vector):
    """`Vector` with the operations that only elementwise functions use."""

    emitters: Mapping[str, Callable[..., Any]] = {}  # of functions, in place of `EMITTERS`

    def square_root(self, a: Any) -> Any:
        """√a."""
        return self._intrinsic("sqrt", [a])

    def inverse_root(self, a: Any) -> Any:
        """1/√a to a few ulp, for positive normal a: a refined estimate where the CPU has estimates."""
        root = self.square_root(a)
        root.fastmath = ir.instructions.FastMathFlags(("fast",))
        return self.builder.fdiv(self.constant(1.0), root, flags=("fast",))

    def floor(self, a: Any) -> Any:
        """Round towards negative infinity."""
        return self._intrinsic("floor", [a])

    def ceil(self, a: Any) -> Any:
        """Round towards positive infinity."""
        return self._intrinsic("ceil", [a])

    def where(self, comparison: str, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
        """`then` where the comparison holds, else `otherwise`; comparisons with NaN don't hold."""
        return self.builder.select(self.builder.fcmp_ordered(comparison, a, b), then, otherwise)


# --- emitters -------------------------------------------------------------------------------------------------------


def _with_nan(pick: Callable[..., Any]) -> Callable[..., Any]:
    """Make an emitter of the maximum or minimum that returns NaN where either is NaN; constants are not NaN."""

    def emit(vec: Math, a: Any, b: Any) -> Any:
        if isinstance(b, ir.Constant):
            a, b = b, a
        picked = pick(vec, a, b)  # b where either is NaN
        if isinstance(a, ir.Constant):
            return picked
        return vec.builder.select(vec.builder.fcmp_unordered("uno", a, a), a, picked)

    return emit


def _exp(vec: Math, x: Any) -> Any:
    """(e^(x/2))²: accurate up to the largest float32, and below the smallest normal one."""
    half = exp(vec, vec.mul(x, vec.constant(0.5)))
    return vec.mul(half, half)


def _expm1(vec: Math, x: Any) -> Any:
    near = vec.mul(x, vec.polynomial(x, _EXPM1))
    return vec.where("<", vec.absolute(x), vec.constant(0.5), near, vec.sub(_exp(vec, x), vec.constant(1.0)))


def _log_quotient(vec: Math, difference: Any, total: Any) -> Any:
    """log(a / b) from a - b and a + b, for a between b/2 and 2b: 2·atanh of their quotient."""
    s = vec.div(difference, total)
    return vec.mul(s, vec.polynomial(vec.mul(s, s), _ATANH))


def _log(vec: Math, x: Any) -> Any:
    """x = m·2^n with m from √½ to √2: log m + n·log 2."""
    builder, one, zero = vec.builder, vec.constant(1.0), vec.constant(0.0)
    small = vec.constant(_TINY)
    scaled = vec.where("<", x, small, vec.mul(x, vec.constant(2.0**_TINY_EXPONENT)), x)
    bits = builder.bitcast(scaled, vec.int_type)
    n = builder.ashr(builder.sub(bits, vec.int_constant(_SQRT_HALF_BITS)), vec.int_constant(23))
    m = builder.bitcast(builder.sub(bits, builder.shl(n, vec.int_constant(23))), vec.type)
    exponent = builder.sitofp(n, vec.type)
    exponent = vec.where("<", x, small, vec.sub(exponent, vec.constant(_TINY_EXPONENT)), exponent)
    result = _log_quotient(vec, vec.sub(m, one), vec.add(m, one))
    result = vec.fma(exponent, vec.constant(_LN2_HIGH), vec.fma(exponent, vec.constant(_LN2_LOW), result))
    result = vec.where("<", x, vec.constant(math.inf), result, x)  # infinity and NaN are returned unchanged
    result = vec.where("==", x, zero, vec.constant(-math.inf), result)
    return vec.where("<", x, zero, vec.constant(math.nan), result)


def _softplus(vec: Math, x: Any) -> Any:
    """max(x, 0) + log(1 + e^-|x|)."""
    u = _exp(vec, vec.negative(vec.absolute(x)))
    return vec.add(vec.maximum(vec.constant(0.0), x), _log_quotient(vec, u, vec.add(u, vec.constant(2.0))))


def _mish(vec: Math, x: Any) -> Any:
    """x·tanh(log(1 + e^x)) = x·n / (n + 2) with n = e^x (e^x + 2); from 20 on it equals x."""
    two = vec.constant(2.0)
    e = _exp(vec, vec.minimum(vec.constant(20.0), x))
    n = vec.mul(e, vec.add(e, two))
    return vec.mul(x, vec.div(n, vec.add(n, two)))


def _pow(vec: Math, x: Any, y: Any) -> Any:
    """e^(y·log|x|), negated for negative x and odd y, NaN for negative x and fractional y; special cases as in C99."""
    zero, one, half = vec.constant(0.0), vec.constant(1.0), vec.mul(y, vec.constant(0.5))
    size = vec.absolute(x)
    result = vec.where("==", size, one, one, _exp(vec, vec.mul(y, _log(vec, size))))
    whole = vec.where("==", vec.floor(half), half, result, vec.copysign(result, x))
    broken = vec.where(">", x, vec.constant(-math.inf), vec.constant(math.nan), result)
    broken = vec.where("<", x, zero, broken, result)
    return vec.where("==", y, zero, one, vec.where("==", vec.floor(y), y, whole, broken))


def _root(vec: Math, x: Any) -> Any:
    """x to the power 0.5: √x, except that −∞ gives ∞ and −0 gives 0."""
    root, infinite = vec.square_root(vec.add(x, vec.constant(0.0))), vec.constant(math.inf)
    return vec.where("==", x, vec.constant(-math.inf), infinite, root)


def _prelu(vec: Math, x: Any, slope: Any) -> Any:
    return vec.where("<", x, vec.constant(0.0), vec.mul(x, slope), x)


def _above(vec: Math, x: Any, threshold: Any) -> Any:
    return vec.where(">", x, threshold, x, vec.constant(0.0))


def _leaky_relu(vec: Math, x: Any, slope: Any) -> Any:
    positive = vec.builder.fcmp_ordered(">", x, vec.constant(0.0))
    return vec.builder.select(positive, x, vec.mul(x, slope))


def _hardsigmoid(vec: Math, x: Any) -> Any:
    return vec.clip(vec.fma(x, vec.constant(1 / 6), vec.constant(0.5)), 0.0, 1.0)


# --- the table ------------------------------------------------------------------------------------------------------

_SYMBOLS = {"equal": "==", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}


def _compared(symbol: str, vec: Math, a: Any, b: Any) -> Any:
    return vec.where(symbol, a, b, vec.constant(1.0), vec.constant(0.0))


EMITTERS: dict[str, Callable[..., Any]] = {
    "add": Math.add,
    "sub": Math.sub,
    "mul": Math.mul,
    "div": Math.div,
    "quotient": Math.div,
    "max": _with_nan(Math.maximum),
    "min": _with_nan(Math.minimum),
    "neg": Math.negative,
    "abs": Math.absolute,
    "sqrt": Math.square_root,
    "floor": Math.floor,
    "ceil": Math.ceil,
    "round": Math.round,
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "pow": _pow,
    "root": _root,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "softplus": _softplus,
    "mish": _mish,
    "prelu": _prelu,
    "above": _above,
    "choose": lambda vec, condition, x, y: vec.where("==", condition, vec.constant(0.0), y, x),
    **{name: functools.partial(_compared, symbol) for name, symbol in _SYMBOLS.items()},
    "leaky_relu": _leaky_relu,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "silu": silu,
    "hardsigmoid": _hardsigmoid,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
}
"""Emitters f(vector, values...) by name, for each function of the table without a formula."""
