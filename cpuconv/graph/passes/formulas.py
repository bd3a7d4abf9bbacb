"""Formulas that exporters write out become the operators that they mean.

Pattern: the lines of `FORMULAS`, each of a formula and what it is; floats only, and nobody else reads a value inside.
Equal up to rounding; constants that are written short (0.7071) are taken for what they mean (`pattern.TOLERANCE`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.passes.pattern import Applied, Found, Free, Pattern, Symbol, found_at, operator, product
from cpuconv.graph.passes.rewriting import Maker, Rewrite, is_float, rewritten, shape_of

Make = Callable[[Maker, Found], bool]  # False: the operands do not suit after all

Clip, Erf, Max, Min = map(operator, ("Clip", "Erf", "Max", "Min"))
HardSigmoid, Relu, Sigmoid, Softplus, Tanh = map(operator, ("HardSigmoid", "Relu", "Sigmoid", "Softplus", "Tanh"))
PRelu, Reciprocal, ReduceMean, Sqrt = map(operator, ("PRelu", "Reciprocal", "ReduceMean", "Sqrt"))

x, axes, scale, bias = map(Symbol, ("x", "axes", "scale", "bias"))
alpha, epsilon, low, high = map(Free, ("alpha", "epsilon", "low", "high"))


class Formula(NamedTuple):
    """A pattern and what makes its replacement."""

    pattern: Pattern
    make: Make


def _becomes(op: str, **attributes: object) -> Make:
    """An operator of x; free numbers are attributes of their names."""

    def make(maker: Maker, found: Found) -> bool:
        numbers: dict[str, Any] = {**attributes, **found.numbers}
        maker.node(op, found.names["x"], **numbers)
        return True

    return make


def _clip(maker: Maker, found: Found) -> bool:
    dtype = maker.graph.value(found.names["x"]).dtype
    ends = {"low": 0.0, **found.numbers}
    if not ends["low"] <= ends["high"]:
        return False
    maker.node("Clip", found.names["x"], *(maker.constant(np.array(ends[end], dtype), end) for end in ("low", "high")))
    return True


def _layer_normalization(maker: Maker, found: Found) -> bool:
    """Over the last axes only; scale and bias must be constants that lie along these."""
    graph, dtype = maker.graph, maker.graph.value(found.names["x"]).dtype
    whole = shape_of(graph, found.names["x"])
    rank = len(whole)
    stated = graph.constants.get(found.names["axes"])
    over = sorted(int(axis) % rank for axis in stated) if stated is not None else []
    if not over or over != list(range(over[0], rank)):
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
    """Whether a shape broadcasts to another one, but for leading axes of size 1."""
    leading, own = shape[: -len(other)], shape[-len(other) :]
    return all(size == 1 for size in leading) and np.broadcast_shapes(own, other) == other


def _between(p: Pattern, lo: float, hi: float) -> Pattern:
    """p within bounds."""
    return Clip(p, lo, hi) | Min(Max(p, lo), hi) | Max(Min(p, hi), lo)


def _layer() -> tuple[Pattern, Pattern, Pattern]:
    """(x - mean) / sqrt(variance + epsilon), times a scale, plus a bias."""
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


def _rule(formula: Formula, graph: Graph, node: Node) -> Rewrite | None:
    found = found_at(graph, node, formula.pattern)
    if found is None or len(node.outputs) != 1 or not is_float(graph, node.outputs[0]):
        return None
    if graph.value(found.names["x"]) != graph.value(node.outputs[0]):
        return None
    maker = Maker(graph, *reversed(found.nodes), origin=node.origin)
    return maker.done() if formula.make(maker, found) else None


def run(graph: Graph) -> Graph:
    """Replace them all, formula by formula."""
    for formula in FORMULAS:
        pattern = formula.pattern.among({node.op for node in graph.nodes if node.meaning is None})
        if pattern is not None:
            graph = rewritten(graph, partial(_rule, formula._replace(pattern=pattern)))
    return graph
