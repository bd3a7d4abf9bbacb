"""Forms of elementwise operators: each as an expression of its operands.

`Elementwise` is not an ONNX operator: any expression of several operands; the pass of the same name makes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

from cpuconv.graph.ir import Node
from cpuconv.graph.ops.base import near
from cpuconv.kernels.elementwise.expression import Constant, Expression, Operand, apply

Form = Callable[..., Any]  # maps node and operands (None: absent) to an expression or None


def _plain(function: str) -> Form:
    """Form of a kernel function."""
    return lambda node, *operands: apply(function, *operands)


def _folded(function: str) -> Form:
    """Form that applies a function of two operands to any number of them, from the left."""
    return lambda node, *operands: reduce(lambda a, b: apply(function, a, b), operands)


def _mean(node: Node, *operands: Expression) -> Expression:
    return apply("div", _folded("add")(node, *operands), len(operands))


def _between(x: Expression, low: Expression | float | None, high: Expression | float | None) -> Expression:
    """Clip to min(max(x, low), high), without infinite or absent bounds."""
    x = x if low in (None, Constant(-math.inf)) else apply("max", x, low)
    return x if high in (None, Constant(math.inf)) else apply("min", x, high)


def _clip(node: Node, x: Expression, low: Expression | None = None, high: Expression | None = None) -> Expression:
    return _between(x, low, high)


def _leaky_relu(node: Node, x: Expression) -> Expression:
    return apply("leaky_relu", x, node["alpha"])


def _thresholded_relu(node: Node, x: Expression) -> Expression:
    return apply("above", x, node["alpha"])


def _elu(node: Node, x: Expression) -> Expression:
    """ELU: x above 0, alpha (e^x - 1) below."""
    below = apply("mul", node["alpha"], apply("expm1", apply("min", x, 0)))
    return apply("add", apply("max", x, 0), below)


def _selu(node: Node, x: Expression) -> Expression:
    return apply("mul", node["gamma"], _elu(node, x))


def _celu(node: Node, x: Expression) -> Expression:
    below = apply("mul", node["alpha"], apply("expm1", apply("div", x, node["alpha"])))
    return apply("add", apply("max", x, 0), apply("min", below, 0))


def _hard_sigmoid(node: Node, x: Expression) -> Expression:
    if near(node["alpha"], 1 / 6) and near(node["beta"], 0.5):
        return apply("hardsigmoid", x)
    return _between(apply("add", apply("mul", x, node["alpha"]), node["beta"]), 0, 1)


def _swish(node: Node, x: Expression) -> Expression:
    return apply("silu", x) if node["alpha"] == 1 else apply("mul", x, apply("sigmoid", apply("mul", x, node["alpha"])))


def _quantize(node: Node, x: Expression, scale: Expression, zero: Expression | None = None) -> Expression | None:
    """Quantise, without rounding of the sum and clamping, which the output type adds."""
    if not (isinstance(scale, Constant) and isinstance(zero, Constant | None)):
        return None
    whole = apply("round", apply("quotient", x, scale))
    return apply("add", whole, zero) if zero and zero.value else whole


def _dequantize(node: Node, x: Expression, scale: Expression, zero: Expression | None = None) -> Expression | None:
    if not (isinstance(scale, Constant) and isinstance(zero, Constant | None)):
        return None
    return apply("mul", apply("sub", x, zero) if zero and zero.value else x, scale)


def _gelu(node: Node, x: Expression) -> Expression:
    return apply("gelu_tanh" if node["approximate"] == "tanh" else "gelu", x)


def _softsign(node: Node, x: Expression) -> Expression:
    return apply("div", x, apply("add", apply("abs", x), 1))


def _pow(node: Node, x: Expression, y: Expression) -> Expression:
    """Compute small integer powers and powers of ±1/2 by multiplications and square roots."""
    power = y.value if isinstance(y, Constant) else math.nan
    if 0 < abs(power) <= 16 and 2 * power == int(2 * power) and (power == int(power) or abs(power) == 0.5):
        made = apply("root", x) if abs(power) == 0.5 else _times(x, int(abs(power)))
        return made if power > 0 else apply("div", 1, made)
    return apply("pow", x, y)


def _times(x: Expression, count: int) -> Expression:
    """Compute x to the power of `count` by squaring."""
    if count == 1:
        return x
    if count % 2:
        return apply("mul", x, _times(x, count - 1))
    half = _times(x, count // 2)
    return apply("mul", half, half)


def _expression(node: Node, *operands: Expression) -> Expression:
    """Expression of an Elementwise node, with operands that are constants substituted."""
    tree = node["expression"]
    return tree if operands == tuple(map(Operand, range(len(operands)))) else tree.substituted(operands)


COMPARISONS = {"Equal": "equal", "Less": "less", "LessOrEqual": "less_equal"}
COMPARISONS |= {"Greater": "greater", "GreaterOrEqual": "greater_equal"}
FORMS: dict[str, Form] = {
    "Elementwise": _expression,
    # activations
    "Relu": _plain("relu"),
    "Clip": _clip,
    "LeakyRelu": _leaky_relu,
    "PRelu": _plain("prelu"),
    "ThresholdedRelu": _thresholded_relu,
    "Elu": _elu,
    "Selu": _selu,
    "Celu": _celu,
    "Sigmoid": _plain("sigmoid"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain("hardswish"),
    "Tanh": _plain("tanh"),
    "Softplus": _plain("softplus"),
    "Softsign": _softsign,
    "Mish": _plain("mish"),
    "Swish": _swish,
    "Gelu": _gelu,
    # arithmetic
    "Add": _plain("add"),
    "Sub": _plain("sub"),
    "Mul": _plain("mul"),
    "Div": _plain("div"),
    "Pow": _pow,
    "Min": _folded("min"),
    "Max": _folded("max"),
    "Sum": _folded("add"),
    "Mean": _mean,
    "Neg": _plain("neg"),
    "Abs": _plain("abs"),
    "Reciprocal": lambda node, x: apply("div", 1, x),
    "Sqrt": _plain("sqrt"),
    "Exp": _plain("exp"),
    "Log": _plain("log"),
    "Erf": _plain("erf"),
    "Sin": _plain("sin"),
    "Cos": _plain("cos"),
    "Floor": _plain("floor"),
    "Ceil": _plain("ceil"),
    "Round": _plain("round"),
    # comparisons and logic of bool, which is 0 or 1
    **{op: _plain(function) for op, function in COMPARISONS.items()},
    "Where": _plain("choose"),
    # quantisation
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
"""Expressions of operators in terms of their operands."""
