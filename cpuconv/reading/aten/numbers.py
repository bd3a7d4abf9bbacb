"""Adapters of elementwise operators, comparisons, conversions and new tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cpuconv.reading.aten.emitter import INT64, Emitter, Operand, Unsupported

_OF_BOOLEANS = {"Add": "Or", "Max": "Or", "Mul": "And", "Min": "And"}


def unary(op: str) -> Callable[..., str]:
    """Make an adapter of an operator of one tensor; integers are converted first if the result is not one."""
    return lambda b, x: b.add(op, b.cast(x, b.out.dtype))


def binary(op: str) -> Callable[..., str]:
    """Make an adapter of an operator of two tensors of the result's dtype; `alpha` multiplies the second."""

    def apply(b: Emitter, x: Any, y: Any, alpha: Any = 1) -> str:
        x, y = b.promoted(x, y, dtype=b.out.dtype)
        if b.out.dtype == torch.bool:
            return b.add(_OF_BOOLEANS[op], x, y)
        return b.add(op, x, y if alpha == 1 else b.add("Mul", y, b.cast(alpha, b.out.dtype)))

    return apply


def compared(op: str, negated: bool = False) -> Callable[..., str]:
    """Make an adapter of a comparison, in the common dtype of both operands."""

    def apply(b: Emitter, x: Any, y: Any) -> str:
        answer: str = b.add(op, *b.promoted(x, y))
        return b.add("Not", answer) if negated else answer

    return apply


def logical(op: str) -> Callable[..., str]:
    """Make an adapter of a logical operator: numbers other than 0 are true."""
    return lambda b, *operands: b.add(op, *(truth(b, each) for each in operands))


def truth(b: Emitter, x: Any) -> str:
    """Whether elements are not 0."""
    return b.cast(x, torch.bool)


def _bitwise(op: str) -> Callable[..., str]:
    """Make an adapter of a bitwise operator of booleans."""

    def apply(b: Emitter, *operands: Any) -> str:
        if b.out.dtype != torch.bool:
            raise Unsupported("of integers")
        return b.add(op, *(b.cast(each, torch.bool) for each in operands))

    return apply


def _activation(op: str, *names: str, **fixed: float) -> Callable[..., str]:
    """Make an adapter of an activation whose arguments are attributes of these names."""
    return lambda b, x, *args: b.add(op, x, **{**fixed, **dict(zip(names, map(float, args), strict=False))})


def scaled(b: Emitter, x: Any, factor: float) -> str:
    """Multiply by a number."""
    return x if factor == 1 else b.add("Mul", x, b.cast(factor, b.out.dtype))


def _elu(b: Emitter, x: Any, alpha: float, scale: float, input_scale: float) -> str:
    if input_scale != 1:
        raise Unsupported("with input_scale")
    return scaled(b, b.add("Elu", x, alpha=float(alpha)), scale)


def clamp(b: Emitter, x: Any, low: Any = None, high: Any = None) -> str:
    """Clamp to bounds, which are numbers or tensors."""
    dtype, x = b.out.dtype, b.cast(x, b.out.dtype)
    if dtype.is_floating_point and not any(isinstance(each, Operand) for each in (low, high)):
        return b.add("Clip", x, *(each if each is None else b.cast(float(each), dtype) for each in (low, high)))
    x = x if low is None else b.add("Max", x, b.cast(low, dtype))
    return x if high is None else b.add("Min", x, b.cast(high, dtype))


def _softplus(b: Emitter, x: Any, beta: float, threshold: float) -> str:
    y = scaled(b, b.add("Softplus", scaled(b, x, beta)), 1 / beta)
    above = b.add("Greater", scaled(b, x, beta), b.cast(float(threshold), b.out.dtype))
    return y if beta == 1 and threshold == 20 else b.add("Where", above, x, y)  # 20: equal in float32


def _divided(b: Emitter, x: Any, y: Any, rounding_mode: str | None = None) -> str:
    dtype = b.out.dtype
    x, y = b.promoted(x, y, dtype=dtype)
    if rounding_mode is None:
        if not dtype.is_floating_point:  # torch 2.6 traces a quotient of integers of open sizes so
            raise Unsupported("with a result of integers")
        return b.add("Div", x, y)
    if dtype.is_floating_point:
        quotient = b.add("Div", x, y)
        if rounding_mode == "floor":
            return b.add("Floor", quotient)
        return b.add("Mul", b.add("Sign", quotient), b.add("Floor", b.add("Abs", quotient)))
    return b.add("Div", b.add("Sub", x, b.add("Mod", x, y, fmod=int(rounding_mode == "trunc"))), y)


def _remainder(b: Emitter, x: Any, y: Any) -> str:
    x, y = b.promoted(x, y, dtype=b.out.dtype)
    if not b.out.dtype.is_floating_point:
        return b.add("Mod", x, y)
    return b.add("Sub", x, b.add("Mul", b.add("Floor", b.add("Div", x, y)), y))


def _fmod(b: Emitter, x: Any, y: Any) -> str:
    return b.add("Mod", *b.promoted(x, y, dtype=b.out.dtype), fmod=1)


def _power(b: Emitter, x: Any, y: Any) -> str:
    base, dtype = b.cast(x, b.out.dtype), b.out.dtype
    if isinstance(y, (int, float)) and not isinstance(x, (int, float)):
        if y == 2:
            return b.add("Mul", base, base)
        if y == 0.5:
            return b.add("Sqrt", base)
        if y == -0.5:
            return b.add("Reciprocal", b.add("Sqrt", base))
    return b.add("Pow", base, b.cast(y, dtype))


def _where(b: Emitter, condition: Any, x: Any, y: Any) -> str:
    return b.add("Where", truth(b, condition), *b.promoted(x, y, dtype=b.out.dtype))


def _masked_fill(b: Emitter, x: Any, mask: Any, value: Any) -> str:
    return b.add("Where", mask, *b.promoted(value, x, dtype=b.out.dtype))


def _addcmul(op: str) -> Callable[..., str]:
    """x + value · (y op z)"""

    def apply(b: Emitter, x: Any, y: Any, z: Any, value: float = 1) -> str:
        x, y, z = b.promoted(x, y, z, dtype=b.out.dtype)
        return b.add("Add", x, scaled(b, b.add(op, y, z), value))

    return apply


def _lerp(b: Emitter, x: Any, y: Any, weight: Any) -> str:
    return b.add("Add", x, b.add("Mul", b.cast(weight, b.out.dtype), b.add("Sub", y, x)))


def _nan_to_num(b: Emitter, x: Any, nan: Any = None, high: Any = None, low: Any = None) -> str:
    dtype, limits = b.out.dtype, torch.finfo(b.out.dtype)
    y = b.add("Where", b.add("IsNaN", x), b.cast(float(nan or 0), dtype), x)
    for sign, value in ((1, limits.max if high is None else high), (0, limits.min if low is None else low)):
        found = b.add("IsInf", y, detect_positive=sign, detect_negative=1 - sign)
        y = b.add("Where", found, b.cast(float(value), dtype), y)
    return y


def _glu(b: Emitter, x: Any, axis: int) -> str:
    a, gate = b.add("Split", x, axis=axis, num_outputs=2, count=2)
    return b.add("Mul", a, b.add("Sigmoid", gate))


def _no_dropout(b: Emitter, x: Any, p: float, train: bool | None = True) -> Any:
    """Dropout at inference: its output is its input."""
    if train or train is None:
        raise Unsupported("in training mode")
    return x


def _hyperbolic(op: str) -> Callable[..., str]:
    """Make an adapter of half the sum or difference of exp(x) and exp(-x)."""

    def apply(b: Emitter, x: Any) -> Any:
        x = b.cast(x, b.out.dtype)
        return scaled(b, b.add(op, b.add("Exp", x), b.add("Exp", b.add("Neg", x))), 0.5)

    return apply


def _log_of(base: float) -> Callable[..., str]:
    return lambda b, x: scaled(b, b.add("Log", b.cast(x, b.out.dtype)), 1 / math.log(base))


def converted(b: Emitter, x: Any, *_: Any) -> str:
    """Convert to the dtype of the result; layouts, devices and memory formats do not matter."""
    return b.cast(x, b.out.dtype)


def _filled(value: Any = None, like: bool = False) -> Callable[..., str]:
    """Make an adapter of a tensor full of one value; its sizes are those of a tensor if `like`, else an argument."""

    def apply(b: Emitter, *args: Any) -> str:
        args = args[1:] if len(args) > 1 and not like and isinstance(args[0], Operand) else args
        dtype = b.dtype(b.out.dtype)
        number = args[1] if value is None else value
        sizes = b.add("Shape", args[0]) if like else b.sizes(args[0])
        if isinstance(number, str):
            return b.add("Expand", b.cast(number, b.out.dtype), sizes)
        return b.add("ConstantOfShape", sizes, value=np.array([number]).astype(dtype))

    return apply


def _arange(b: Emitter, *args: Any) -> str:
    """Numbers from start (or 0) to an end in steps (or 1)."""
    numbers = [each for each in args if isinstance(each, (int, str)) and type(each) is not bool]
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    whole = [b.cast(each, torch.int64) for each in (start, end, step)]
    return b.add("Cast", b.add("Range", *whole), to=b.dtype(b.out.dtype))


ADAPTERS: dict[str, Callable[..., Any] | None] = {
    "tan": lambda b, x: b.add("Div", b.add("Sin", b.cast(x, b.out.dtype)), b.add("Cos", b.cast(x, b.out.dtype))),
    **{name: _hyperbolic(op) for name, op in (("sinh", "Sub"), ("cosh", "Add"))},
    "erfc": lambda b, x: b.add("Sub", b.cast(1.0, b.out.dtype), b.add("Erf", b.cast(x, b.out.dtype))),
    "exp2": lambda b, x: b.add("Exp", scaled(b, b.cast(x, b.out.dtype), math.log(2))),
    **{name: unary(name.capitalize()) for name in (
        "abs", "neg", "exp", "sqrt", "log", "erf", "sin", "cos", "floor", "ceil", "round", "sign", "reciprocal",
        "relu", "sigmoid", "tanh", "selu", "mish", "softsign")},
    "round.decimals": None,
    "rrelu": lambda b, x, low, high, *_: b.add("LeakyRelu", x, alpha=(low + high) / 2),
    "silu": _activation("Swish"),
    "hardswish": unary("HardSwish"),
    "hardsigmoid": _activation("HardSigmoid", alpha=1 / 6, beta=0.5),
    "relu6": lambda b, x: clamp(b, x, 0, 6),
    "hardtanh": clamp,
    "clamp": clamp,
    "clip": clamp,
    "clamp_min": lambda b, x, low: clamp(b, x, low),
    "clamp_max": lambda b, x, high: clamp(b, x, None, high),
    "leaky_relu": _activation("LeakyRelu", "alpha"),
    "celu": _activation("Celu", "alpha"),
    "elu": _elu,
    "gelu": lambda b, x, approximate: b.add("Gelu", x, approximate=approximate),
    "softplus": _softplus,
    "log_sigmoid": lambda b, x: b.add("Neg", b.add("Softplus", b.add("Neg", x))),
    "prelu": lambda b, x, slope: b.add("PRelu", x, b.add("Reshape", slope, b.integers(-1, *[1] * (x.rank - 2)))),
    "glu": _glu,
    "rsqrt": lambda b, x: b.add("Reciprocal", b.add("Sqrt", b.cast(x, b.out.dtype))),
    "square": lambda b, x: b.add("Mul", x, x),
    "expm1": lambda b, x: b.add("Sub", b.add("Exp", x), b.cast(1.0, b.out.dtype)),
    "log1p": lambda b, x: b.add("Log", b.add("Add", x, b.cast(1.0, b.out.dtype))),
    "log2": _log_of(2),
    "log10": _log_of(10),
    "trunc": lambda b, x: _divided(b, x, 1, "trunc"),
    "isnan": lambda b, x: b.add("IsNaN", x),
    "add": binary("Add"),
    "sub": binary("Sub"),
    "rsub": lambda b, x, y, alpha: binary("Sub")(b, y, x, alpha),
    "mul": binary("Mul"),
    "maximum": binary("Max"),
    "minimum": binary("Min"),
    "div": _divided,
    "true_divide": _divided,
    "floor_divide": lambda b, x, y: _divided(b, x, y, "floor"),
    "remainder": _remainder,
    "fmod": _fmod,
    "pow": _power,
    "addcmul": _addcmul("Mul"),
    "addcdiv": _addcmul("Div"),
    "lerp": _lerp,
    "where": _where,
    "where.default": None,  # indices of elements, of which there is any number
    "masked_fill": _masked_fill,
    "nan_to_num": _nan_to_num,
    "eq": compared("Equal"),
    "ne": compared("Equal", negated=True),
    "lt": compared("Less"),
    "le": compared("LessOrEqual"),
    "gt": compared("Greater"),
    "ge": compared("GreaterOrEqual"),
    "logical_and": logical("And"),
    "logical_or": logical("Or"),
    "logical_xor": logical("Xor"),
    "logical_not": logical("Not"),
    **{name: _bitwise(op) for op in ("And", "Or", "Xor") for name in (f"bitwise_{op.lower()}", f"__{op.lower()}__")},
    "bitwise_not": _bitwise("Not"),
    **dict.fromkeys(("to", "_to_copy", "type_as", "float", "clone", "contiguous", "detach", "detach_", "alias", "lift",
                     "lift_fresh", "lift_fresh_copy", "positive", "resolve_conj", "resolve_neg"), converted),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"),
                    _no_dropout),
    "fill": lambda b, x, value: b.add("Expand", b.cast(value, b.out.dtype), b.add("Shape", x)),
    "copy": lambda b, x, y, *_: b.add("Expand", b.cast(y, b.out.dtype), b.sizes(b.shape(x))),
    **{name: _filled(value) for name, value in (("zeros", 0), ("ones", 1), ("full", None), ("empty", 0),
                                                ("new_zeros", 0), ("new_ones", 1), ("new_full", None),
                                                ("new_empty", 0))},
    **{f"{name}_like": _filled(value, like=True) for name, value in (("zeros", 0), ("ones", 1), ("full", None),
                                                                    ("empty", 0))},
    "zero": _filled(0, like=True),
    "arange": _arange,
    "scalar_tensor": lambda b, x, *_: b.cast(x, b.out.dtype),
    "tril": lambda b, x, k: b.add("Trilu", x, b.number(k, INT64), upper=0),
    "triu": lambda b, x, k: b.add("Trilu", x, b.number(k, INT64), upper=1),
}  # fmt: skip
