"""Quantization: scales and zero points of a convolution's integer arrays."""

from __future__ import annotations

import contextlib
import math
import numbers
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import S8, U8, Element
from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.problem.integers import describe, is_integer, is_sequence
from cpuconv.problem.types import Types

INT8_TYPES = (U8, S8)
LIMITS = ("y_least", "y_most")
_MIN_ZERO_POINT, _MAX_ZERO_POINT = -128, 127 + 128  # range of zero points over all element types
_SCALE = "a finite number above 0 in float32"
_EACH = "or one for each output channel"
_PLAIN = frozenset((float, int))  # types that need no check by value: a network has thousands of scales


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Scales, zero points and clamps of a quantised convolution; a real number is scale · (integer - zero point).

    Let S = Σ (x - x_zero_point) · (w - w_zero_point), exactly, with the bias in units of x_scale · w_scale. Operations
    are in float32, one at a time, and round to nearest, ties to even. The result is:

    - uint8 or int8 without a residual, and no activation, "relu" or "clip":
      y = clamp(rint((S + bias) · ((x_scale · w_scale) / y_scale)) + y_zero_point), as ONNX Runtime's QLinearConv does;
    - otherwise r = activation((S + bias) · (x_scale · w_scale) + (residual - residual_zero_point) · residual_scale) and
      y = clamp(rint(r / y_scale) + y_zero_point);
    - float32, without a `y_scale` or with ``y_dtype="float32"``: y = r;
    - int32, with ``y_dtype="int32"``: y = S + bias; the scales only apply to a float32 bias.

    A float32 bias is rounded to rint(bias / (x_scale · w_scale)) for an integer result. For a float32 result, it is
    added to (S + bias) · (x_scale · w_scale) without rounding. Padding counts as zero: it reads as x_zero_point.

    Parameters
    ----------
    x_scale : float
        Scale of the input, above 0. All scales are rounded to float32.
    x_zero_point : int
        Integer of the input that represents 0, in the range of the input's dtype.
    w_scale : float or sequence of float
        Scale of the weights: one for all, or one for each output channel.
    w_zero_point : int or sequence of int
        Zero point of the weights, likewise. Weights less their zero points are int8 where all fit, else int16.
    y_scale : float or None
        Scale of a uint8 or int8 result; None for other results.
    y_zero_point : int
        Zero point of the result, in the range of its dtype.
    residual_scale : float or None
        Scale of the residual of a uint8 or int8 result, which has the same type. None for a float32 residual.
    residual_zero_point : int
        Zero point of the residual.
    y_least, y_most : int, sequence of int or None
        Clamp of a uint8 or int8 result, narrower than the range of its dtype: one number, or one for each output
        channel.

    Raises
    ------
    ArgumentError
        A scale is zero, negative, NaN or infinite, also after rounding to float32; a zero point is in no element's
        range, or has no scale. On use: a zero point is out of the range of an array's dtype; the number of scales or
        zero points is not that of output channels; or a product of scales is out of the range of float32.
    ArgumentTypeError
        A scale is not a number, or a zero point is not an integer.
    """

    x_scale: float
    x_zero_point: int = 0
    w_scale: float | Sequence[float]
    w_zero_point: int | Sequence[int] = 0
    y_scale: float | None = None
    y_zero_point: int = 0
    residual_scale: float | None = None
    residual_zero_point: int = 0
    y_least: int | Sequence[int] | None = None
    y_most: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("x_scale", "w_scale", "y_scale", "residual_scale"):
            put(self, name, _scale(getattr(self, name), name))
        for name in ("x_zero_point", "w_zero_point", "y_zero_point", "residual_zero_point"):
            put(self, name, _zero_point(getattr(self, name), name))
        for name in LIMITS:
            if getattr(self, name) is not None:
                put(self, name, _zero_point(getattr(self, name), name))
        for name in ("y", "residual"):
            if getattr(self, f"{name}_scale") is None and getattr(self, f"{name}_zero_point"):
                point = getattr(self, f"{name}_zero_point")
                raise ArgumentError(must(f"{name}_zero_point", f"0 without a {name}_scale", point))

    def __hash__(self) -> int:
        """Hash of the fields in which quantizations of a program differ; every call looks up by it."""
        first = self.w_scale[0] if isinstance(self.w_scale, tuple) else self.w_scale
        return hash((self.x_scale, self.x_zero_point, first, self.y_scale, self.y_zero_point))

    def check(self, types: Types, w: Element, k: int, residual: bool) -> None:
        """Check that the quantization fits a problem.

        Parameters
        ----------
        types : Types
            Types of the problem, with integer sums.
        w : Element
            Type of the weights as passed.
        k : int
            Output channels.
        residual : bool
            Whether a residual is added.

        Raises
        ------
        ArgumentError
            It does not fit; the message names the field.
        """
        _check_range("x_zero_point", self.x_zero_point, types.x)
        for name in ("w_scale", "w_zero_point", *LIMITS):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(values) != k:
                expected = f"a number or {k} numbers, one for each output channel"
                raise ArgumentError(must(name, expected, f"{len(values)} numbers"))
        points = self.w_zero_point
        for point in (min(points), max(points)) if isinstance(points, tuple) else (points,):
            _check_range("w_zero_point", point, w)
        if types.y in INT8_TYPES:
            _check_range("y_zero_point", self.y_zero_point, types.y)
            if residual:
                if self.residual_scale is None:
                    raise ArgumentError(must("residual_scale", f"{_SCALE}, for a residual of {types.y.label}", "None"))
                _check_range("residual_zero_point", self.residual_zero_point, types.y)
        product = self.product()
        if not np.isfinite(product).all() or not product.all():
            wrong = next(each for each in np.atleast_1d(product) if not 0 < each < np.inf)
            expected = "such that x_scale · w_scale is above 0 and finite in float32"
            raise ArgumentError(must("w_scale", expected, f"one that makes it {wrong}"))
        if types.y in INT8_TYPES and not np.isfinite(self.ratio()).all():
            expected = "such that (x_scale · w_scale) / y_scale is finite in float32"
            raise ArgumentError(must("y_scale", expected, self.y_scale))

    def product(self) -> np.ndarray:
        """Compute x_scale · w_scale in float32: one number, or one for each output channel."""
        with np.errstate(over="ignore", under="ignore"):
            return np.float32(self.x_scale) * np.asarray(self.w_scale, np.float32)

    def clamp(self, y: Element) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper limit of a result of type `y`: one number, or one for each output channel."""
        ends = zip(bounds(y), (self.y_least, self.y_most), strict=True)
        least, most = (np.asarray(end if given is None else given, np.float32) for end, given in ends)
        return np.maximum(least, bounds(y)[0]), np.minimum(most, bounds(y)[1])

    def ratio(self) -> np.ndarray:
        """Compute (x_scale · w_scale) / y_scale in float32."""
        with np.errstate(over="ignore", under="ignore"):
            return self.product() / np.float32(self.y_scale or 1)


def checked(scale: object, zero_point: object, element: Element) -> tuple[float, int]:
    """Check the arguments `scale` and `zero_point` of an element type; return the scale rounded to float32.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A value is invalid.
    """
    of, point = _scale(scale, "scale"), _zero_point(0 if zero_point is None else zero_point, "zero_point")
    _check_range("zero_point", point, element)
    assert isinstance(of, float) and isinstance(point, int)
    return of, point


def bounds(element: Element) -> tuple[int, int]:
    """Lower and upper limit of an integer element type."""
    known = np.iinfo(element.dtype)
    return int(known.min), int(known.max)


def _check_range(name: str, point: Any, element: Element) -> None:
    least, most = bounds(element)
    if not least <= point <= most:
        raise ArgumentError(must(name, f"from {least} to {most}, as {element.label} is", point))


def _numbers(value: object, name: str, expected: str) -> tuple[list[Any], bool]:
    """Convert a scalar or a sequence to a list of numbers; also return whether it was a sequence."""
    value = _unpacked(value)
    many = is_sequence(value) and (name.startswith("w_") or name in LIMITS)
    numbers_: list[Any] = list(value) if many else [value]  # type: ignore[call-overload]
    if not _PLAIN.issuperset(map(type, numbers_)) and not all(map(_is_number, numbers_)):
        raise ArgumentTypeError(must(name, expected, describe(value)))
    return numbers_, many


def _unpacked(value: Any) -> Any:
    """Convert an array or a torch tensor of at most one axis to Python numbers; return other values unchanged."""
    if getattr(value, "ndim", 0) > 1:
        return value
    with contextlib.suppress(RuntimeError, TypeError, ValueError):  # such as a tensor without memory
        if hasattr(value, "tolist"):
            return value.tolist()
        if hasattr(value, "__array__"):
            return np.asarray(value).tolist()
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))


def _float32(values: Sequence[Any]) -> tuple[float, ...]:
    form = f"{len(values)}f"
    try:
        return struct.unpack(form, struct.pack(form, *map(float, values)))
    except OverflowError:  # beyond the largest float32
        return (math.inf,) if len(values) == 1 else tuple(each for value in values for each in _float32([value]))


def _scale(value: object, name: str) -> float | tuple[float, ...] | None:
    """Check the scales and round them to float32."""
    optional = name in ("y_scale", "residual_scale")
    if value is None and optional:
        return None
    expected = _SCALE + (f", {_EACH}" if name == "w_scale" else " or None" if optional else "")
    given, many = _numbers(value, name, expected)
    kept = _float32(given)
    if not all(0 < scale < math.inf for scale in kept):
        wrong = next(each for each, scale in zip(given, kept, strict=True) if not 0 < scale < math.inf)
        raise ArgumentError(must(name, expected, describe(wrong)))
    if many and not kept:
        raise ArgumentError(must(name, expected, "an empty sequence"))
    return kept if many else kept[0]


def _zero_point(value: object, name: str) -> int | tuple[int, ...]:
    expected = f"an integer from {_MIN_ZERO_POINT} to {_MAX_ZERO_POINT}" + (
        f", {_EACH}" if name in ("w_zero_point", *LIMITS) else ""
    )
    given, many = _numbers(value, name, expected)
    if {*map(type, given)} != {int} and not all(map(is_integer, given)):
        raise ArgumentTypeError(must(name, expected, describe(value)))
    for each in given:
        if not _MIN_ZERO_POINT <= each <= _MAX_ZERO_POINT:
            raise ArgumentError(must(name, expected, each))
    if many and not given:
        raise ArgumentError(must(name, expected, "an empty sequence"))
    kept = tuple(map(int, given))
    return kept if many else kept[0]
