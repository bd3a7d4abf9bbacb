"""Element types of a problem, derived from the arrays that the caller passes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.elements import BF16, F16, F32, S8, S16, S32, U8, Element
from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.problem.integers import describe
from cpuconv.problem.quantization import INT8_TYPES, Quantization, bounds
from cpuconv.problem.types import ALL_F32, Types, sums_of

_RESULT = (F32, BF16, F16, U8, S8, S32)
_WEIGHTS = {
    F32: (F32,),
    BF16: (BF16,),
    F16: (F16,),
    U8: INT8_TYPES[::-1],
    S8: INT8_TYPES[::-1],
}  # supported weight types
INPUTS = tuple(_WEIGHTS)
_ALIASES = {"f32": F32, "fp32": F32, "bf16": BF16, "f16": F16, "fp16": F16}
_RESULTS = {  # result types of an input type, the default first
    F32: (F32,),
    BF16: (BF16, F32),
    F16: (F16, F32),
    U8: (U8, S8, F32, S32),
    S8: (S8, U8, F32, S32),
}


def element_named(value: Any, name: str, elements: Sequence[Element] = _RESULT) -> Element | None:
    """Parse an argument such as `y_dtype` to one of `elements`; None stays None.

    Parameters
    ----------
    value : str, dtype of NumPy or of torch, or None
        A str may also be an alias, such as "bf16".
    name : str
        The argument's name, for messages.

    Raises
    ------
    ArgumentError
        `value` is not the type of one of `elements`.
    """
    if value is None:
        return None
    named = {element.label: element for element in elements}
    text = value if isinstance(value, str) else str(value).removeprefix("torch.")
    if _ALIASES.get(text) in elements:
        return _ALIASES[text]
    if text not in named:
        try:
            text = np.dtype(value).name
        except TypeError:
            text = ""
    if text not in named:
        raise ArgumentError(must(name, f"one of {', '.join(named)}", describe(value)))
    return named[text]


def usual_input(w: Element) -> Element:
    """Default input type for weights: uint8 for integer weights, else the type of the weights."""
    return U8 if w.integer else w


def types_of(x: Element, w: Element, y: Element | None, quantization: Any) -> Types:
    """Derive the types of a problem from the element types of its arrays.

    Parameters
    ----------
    x, w : Element
        Types of the arrays as users pass them.
    y : Element or None
        Type of the result. None: the input's type, or float32 for integers without a `y_scale`.
    quantization : Quantization or None

    Returns
    -------
    Types
        For int8 and uint8 weights, the weight type is int8: their zero points are subtracted.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The element types do not fit together, or a quantization is missing or superfluous.
    """
    if quantization is not None and not isinstance(quantization, Quantization):
        expected = "a cpuconv.Quantization or None"
        raise ArgumentTypeError(must("quantization", expected, describe(quantization)))
    return _types(x, w, y, quantization is not None, quantization is not None and quantization.y_scale is not None)


@functools.cache
def _types(x: Element, w: Element, y: Element | None, quantized: bool, y_scaled: bool) -> Types:
    if w not in _WEIGHTS[x]:
        expected = " or ".join(element.label for element in _WEIGHTS[x])
        raise ArgumentTypeError(must("w", f"of dtype {expected}, as 'x' is of {x.label}", w.label))
    if y is not None and y not in _RESULTS[x]:
        expected = " or ".join(element.label for element in _RESULTS[x])
        raise ArgumentError(must("y_dtype", f"{expected}, as 'x' is of {x.label}", y.label))
    if not x.integer:
        if quantized:
            raise ArgumentError(must("quantization", f"None, as 'x' is of {x.label}", "a Quantization"))
        return ALL_F32 if x == F32 else Types(x, w, F32, y or x)
    if not quantized and y != S32:
        expected = f"a cpuconv.Quantization, as 'x' is of {x.label} (only y_dtype='int32' needs none)"
        raise ArgumentError(must("quantization", expected, "None"))
    if y in INT8_TYPES and not y_scaled:
        raise ArgumentError(must("quantization", f"one with a y_scale, as 'y_dtype' is {y.label}", "one without"))
    return Types(x, S8, sums_of(x, S8), y or (x if y_scaled else F32))


def signed(weight: np.ndarray, w: Element, quantization: Quantization | None) -> np.ndarray:
    """Subtract the zero points of int8 or uint8 weights: to int8 where all fit, else int16.

    Parameters
    ----------
    weight : array, (K, C/groups, R, S)
    w : Element
        Type of `weight`.
    quantization : Quantization or None
        None: without zero points.

    Returns
    -------
    numpy.ndarray
        A new, read-only array; or `weight` itself if it is int8 and has no zero points.
    """
    points = 0 if quantization is None else quantization.w_zero_point
    if w == S8 and not np.any(points):
        return weight
    less = weight.astype(S16.dtype) - np.asarray(points, S16.dtype).reshape(-1, 1, 1, 1)
    least, most = bounds(S8)
    if not less.size or (least <= less.min() and less.max() <= most):
        less = less.astype(S8.dtype)
    less.setflags(write=False)
    return less
