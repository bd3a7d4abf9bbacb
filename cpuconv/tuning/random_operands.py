"""Random arrays of a problem, on which its candidates are timed and judged."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

import layouts
from cpuconv.elements import S16, Element
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import BYTES, Quantization, bounds
from cpuconv.problem.reference import conv2d as oracle

_PRIMES = (65_537, 65_539, 65_543, 65_551)
_INPUT, _WEIGHT, _RESIDUAL, _BIAS = range(4)  # kinds of numbers
_SPREAD = 32  # standard deviation of weights of integers: as a layer's, with some at the ends of the range
_STEPS = 32  # of a byte, in a standard deviation of the output


class RandomOperands(NamedTuple):
    """Arrays of a problem, of its types inside; bfloat16 is that of ml_dtypes.

    Floats are unit normal, weights scaled to give outputs of unit variance. Inputs of integers fill their range.
    """

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray
    residual: np.ndarray | None
    quantization: Quantization | None


@functools.lru_cache(maxsize=2)
def random_operands(problem: ConvProblem) -> RandomOperands:
    """Those of a problem, physical in its layouts."""
    types, terms = problem.types, problem.cg * problem.r * problem.s
    x = layouts.from_nchw(_drawn_as(types.x, _INPUT, problem.in_shape), problem.in_layout)
    w = _drawn_as(types.w, _WEIGHT, problem.weight_shape, terms**-0.5)
    residual = None
    if problem.residual:
        residual = layouts.from_nchw(_drawn_as(types.y, _RESIDUAL, problem.out_shape), problem.out_layout)
    bias = normal(_BIAS, (problem.k,))
    return RandomOperands(x, w, bias, residual, _quantization(problem, terms) if types.sum.integer else None)


@functools.lru_cache(maxsize=2)
def expected(problem: ConvProblem) -> np.ndarray:
    """The oracle's result on `random_operands(problem)`."""
    x, w, bias, residual, quantization = random_operands(problem)
    return oracle(x, w, bias, problem, residual, quantization)


def normal(kind: int, shape: tuple[int, ...]) -> np.ndarray:
    """Unit normal numbers, others of each kind; they repeat after a prime number of them, so that no two rows, columns
    or channels are alike, as drawing millions takes longer than running most layers."""
    return np.resize(_drawn(kind), shape)


@functools.cache
def _drawn(kind: int) -> np.ndarray:
    return np.random.default_rng(kind).standard_normal(_PRIMES[kind], np.float32)


def _drawn_as(element: Element, kind: int, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Numbers of an element: integers in their whole range, or weights about zero."""
    if not element.integer:
        return (normal(kind, shape) * np.float32(scale)).astype(element.outside)
    least, most = (-255, 255) if element == S16 else bounds(element)  # int16: bytes less a zero point
    if kind == _WEIGHT:
        return np.resize(np.clip(np.rint(_drawn(kind) * _SPREAD), least, most).astype(element.dtype), shape)
    drawn = np.random.default_rng(kind).integers(least, most, _PRIMES[kind], endpoint=True)
    return np.resize(drawn.astype(element.dtype), shape)


def _quantization(problem: ConvProblem, terms: int) -> Quantization:
    """Scales, other ones for each output channel, by which results spread over a byte and some are clamped."""
    types = problem.types
    unit = 1 / (_SPREAD * 74 * terms**0.5)  # of sums whose inputs are uniform
    each = unit * (0.75 + 0.5 * np.resize(np.random.default_rng(0).random(_PRIMES[0]), problem.k))
    ends: dict[str, Any] = {}
    if types.y in BYTES:
        middle = sum(bounds(types.y)) // 2
        ends = {"y_scale": 1 / _STEPS, "y_zero_point": middle + 5}
        if problem.residual:
            ends |= {"residual_scale": 0.6 / _STEPS, "residual_zero_point": middle - 9}
    return Quantization(x_scale=1.0, x_zero_point=sum(bounds(types.x)) // 2 - 11, w_scale=each, **ends)
