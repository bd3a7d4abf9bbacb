"""Random arrays of a problem, for timing and checking its candidates."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

import layouts
from cpuconv.elements import S16, Element, split_to_parts
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import INT8_TYPES, Quantization, bounds
from cpuconv.problem.reference import conv2d as oracle

_PRIMES = (65_537, 65_539, 65_543, 65_551)
_INPUT, _WEIGHT, _RESIDUAL, _BIAS = range(4)  # kinds of arrays
_SPREAD = 32  # standard deviation of integer weights: as in a usual layer, with some at the ends of the range
_STEPS = 32  # int8 / uint8 steps per standard deviation of the output


class RandomOperands(NamedTuple):
    """Arrays of a problem in its internal types; bfloat16 is that of ml_dtypes.

    Float arrays are unit normal; weights are scaled for outputs of unit variance. Integer inputs fill their range.
    """

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray
    residual: np.ndarray | None
    quantization: Quantization | None


@functools.lru_cache(maxsize=2)
def random_operands(problem: ConvProblem) -> RandomOperands:
    """Return the arrays of a problem, physical in its layouts."""
    types, terms = problem.types, problem.cg * problem.r * problem.s
    x = _activation(types.x, _INPUT, problem.in_shape, problem.in_layout)
    w = _drawn_as(types.w, _WEIGHT, problem.weight_shape, terms**-0.5)
    residual = None
    if problem.residual:
        residual = _activation(types.y, _RESIDUAL, problem.out_shape, problem.out_layout)
    bias = normal(_BIAS, (problem.k,))
    return RandomOperands(x, w, bias, residual, _quantization(problem, terms) if types.sum.integer else None)


@functools.lru_cache(maxsize=2)
def expected(problem: ConvProblem) -> np.ndarray:
    """Return the reference's result on `random_operands(problem)`."""
    x, w, bias, residual, quantization = random_operands(problem)
    return oracle(x, w, bias, problem, residual, quantization)


def normal(kind: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return unit normal numbers, different for each kind.

    They repeat with a prime period, so that no two rows, columns or channels are equal; drawing millions would take
    longer than running most layers.
    """
    return np.resize(_drawn(kind), shape)


@functools.cache
def _drawn(kind: int) -> np.ndarray:
    return np.random.default_rng(kind).standard_normal(_PRIMES[kind], np.float32)


def _activation(element: Element, kind: int, shape: tuple[int, int, int, int], layout: str) -> np.ndarray:
    """Draw an activation of an element type in a layout."""
    if element.parts > 1:
        return split_to_parts(layouts.from_nchw(normal(kind, shape), layout), element)
    return layouts.from_nchw(_drawn_as(element, kind, shape), layout)


def _drawn_as(element: Element, kind: int, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Draw numbers of an element type: integers in their whole range, or weights around zero."""
    if not element.integer:
        return (normal(kind, shape) * np.float32(scale)).astype(element.outside)
    least, most = (-255, 255) if element == S16 else bounds(element)  # int16: int8 or uint8 minus a zero point
    if kind == _WEIGHT:
        return np.resize(np.clip(np.rint(_drawn(kind) * _SPREAD), least, most).astype(element.dtype), shape)
    drawn = np.random.default_rng(kind).integers(least, most, _PRIMES[kind], endpoint=True)
    return np.resize(drawn.astype(element.dtype), shape)


def _quantization(problem: ConvProblem, terms: int) -> Quantization:
    """Return scales, different per output channel, so that results fill the int8 / uint8 range and some are clamped."""
    types = problem.types
    unit = 1 / (_SPREAD * 74 * terms**0.5)  # inverse standard deviation of sums with uniform inputs
    each = unit * (0.75 + 0.5 * np.resize(np.random.default_rng(0).random(_PRIMES[0]), problem.k))
    ends: dict[str, Any] = {}
    if types.y in INT8_TYPES:
        middle = sum(bounds(types.y)) // 2
        ends = {"y_scale": 1 / _STEPS, "y_zero_point": middle + 5}
        if problem.residual:
            ends |= {"residual_scale": 0.6 / _STEPS, "residual_zero_point": middle - 9}
    return Quantization(x_scale=1.0, x_zero_point=sum(bounds(types.x)) // 2 - 11, w_scale=each, **ends)
