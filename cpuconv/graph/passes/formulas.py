"""Convert formulas that exporters write out to single operators.

Pattern: the rows of `FORMULAS`, each with a formula and its replacement; floating-point only, and no other node may
read an inner value. Equal up to rounding; truncated constants (0.7071) match the exact ones (`ops.base.near`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cpuconv.graph.ops.base import broadcast_shapes
from cpuconv.graph.passes.pattern import (
    Applied,
    Formula,
    Found,
    Free,
    Make,
    Pattern,
    Symbol,
    near,
    operator,
    product,
)
from cpuconv.graph.passes.rewriting import Maker, Pass, is_float, shape_of, sole_reader
from cpuconv.graph.passes.weights import foldable

Clip, Erf, Max, Min = map(operator, ("Clip", "Erf", "Max", "Min"))
HardSigmoid, Relu, Sigmoid, Softplus, Tanh = map(operator, ("HardSigmoid", "Relu", "Sigmoid", "Softplus", "Tanh"))
PRelu, Reciprocal, ReduceMean, Sqrt = map(operator, ("PRelu", "Reciprocal", "ReduceMean", "Sqrt"))

x, axes, scale, bias = map(Symbol, ("x", "axes", "scale", "bias"))
alpha, epsilon, low, high = map(Free, ("alpha", "epsilon", "low", "high"))


def _is_float(maker: Maker, found: Found) -> bool:
    """Whether the result is floating-point, with the shape and dtype of x."""
    graph, (root, *_) = maker.graph, found.nodes
    return is_float(graph, root.outputs[0]) and graph.value(found.names["x"]) == graph.value(root.outputs[0])


def _becomes(op: str, **attributes: object) -> Make:
    """Make an operator of x; free numbers become attributes of their names."""

    def make(maker: Maker, found: Found) -> bool:
        if not _is_float(maker, found):
            return False
        numbers: dict[str, Any] = {**attributes, **found.numbers}
        maker.node(op, found.names["x"], **numbers)
        return True

    return make


def _clip(maker: Maker, found: Found) -> bool:
    dtype = maker.graph.value(found.names["x"]).dtype
    ends = {"low": 0.0, **found.numbers}
    if not ends["low"] <= ends["high"] or not _is_float(maker, found):
        return False
    maker.node("Clip", found.names["x"], *(maker.constant(np.array(ends[end], dtype), end) for end in ("low", "high")))
    return True


def _layer_normalization(maker: Maker, found: Found) -> bool:
    """Make LayerNormalization over the last axes; scale and bias must be constants along these."""
    graph, dtype = maker.graph, maker.graph.value(found.names["x"]).dtype
    whole = shape_of(graph, found.names["x"])
    rank = len(whole)
    stated = graph.constants.get(found.names["axes"])
    over = sorted(int(axis) % rank for axis in stated) if stated is not None else []
    if not over or over != list(range(over[0], rank)) or not _is_float(maker, found):
        return False
    shape, parameters = whole[over[0] :], []
    for name in ("scale", "bias"):
        array = graph.constants.get(found.names[name]) if name in found.names else None
        if name in found.names and (array is None or not _fits(array.shape, shape)):
            return False
        if array is not None or name == "scale":
            array = np.ones(1, dtype) if array is None else array.reshape(array.shape[-len(shape) :])
            parameters.append(maker.constant(np.broadcast_to(array, shape).copy(), name))
    epsilon = found.numbers["epsilon"]
    maker.node("LayerNormalization", found.names["x"], *parameters, axis=over[0] - rank, epsilon=epsilon)
    return True


def _fits(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another one, ignoring leading axes of size 1."""
    leading, own = shape[: -len(other)], shape[-len(other) :]
    return all(size == 1 for size in leading) and broadcast_shapes(own, other) == other


def _between(p: Pattern, lo: float, hi: float) -> Pattern:
    """Patterns of p clipped to [lo, hi]."""
    return Clip(p, lo, hi) | Min(Max(p, lo), hi) | Max(Min(p, hi), lo)


def _layer() -> tuple[Pattern, Pattern, Pattern]:
    """Patterns of (x - mean) / sqrt(variance + epsilon): with scale and bias, with scale, without."""
    mean = ReduceMean(x, axes, keepdims=1)
    apart = x - mean
    spread = Applied("Add", (ReduceMean(apart**2, axes, keepdims=1), epsilon))
    deviation = Sqrt(spread) | spread**0.5
    normal = apart / deviation | apart * (Reciprocal(deviation) | spread**-0.5)
    return normal * scale + bias, normal * scale, normal


_SIXTH = 1 / 6
_gate = _between(x + 3.0, 0.0, 6.0)
_hard = HardSigmoid(x, alpha=_SIXTH, beta=0.5) | _between(x * _SIXTH + 0.5, 0.0, 1.0)
_erf = Erf(x * math.sqrt(0.5)) + 1.0
_inner = (x + x**3 * 0.044715) * math.sqrt(2 / math.pi) | product(x, x**2 * 0.044715 + 1.0, math.sqrt(2 / math.pi))
_with_scale_and_bias, _with_scale, _plain = _layer()

FORMULAS: tuple[Formula, ...] = (
    Formula(product(x, _gate, _SIXTH) | x * _hard, _becomes("HardSwish")),
    Formula(_gate * _SIXTH | _between(x * _SIXTH + 0.5, 0.0, 1.0), _becomes("HardSigmoid", alpha=_SIXTH, beta=0.5)),
    Formula(x * Sigmoid(x), _becomes("Swish", alpha=1.0)),
    Formula(x * Sigmoid(Applied("Mul", (x, alpha))), _becomes("Swish")),
    Formula(x * Tanh(Softplus(x)), _becomes("Mish")),
    Formula(product(x, _erf, 0.5), _becomes("Gelu")),
    Formula(product(x, Tanh(_inner) + 1.0, 0.5), _becomes("Gelu", approximate="tanh")),
    Formula(_with_scale_and_bias, _layer_normalization),
    Formula(_with_scale, _layer_normalization),
    Formula(_plain, _layer_normalization),
    Formula(Min(Max(x, low), high) | Max(Min(x, high), low) | Min(Relu(x), high), _clip),
    Formula(Max(x, 0.0), _becomes("Relu")),
    Formula(PRelu(x, alpha), _becomes("LeakyRelu")),
)


# Conversions are moved before formulas hide what is between them.
run = Pass("formulas", __doc__, FORMULAS, needs=("halves", "noops", "quantised"))


# --- HardSigmoid ----------------------------------------------------------------------------------------------------


def _slope(maker: Maker, found: Found) -> bool:
    (node,), x = found.nodes, found.names["x"]
    graph, dtype = maker.graph, maker.graph.value(x).dtype
    usual = near(node["alpha"], _SIXTH) and near(node["beta"], 0.5)
    if usual or sole_reader(graph, x) is None or not foldable(graph, graph.producer(x)):
        return False
    numbers = {"slope": node["alpha"], "shift": node["beta"], "low": 0, "high": 1}
    slope, shift, *ends = (maker.constant(np.array(number, dtype), part) for part, number in numbers.items())
    maker.node("Clip", maker.node("Add", maker.node("Mul", x, slope, part="scaled"), shift, part="shifted"), *ends)
    return True


hard_sigmoids = Pass(
    "hard_sigmoids",
    """HardSigmoid after a convolution or Linear, with a slope other than 1/6, becomes Mul, Add and Clip.

    HardSigmoid(x) = Clip(alpha x + beta, 0, 1) by definition. The Mul and Add can then go into the weights and the Clip
    into the epilogue, where a sixth and a half have a form of their own. Equal up to rounding.
    """,
    (Formula(HardSigmoid(x), _slope),),
    needs=("weights",),
    undoes=("weights",),
)
