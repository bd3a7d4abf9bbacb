"""Conversion of users' arguments (stride, padding, dilation, groups) to one form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.problem.integers import describe, integer, integers, is_integer, is_sequence
from cpuconv.problem.problem import ConvProblem

Pads = tuple[int, int, int, int]
PADDING_NAMES = ("valid", "same", "same_upper", "same_lower")
_PADDING_FORMS = f"an int, (ph, pw), ((top, bottom), (left, right)) or one of {', '.join(map(repr, PADDING_NAMES))}"


def pair(value: object, name: str, least: int = 1) -> tuple[int, int]:
    """Convert an integer for both axes, or a pair, to (rows, columns).

    Raises
    ------
    ArgumentTypeError
        `value` is neither an integer nor a pair of integers; a bool is no integer.
    ArgumentError
        `value` does not have two integers, or one of them is below `least`.
    """
    if is_integer(value):
        both = integer(value, name, least)
        return both, both
    if not is_sequence(value):
        raise ArgumentTypeError(must(name, "an integer or a pair of integers", describe(value)))
    rows, columns = integers(value, name, 2, least)
    return rows, columns


def padding(
    value: object, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], in_hw: Sequence[int]
) -> Pads:
    """Convert any accepted form of `padding` to (top, bottom, left, right).

    Parameters
    ----------
    value : int, pair, pair of pairs or str
        An int; (ph, pw); ((top, bottom), (left, right)); "valid"; "same" (stride 1, output of the input's size, an odd
        row or column at the bottom or right, as PyTorch); "same_upper" or "same_lower" (output of ceil(input / stride),
        an odd one after or before the input, as ONNX).
    kernel : (R, S)
    stride, dilation : (rows, columns)
    in_hw : (H, W)
        Spatial size of the input.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `value` has none of these forms, or a size is below 0.
    """
    if isinstance(value, str):
        return _named(value, kernel, stride, dilation, in_hw)
    if is_integer(value):
        return (integer(value, "padding", 0),) * 4
    if not is_sequence(value):
        raise ArgumentTypeError(must("padding", _PADDING_FORMS, describe(value)))
    if len(value) != 2:
        raise ArgumentError(must("padding", _PADDING_FORMS, describe(value)))
    if all(map(is_sequence, value)):
        (top, bottom), (left, right) = (integers(side, "padding", 2, 0) for side in value)
        return top, bottom, left, right
    if not all(map(is_integer, value)):
        raise ArgumentTypeError(must("padding", _PADDING_FORMS, describe(value)))
    ph, pw = integers(value, "padding", 2, 0)
    return ph, ph, pw, pw


def _named(
    value: str, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], in_hw: Sequence[int]
) -> Pads:
    """Padding of a name in `PADDING_NAMES`."""
    if value not in PADDING_NAMES:
        raise ArgumentError(must("padding", _PADDING_FORMS, describe(value)))
    if value == "valid":
        return 0, 0, 0, 0
    if value == "same" and tuple(stride) != (1, 1):
        raise ArgumentError(must("padding", "'same_upper' or 'same_lower' where the stride is not 1", "'same'"))
    pads: list[int] = []
    for size, taps, step, gap in zip(in_hw, kernel, stride, dilation, strict=True):
        outputs = -(-size // step)
        total = max(0, (outputs - 1) * step + (taps - 1) * gap + 1 - size)
        near = -(-total // 2) if value == "same_lower" else total // 2
        pads += [near, total - near]
    top, bottom, left, right = pads
    return top, bottom, left, right


def _shape(value: object, name: str, form: str) -> tuple[int, int, int, int]:
    """Check that `value` is a shape of rank 4 and return it; the batch may be 0."""
    if not is_sequence(value) or not all(map(is_integer, value)):
        raise ArgumentTypeError(must(name, f"a shape {form}", describe(value)))
    if len(value) != 4:
        raise ArgumentError(must(name, f"of rank 4, {form}", f"of rank {len(value)}, {tuple(value)}"))
    first, second, height, width = map(int, value)
    if first < 0 or min(second, height, width) < 1:
        raise ArgumentError(must(name, f"of a shape {form} without empty axes", tuple(map(int, value))))
    return first, second, height, width


def problem_from_arguments(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: object = 1,
    **settings: Any,
) -> ConvProblem:
    """Make the problem of the arguments of `conv2d` and `plan`.

    Parameters
    ----------
    x_shape : (N, C, H, W)
        Logical shape, for every layout.
    w_shape : (K, C/groups, R, S)
    stride, dilation : int or (rows, columns)
    padding : any form that `padding` accepts
    groups : int
        Divides C and K.
    **settings
        The other fields of `ConvProblem`: activation, residual, in_layout, out_layout, threads.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is invalid. The message has its name, what it must be and what it was.
    """
    n, c, h, w = _shape(x_shape, "x", "(N, C, H, W)")
    k, cg, r, s = _shape(w_shape, "w", "(K, C/groups, R, S)")
    if k == 0:
        raise ArgumentError(must("w", "of a shape (K, C/groups, R, S) without empty axes", tuple(w_shape)))
    groups = integer(groups, "groups", 1)
    if c % groups == 0 and cg != c // groups:
        expected = f"of shape (K, {c // groups}, R, S), for an input of {c} channels and groups={groups}"
        likely = ": 'x' looks like NHWC, which in_layout='NHWC' says" if w == cg * groups else ""
        raise ArgumentError(must("w", expected, f"{(k, cg, r, s)}{likely}"))
    steps, gaps = pair(stride, "stride"), pair(dilation, "dilation")
    pads = _resolve_padding(padding, (r, s), steps, gaps, (h, w))
    return ConvProblem(n, c, h, w, k, r, s, steps, pads, gaps, groups, **settings)


_resolve_padding = padding  # the parameter of the same name hides the function above
