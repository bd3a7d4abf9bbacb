"""The activations: their names, their scalars, and what each computes in float64."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, must

Activation = tuple[str | float, ...]  # the name, then its scalars


class Entry(NamedTuple):
    """One row of the table: names of the scalars that follow the name, and the function in float64."""

    scalars: tuple[str, ...]
    apply: Callable[..., np.ndarray]


_erf = np.frompyfunc(math.erf, 1, 1)


def _clip(x: np.ndarray, lo: float, hi: float) -> np.ndarray:
    return np.minimum(np.maximum(x, lo), hi)  # lets NaN through, as np.clip does


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _hardsigmoid(x: np.ndarray) -> np.ndarray:
    return _clip(x / 6.0 + 0.5, 0.0, 1.0)


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)).astype(np.float64))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


TABLE: dict[str, Entry] = {
    "relu": Entry((), lambda x: np.maximum(x, 0.0)),
    "relu6": Entry((), lambda x: _clip(x, 0.0, 6.0)),
    "clip": Entry(("lo", "hi"), _clip),
    "leaky_relu": Entry(("slope",), lambda x, slope: np.where(x > 0.0, x, x * slope)),
    "sigmoid": Entry((), _sigmoid),
    "tanh": Entry((), np.tanh),
    "silu": Entry((), lambda x: x * _sigmoid(x)),
    "hardsigmoid": Entry((), _hardsigmoid),
    "hardswish": Entry((), lambda x: x * _hardsigmoid(x)),
    "gelu": Entry((), _gelu),
    "gelu_tanh": Entry((), _gelu_tanh),
}


def _spelling(name: str) -> str:
    """How a user writes the activation: 'relu', ('clip', lo, hi)."""
    scalars = TABLE[name].scalars
    return f"({', '.join((repr(name), *scalars))})" if scalars else repr(name)


def choices() -> str:
    """Every activation as a user writes it, for messages and documentation."""
    return ", ".join(["None", *map(_spelling, TABLE)])


def normalize(activation: object) -> Activation | None:
    """The activation as a tuple of its name and its scalars as floats; None stays None.

    Parameters
    ----------
    activation : object
        None, a name, or a tuple of a name and its scalars; what this function returned is accepted.

    Raises
    ------
    ArgumentTypeError
        Neither a name nor a tuple, or a scalar that is no number.
    ArgumentError
        No such activation, too few or too many scalars, a NaN, or ``lo > hi``.
    """
    if activation is None:
        return None
    parts = (activation,) if isinstance(activation, str) else activation
    if not isinstance(parts, (tuple, list)) or not parts or not isinstance(parts[0], str):
        raise ArgumentTypeError(must("activation", f"one of {choices()}", repr(activation)))
    name, *values = parts
    if name not in TABLE:
        raise ArgumentError(must("activation", f"one of {choices()}", repr(activation)))
    if len(values) != len(TABLE[name].scalars):
        raise ArgumentError(must("activation", _spelling(name), repr(activation)))
    for value in values:
        if not isinstance(value, numbers.Real) or isinstance(value, (bool, np.bool_)):
            raise ArgumentTypeError(must("activation", f"{_spelling(name)} with numbers", repr(activation)))
    scalars = tuple(float(value) + 0.0 for value in values)  # + 0.0 turns -0.0, equal but spelt otherwise, into 0.0
    if any(map(math.isnan, scalars)):
        raise ArgumentError(must("activation", f"{_spelling(name)} without NaN", repr(activation)))
    if name == "clip" and scalars[0] > scalars[1]:
        raise ArgumentError(must("activation", "('clip', lo, hi) with lo <= hi", repr(activation)))
    return (name, *scalars)


def apply(x: np.ndarray, activation: Activation | None) -> np.ndarray:
    """The normalised `activation` of each element of the float64 array `x`; NaN comes through."""
    if activation is None:
        return x
    name, *scalars = activation
    with np.errstate(over="ignore", invalid="ignore"):
        return TABLE[name].apply(x, *scalars)


def to_text(activation: Activation | None) -> str:
    """``none``, ``relu``, ``clip:0.0:6.0``: the form used in problem keys."""
    return "none" if activation is None else ":".join(map(str, activation))


def from_text(text: str) -> Activation | None:
    """What `to_text` wrote, read back.

    Raises
    ------
    ArgumentError
        The text is no activation.
    """
    if text == "none":
        return None
    name, *values = text.split(":")
    try:
        return normalize((name, *map(float, values)))
    except ValueError as error:
        raise ArgumentError(must("activation", "as in act=relu or act=clip:0.0:6.0", f"act={text}")) from error
