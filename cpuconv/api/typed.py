"""Typed convolution calls: problem types and kernel-ready weights from arrays that are not all float32."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.conv import session
from cpuconv.conv.epilogue_block import Numbers
from cpuconv.elements import F32, OF_DTYPE, S8, S16, S32, Element, to_float32
from cpuconv.errors import ArgumentError, must
from cpuconv.problem.arrays import as_float32_view, as_operand, kernel_view
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.requested_types import signed, types_of
from cpuconv.problem.types import ALL_F32, Types

_CHECKED = 256  # cached successful checks of a quantization


@dataclass(frozen=True)
class Typed:
    """Types of a problem, derived from its arrays.

    Attributes
    ----------
    types : Types
    quantization : Quantization or None
        Scales and zero points, for a problem with integer sums.
    """

    types: Types = ALL_F32
    quantization: Quantization | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The part of a plan's cache key that depends on types and quantization."""
        return self.types, 0 if self.quantization is None else self.quantization.x_zero_point

    def numbers(self, weight: np.ndarray | None, k: int) -> Numbers | None:
        """Quantization numbers of kernel-ready weights; zeros if `weight` is None; None for floating-point sums."""
        if not self.types.sum.integer:
            return None
        if weight is None:
            return Numbers(self.quantization, *np.zeros((2, k), np.int64))
        return Numbers.of(weight, self.quantization)


FLOAT32_CALL = Typed()


def typed(
    x: Element, weight: np.ndarray, y: Element | None, quantization: Any, residual: bool
) -> tuple[np.ndarray, Typed]:
    """Return the weights as kernels read them (integers minus zero points), and the types of the problem.

    Parameters
    ----------
    x : Element
        Element type of the input.
    weight : array, (K, C/groups, R, S)
        Weights as given by the user.
    y : Element or None
        Requested element type of the result.
    quantization : Quantization or None
    residual : bool
        Whether a residual is added.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The types are incompatible.
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
    """Check the bias: float32 (16-bit floats are widened), or int32 for integer sums; None stays None."""
    if bias is None:
        return None
    x = problem.types.x
    if x == F32:
        view = as_float32_view(bias, "bias")
    elif x.half:
        view, element = as_operand(bias, "bias", (F32, x))
        view = to_float32(kernel_view(view), x) if element == x else view
    else:
        view, _ = as_operand(bias, "bias", (S32,) if given.quantization is None else (F32, S32))
    if view.shape != (problem.k,):
        raise ArgumentError(must("bias", f"of shape ({problem.k},)", f"{view.shape}"))
    return view


@functools.lru_cache(maxsize=_CHECKED)
def _check(quantization: Quantization, types: Types, w: Element, k: int, residual: bool) -> None:
    quantization.check(types, w, k, residual)


def _signed(weight: np.ndarray, w: Element, quantization: Quantization | None) -> np.ndarray:
    """`signed`, cached. Its result is read-only, so its content is hashed only once."""
    points = 0 if quantization is None else quantization.w_zero_point
    if w == S8 and not (any(points) if isinstance(points, tuple) else points):
        return weight
    here = session.current
    key = _signed.__name__, here.fingerprint(weight), w, points
    known = here.cache.get(key)
    if known is None:
        known = signed(weight, w, quantization)
        here.cache.put(key, known, known.nbytes)
    return known
