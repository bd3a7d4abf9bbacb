"""Activations as users and problem keys write them: functions that a convolution may end with, and their scalars."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.functions.table import FUNCTIONS

Activation = tuple[Any, ...]  # the name, then its scalars as floats


def names() -> list[str]:
    """Every activation's name."""
    return [name for name in FUNCTIONS if scalars_of(name) is not None]


def scalars_of(name: str) -> tuple[str, ...] | None:
    """What the numbers that follow an activation's name are called; None: there is no such activation."""
    return FUNCTIONS[name].scalars if name in FUNCTIONS else None


def _spelling(name: str) -> str:
    """How a user writes the activation: 'relu', ('clip', lo, hi)."""
    scalars = scalars_of(name)
    return f"({', '.join((repr(name), *scalars))})" if scalars else repr(name)


def choices() -> str:
    """Every activation as a user writes it, for messages and documentation."""
    return ", ".join(["None", *map(_spelling, names())])


def normalize(activation: object) -> Activation | None:
    """The activation as a tuple of its name and its scalars as floats; None stays None.

    Parameters
    ----------
    activation : None, str or tuple
        None, a name, or a name with its scalars; what this function returned is accepted.

    Raises
    ------
    ArgumentTypeError
        `activation` is neither a name nor a tuple, or a scalar is no number.
    ArgumentError
        No activation has that name, it has other scalars, a scalar is NaN, or ``lo > hi``.
    """
    if activation is None:
        return None
    parts = (activation,) if isinstance(activation, str) else activation
    if not isinstance(parts, (tuple, list)) or not parts or not isinstance(parts[0], str):
        raise ArgumentTypeError(must("activation", f"one of {choices()}", repr(activation)))
    name, *values = parts
    wanted = scalars_of(name)
    if wanted is None:
        raise ArgumentError(must("activation", f"one of {choices()}", repr(activation)))
    if len(values) != len(wanted):
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
    """The normalised `activation` of each element of the float64 array `x`; NaN stays NaN."""
    if activation is None:
        return x
    name, *scalars = activation
    with np.errstate(over="ignore", invalid="ignore"):
        return FUNCTIONS[name].meaning(x, *scalars)


def to_text(activation: Activation | None) -> str:
    """``none``, ``relu``, ``clip:0.0:6.0``: the form used in problem keys."""
    return "none" if activation is None else ":".join(map(str, activation))


def from_text(text: str) -> Activation | None:
    """The activation that `to_text` wrote.

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
