"""What happens to an accumulator before it is stored: activations, emitted for vectors of any number of lanes.

`ACTIVATIONS` maps each name to an emitter f(vector, x, *parameters). NaN passes through all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.error_function import gelu, gelu_tanh
from cpuconv.kernels.elementwise.exponential import sigmoid, silu, tanh


def _hardsigmoid(vec: Vector, x: Any) -> Any:
    return vec.clip(vec.fma(x, vec.constant(1 / 6), vec.constant(0.5)), 0.0, 1.0)


def _leaky_relu(vec: Vector, x: Any, slope: float) -> Any:
    positive = vec.builder.fcmp_ordered(">", x, vec.constant(0.0))
    return vec.builder.select(positive, x, vec.mul(x, vec.constant(slope)))


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda vec, x: vec.maximum(vec.constant(0.0), x),
    "relu6": lambda vec, x: vec.clip(x, 0.0, 6.0),
    "clip": Vector.clip,
    "leaky_relu": _leaky_relu,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "silu": silu,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda vec, x: vec.mul(x, _hardsigmoid(vec, x)),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
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
