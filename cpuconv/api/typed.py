"""Calls of other types than float32: what their arrays say of the problem, and weights as kernels take them."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.conv import session
from cpuconv.conv.ending_block import Numbers
from cpuconv.elements import F32, OF_DTYPE, S8, S16, S32, Element, floats
from cpuconv.errors import ArgumentError, must
from cpuconv.problem.arrays import as_float32_view, as_operand, inside
from cpuconv.problem.asked_types import signed, types_of
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.types import ALL_F32, Types

_CHECKED = 256  # calls whose quantization is known to suit them


@dataclass(frozen=True)
class Typed:
    """What arrays say of a problem's types.

    Attributes
    ----------
    types : Types
    quantization : Quantization or None
        Of a problem with integer sums.
    """

    types: Types = ALL_F32
    quantization: Quantization | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What plans of it depend on."""
        return self.types, 0 if self.quantization is None else self.quantization.x_zero_point

    def numbers(self, weight: np.ndarray | None, k: int) -> Numbers | None:
        """Of weights as kernels take them, or of none that are known yet; None where sums are floats."""
        if not self.types.sum.integer:
            return None
        if weight is None:
            return Numbers(self.quantization, *np.zeros((2, k), np.int64))
        return Numbers.of(weight, self.quantization)


FLOAT32_CALL = Typed()


def typed(
    x: Element, weight: np.ndarray, y: Element | None, quantization: Any, residual: bool
) -> tuple[np.ndarray, Typed]:
    """Weights as kernels take them, of bytes less their zero points, and what they and the input say.

    Parameters
    ----------
    x : Element
        Of the input.
    weight : array, (K, C/groups, R, S)
        As users give it.
    y : Element or None
        That is asked for.
    quantization : Quantization or None
    residual : bool
        Whether one is added.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        They do not go together.
    """
    w = OF_DTYPE[weight.dtype]
    types = types_of(x, w, y, quantization)
    if not types.sum.integer:
        return weight, Typed(types)
    check_rank(weight)
    if quantization is not None:
        _check(quantization, types, w, weight.shape[0], residual)
    weight = _signed(weight, w, quantization)
    if weight.dtype == S16.dtype:
        types = replace(types, w=S16)
    return weight, Typed(types, quantization)


def check_rank(weight: np.ndarray) -> None:
    """Raise `ArgumentError` for weights that are not (K, C/groups, R, S)."""
    if weight.ndim != 4:
        raise ArgumentError(must("w", "of rank 4, (K, C/groups, R, S)", f"of rank {weight.ndim}, {weight.shape}"))


def bias_view(bias: Any, problem: ConvProblem, given: Typed = FLOAT32_CALL) -> np.ndarray | None:
    """The bias, checked: float32 (widened where it is of 16 bits), or int32 where sums are integers; None as it is."""
    if bias is None:
        return None
    x = problem.types.x
    if x == F32:
        view = as_float32_view(bias, "bias")
    elif x.half:
        view, element = as_operand(bias, "bias", (F32, x))
        view = floats(inside(view), x) if element == x else view
    else:
        view, _ = as_operand(bias, "bias", (S32,) if given.quantization is None else (F32, S32))
    if view.shape != (problem.k,):
        raise ArgumentError(must("bias", f"of shape ({problem.k},)", f"{view.shape}"))
    return view


@functools.lru_cache(maxsize=_CHECKED)
def _check(quantization: Quantization, types: Types, w: Element, k: int, residual: bool) -> None:
    quantization.check(types, w, k, residual)


def _signed(weight: np.ndarray, w: Element, quantization: Quantization | None) -> np.ndarray:
    """`signed`, remembered: what it gives is read-only, so that its content is read once."""
    points = 0 if quantization is None else quantization.w_zero_point
    if w == S8 and not (any(points) if isinstance(points, tuple) else points):
        return weight
    here = session.current
    key = _signed.__name__, here.fingerprint(weight), w, points
    known = here.remembered.get(key)
    if known is None:
        known = signed(weight, w, quantization)
        here.remembered.put(key, known, known.nbytes)
    return known
