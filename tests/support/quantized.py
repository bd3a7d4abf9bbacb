"""Random operands of problems with integer sums, in the whole range of their types, and scales that suit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import layouts
from cpuconv.elements import TABLE, U8
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import INT8_TYPES, Quantization, bounds


@dataclass(frozen=True)
class QuantizedOperands:
    """Physical input and residual in the problem's layouts, weights as users give them, biases of both kinds."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray
    float_bias: np.ndarray
    residual: np.ndarray | None
    scales: Quantization


def quantization(problem: ConvProblem, seed: int, w_type: str = "s8", each: bool = True) -> Quantization:
    """Random scales by which results spread over a byte, and random zero points; `each`: for each output channel."""
    rng = np.random.default_rng([seed, 9])
    terms = problem.cg * problem.r * problem.s

    def point(name: str) -> int:
        least, most = bounds(TABLE[name])
        return int(rng.integers(least, most + 1))

    def many(draw: Any) -> Any:
        return [draw() for _ in range(problem.k)] if each else draw()

    y, x_scale = problem.types.y, float(rng.uniform(0.01, 0.1))
    w_scale = many(lambda: float(rng.uniform(0.5, 2)) / 74 / 100 / terms**0.5 / x_scale)
    scaled = {} if y not in INT8_TYPES else {"y_scale": float(rng.uniform(0.01, 0.05)), "y_zero_point": point(y.name)}
    if problem.residual and y in INT8_TYPES:
        scaled |= {"residual_scale": float(rng.uniform(0.005, 0.02)), "residual_zero_point": point(y.name)}
    return Quantization(
        x_scale=x_scale,
        x_zero_point=point(problem.types.x.name),
        w_scale=w_scale,
        w_zero_point=many(lambda: point("u8")) if w_type == U8.name else 0,
        **scaled,
    )


def operands(problem: ConvProblem, seed: int = 0, w_type: str = "s8", each: bool = True) -> QuantizedOperands:
    """Operands of a problem; tail channels are zero."""
    rng = np.random.default_rng([seed, problem.c, problem.k, problem.h])

    def integers(name: str, shape: tuple[int, ...]) -> np.ndarray:
        least, most = bounds(TABLE[name])
        return rng.integers(least, most + 1, shape).astype(TABLE[name].dtype)

    scales, y = quantization(problem, seed, w_type, each), problem.types.y
    unit = np.broadcast_to(scales.product(), problem.k)
    residual = None
    if problem.residual:
        drawn = integers(y.name, problem.out_shape) if y in INT8_TYPES else rng.standard_normal(problem.out_shape)
        residual = layouts.from_nchw(drawn.astype(y.dtype), problem.out_layout)
    float_bias = rng.standard_normal(problem.k).astype(np.float32)
    return QuantizedOperands(
        layouts.from_nchw(integers(problem.types.x.name, problem.in_shape), problem.in_layout),
        integers(w_type, problem.weight_shape),
        np.rint(float_bias / unit).astype(np.int32),
        float_bias,
        residual,
        scales,
    )
