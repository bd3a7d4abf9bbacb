"""Operands of a convolution call, normalised once: arrays that kernels read, and the problem's types."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.conv import session
from cpuconv.conv.epilogue_block import Numbers
from cpuconv.elements import F32, S8, S16, S32, Element, to_float32
from cpuconv.errors import ArgumentError, must
from cpuconv.problem.arrays import FLOAT32, OPERANDS, as_operand, kernel_view
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.requested_types import element_named, signed, types_of
from cpuconv.problem.types import ALL_F32, Types

_ARRAY, _NOTHING = np.ndarray, np.empty(0)
_CHECKED = 256  # cached successful checks of a quantization


class Operands:
    """Arrays as kernels read them, and the types of the problem.

    Attributes
    ----------
    x : numpy.ndarray
        The input as given; empty for a plan, which receives inputs later.
    weight : numpy.ndarray, (K, C/groups, R, S)
        Integers minus their zero points.
    bias : numpy.ndarray, (K,), or None
        Of float32; or of int32, for integer sums.
    types : Types
    quantization : Quantization or None
        Scales and zero points, for a problem with integer sums.
    """

    __slots__ = ("x", "weight", "bias", "types", "quantization")  # made in each call: a data class takes twice as long

    def __init__(
        self,
        x: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray | None = None,
        types: Types = ALL_F32,
        quantization: Quantization | None = None,
    ) -> None:
        self.x = x
        self.weight = weight
        self.bias = bias
        self.types = types
        self.quantization = quantization

    @property
    def key(self) -> tuple[Any, ...]:
        """The part of a plan's cache key that depends on types and quantization."""
        if self.types is ALL_F32:
            return ()
        return self.types, 0 if self.quantization is None else self.quantization.x_zero_point

    def numbers(self, *, zeros: bool = False) -> Numbers | None:
        """Quantization numbers of the weights, or of `zeros` in their place; None for floating-point sums."""
        if not self.types.sum.integer:
            return None
        if zeros:
            return Numbers(self.quantization, *np.zeros((2, len(self.weight)), np.int64))
        return Numbers.of(self.weight, self.quantization)


def operands(x: Any, w: Any, bias: Any, y_dtype: Any, quantization: Any, residual: bool) -> Operands:
    """Normalise the operands of a call of `conv2d`.

    Parameters
    ----------
    x, w, bias, y_dtype, quantization
        As for `conv2d`.
    residual : bool
        Whether a residual is added.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is invalid, or the types are incompatible.
    """
    if (
        y_dtype is None
        and quantization is None
        and type(x) is type(w) is _ARRAY
        and x.dtype is w.dtype is FLOAT32
        and w.ndim == 4
        and w.flags.aligned
        and (
            bias is None
            or type(bias) is _ARRAY
            and bias.dtype is FLOAT32
            and bias.flags.aligned
            and bias.shape == w.shape[:1]
        )
    ):
        return Operands(x, w, bias)  # as below, in a fifth of the time
    weight, element = as_operand(w, "w")
    is_plain = y_dtype is None and quantization is None
    array, x_element = as_operand(x, "x", (F32,) if is_plain and element is F32 else OPERANDS)
    made = plan_operands(x_element, weight, element, bias, y_dtype, quantization, residual)
    made.x = array
    return made


def plan_operands(
    x: Element, weight: np.ndarray, w: Element, bias: Any, y_dtype: Any, quantization: Any, residual: bool
) -> Operands:
    """Normalise the operands of a plan: as `operands`, for element type `x` of inputs and weights of type `w`."""
    types = ALL_F32
    if not (x is w is F32 and y_dtype is None and quantization is None):
        types = types_of(x, w, element_named(y_dtype, "y_dtype"), quantization)
    if weight.ndim != 4:
        raise ArgumentError(must("w", "of rank 4, (K, C/groups, R, S)", f"of rank {weight.ndim}, {weight.shape}"))
    if types is not ALL_F32 and types.sum.integer:
        if quantization is not None:
            _check(quantization, types, w, weight.shape[0], residual)
        weight = _signed(weight, w, quantization)
        if weight.dtype == S16.dtype:
            types = replace(types, w=S16)
    if bias is not None:
        bias = _bias_view(bias, types, quantization is not None, weight.shape[0])
    return Operands(_NOTHING, weight, bias, types, quantization)


def _bias_view(bias: Any, types: Types, quantized: bool, k: int) -> np.ndarray:
    """Check the bias: float32 (16-bit floats are widened), or int32 for integer sums."""
    if types is ALL_F32:
        allowed: tuple[Element, ...] = (F32,)
    elif types.sum.integer:
        allowed = (F32, S32) if quantized else (S32,)
    else:
        allowed = F32, types.x
    view, element = as_operand(bias, "bias", allowed)
    if element is not F32 and element.half:
        view = to_float32(kernel_view(view), element)
    if view.shape != (k,):
        raise ArgumentError(must("bias", f"of shape ({k},)", f"{view.shape}"))
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
