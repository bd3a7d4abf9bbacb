"""Elementwise arithmetic, comparisons and logic with NumPy's broadcasting.

Source: ONNX operators of these names. Integers are computed in their own type and wrap around.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from cpuconv.functions.table import power
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import Infer, Inputs, Op, broadcast
from cpuconv.graph.ops.elementwise import native
from cpuconv.graph.ops.traits import Int8, Sign

Function = Callable[..., np.ndarray]


def _truth(node: Node, inputs: Inputs) -> list[Value]:
    """Infer booleans of the shape to which all inputs broadcast."""
    return [Value(broadcast(node, inputs)[0].shape, np.dtype(bool))]


def _chosen(node: Node, inputs: Inputs) -> list[Value]:
    """Infer the shape to which all inputs broadcast, and the dtype of the second and third."""
    if inputs[1].dtype != inputs[2].dtype:
        raise ValueError("the second and third must be of one type")
    return [Value(broadcast(node, inputs)[0].shape, inputs[1].dtype)]


def _op(name: str, function: Function, rule: Infer = broadcast, **row: Any) -> Op:
    """Make a row whose reference is a function of operands and attributes."""
    return Op(name, rule, lambda node, arrays: function(*arrays, **node.attributes), **row)


def _folded(function: Function) -> Function:
    """Apply a function of two operands to any number of them, from the left."""
    return lambda *arrays: reduce(function, arrays)


def _div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide; integers are rounded towards zero."""
    if a.dtype.kind == "f":
        return a / b
    quotient, rest = np.divmod(a, b)
    return quotient + ((rest != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Raise a to the power of b, which may have another type; integers to negative powers are computed in float64."""
    if a.dtype.kind != "f" and (b.dtype.kind == "f" or (b < 0).any()):
        a = a.astype(np.float64)
    return power(a, b) if a.dtype.kind == "f" else np.power(a, b)


def _mod(a: np.ndarray, b: np.ndarray, fmod: int) -> np.ndarray:
    """Remainder with the sign of b, or with fmod that of a."""
    return np.fmod(a, b) if fmod else np.mod(a, b)


def _is_inf(x: np.ndarray, detect_negative: int, detect_positive: int) -> np.ndarray:
    return np.isinf(x) & (((x > 0) & bool(detect_positive)) | ((x < 0) & bool(detect_negative)))


_erf = np.frompyfunc(math.erf, 1, 1)

_EITHER: dict[str, Any] = {"joins": True, "commutative": True}
_SUM: dict[str, Any] = {**_EITHER, "sign": Sign.KEPT}
_OF_TWO: dict[str, Any] = {"int8": Int8.RESCALED, "follows_sizes": True}

OPS = native(
    _op("Add", np.add, **_SUM, **_OF_TWO),
    _op("Sub", np.subtract, joins=True, follows_sizes=True),
    _op("Mul", np.multiply, **_SUM, **_OF_TWO),
    _op("Div", _div, joins=True),
    _op("Pow", _pow, mixed=True, joins=True),
    _op("Mod", _mod, attributes={"fmod": 0}, joins=True),
    _op("Min", _folded(np.minimum), **_EITHER),
    _op("Max", _folded(np.maximum), **_SUM),
    _op("Sum", _folded(np.add), **_SUM),
    _op("Mean", lambda *arrays: reduce(np.add, arrays) / len(arrays), **_EITHER),
    _op("Neg", np.negative),
    _op("Abs", np.abs, sign=Sign.NONNEGATIVE),
    _op("Sign", np.sign),
    _op("Reciprocal", np.reciprocal),
    _op("Sqrt", np.sqrt, sign=Sign.NONNEGATIVE),
    _op("Exp", np.exp, sign=Sign.NONNEGATIVE),
    _op("Log", np.log),
    _op("Sin", np.sin),
    _op("Cos", np.cos),
    _op("Erf", lambda x: np.asarray(_erf(x), np.float64)),
    _op("Floor", np.floor),
    _op("Ceil", np.ceil),
    _op("Round", np.rint),  # ties to even
    _op("Equal", np.equal, _truth, **_EITHER),
    _op("Less", np.less, _truth, joins=True),
    _op("LessOrEqual", np.less_equal, _truth, joins=True),
    _op("Greater", np.greater, _truth, joins=True),
    _op("GreaterOrEqual", np.greater_equal, _truth, joins=True),
    _op("And", np.logical_and, _truth, **_EITHER),
    _op("Or", np.logical_or, _truth, **_EITHER),
    _op("Xor", np.logical_xor, _truth, **_EITHER),
    _op("Not", np.logical_not, _truth),
    _op("IsNaN", np.isnan, _truth),
    _op("IsInf", _is_inf, _truth, attributes={"detect_negative": 1, "detect_positive": 1}),
    Op("Where", _chosen, lambda node, arrays: np.where(*arrays), mixed=True, widened=False),
)
