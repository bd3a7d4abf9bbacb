"""What users pass for stride, padding, dilation and the rest, brought to one form."""

from __future__ import annotations

from collections.abc import Sequence

from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.problem.integers import describe, integer, integers, is_integer, is_sequence
from cpuconv.problem.problem import ConvProblem

Pads = tuple[int, int, int, int]
PADDING_NAMES = ("valid", "same", "same_upper", "same_lower")
_PADDING_FORMS = f"an int, (ph, pw), ((top, bottom), (left, right)) or one of {', '.join(map(repr, PADDING_NAMES))}"


def pair(value: object, name: str, least: int = 1) -> tuple[int, int]:
    """An integer for both axes, or (rows, columns).

    Raises
    ------
    ArgumentTypeError
        Neither an integer nor a pair of integers (bools are none).
    ArgumentError
        Another number of integers than two, or one below `least`.
    """
    if is_integer(value):
        return (integer(value, name, least),) * 2
    if not is_sequence(value):
        raise ArgumentTypeError(must(name, "an integer or a pair of integers", describe(value)))
    return integers(value, name, 2, least)


def padding(
    value: object,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    in_hw: tuple[int, int],
) -> Pads:
    """(top, bottom, left, right) from any accepted form of `padding`.

    Parameters
    ----------
    value : object
        An int; (ph, pw); ((top, bottom), (left, right)); "valid"; "same" (stride 1, output of the input's size, an odd
        row or column at the far side, as PyTorch); "same_upper" or "same_lower" (output of ceil(input / stride), an odd
        one at the far or near side, as ONNX).
    kernel : tuple[int, int]
        (R, S).
    stride : tuple[int, int]
        (rows, columns).
    dilation : tuple[int, int]
        (rows, columns).
    in_hw : tuple[int, int]
        (H, W) of the input.
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
        rows, columns = (integers(side, "padding", 2, 0) for side in value)
        return (*rows, *columns)
    if not all(map(is_integer, value)):
        raise ArgumentTypeError(must("padding", _PADDING_FORMS, describe(value)))
    ph, pw = integers(value, "padding", 2, 0)
    return ph, ph, pw, pw


def _named(
    value: str, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], in_hw: Sequence[int]
) -> Pads:
    """The padding that a name stands for."""
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
    return tuple(pads)


def _shape(value: object, name: str, form: str) -> tuple[int, int, int, int]:
    """A shape of rank 4; batch may be 0."""
    if not is_sequence(value) or not all(map(is_integer, value)):
        raise ArgumentTypeError(must(name, f"a shape {form}", describe(value)))
    if len(value) != 4:
        raise ArgumentError(must(name, f"of rank 4, {form}", f"of rank {len(value)}, {tuple(value)}"))
    shape = tuple(map(int, value))
    if min(shape[1:]) < 1 or shape[0] < 0:
        raise ArgumentError(must(name, f"of a shape {form} without empty axes", shape))
    return shape


def problem_from_arguments(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: object = 1,
    activation: object = None,
    residual: bool = False,
    in_layout: str = "NCHW",
    out_layout: str = "NCHW",
    threads: int = 1,
) -> ConvProblem:
    """The problem that the arguments of `conv2d` and `plan` state.

    Parameters
    ----------
    x_shape : Sequence[int]
        Logical (N, C, H, W), whatever the layout.
    w_shape : Sequence[int]
        (K, C/groups, R, S).
    stride, dilation : object
        An integer or (rows, columns).
    padding : object
        Any form that `padding` accepts.
    groups : object
        Divides C and K.
    activation : object
        Any form that `activation.normalize` accepts.
    residual : bool
        Whether a residual is added.
    in_layout, out_layout : str
        Layout names or aliases, but not "auto".
    threads : int
        At least 1.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The message names the argument, what it must be and what it was.
    """
    n, c, h, w = _shape(x_shape, "x", "(N, C, H, W)")
    k, cg, r, s = _shape(w_shape, "w", "(K, C/groups, R, S)")
    if k == 0:
        raise ArgumentError(must("w", "of a shape (K, C/groups, R, S) without empty axes", tuple(w_shape)))
    groups = integer(groups, "groups", 1)
    if c % groups == 0 and cg != c // groups:
        expected = f"of shape (K, {c // groups}, R, S), for an input of {c} channels and groups={groups}"
        raise ArgumentError(must("w", expected, f"{(k, cg, r, s)}"))
    stride = pair(stride, "stride")
    dilation = pair(dilation, "dilation")
    pads = _resolve_padding(padding, (r, s), stride, dilation, (h, w))
    return ConvProblem(
        n, c, h, w, k, r, s, stride, pads, dilation, groups, in_layout, out_layout, activation, residual, threads
    )


_resolve_padding = padding  # the parameter of the same name hides the function above
