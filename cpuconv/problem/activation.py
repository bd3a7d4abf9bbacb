"""Activations of users' arguments and problem keys: fused functions of a convolution's epilogue and their scalars."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.functions.table import FUNCTIONS

Activation = tuple[Any, ...]  # the name, then its scalars as floats


def names() -> list[str]:
    """Names of all activations."""
    return [name for name in FUNCTIONS if scalars_of(name) is not None]


def scalars_of(name: str) -> tuple[str, ...] | None:
    """Names of the scalars of an activation; None if there is no activation `name`."""
    return FUNCTIONS[name].scalars if name in FUNCTIONS else None


def is_fused(name: str) -> bool:
    """Whether networks fuse an activation into convolutions."""
    return FUNCTIONS[name].fused


def _spelling(name: str) -> str:
    """Spell the activation as a user writes it: 'relu', ('clip', lo, hi)."""
    scalars = scalars_of(name)
    return f"({', '.join((repr(name), *scalars))})" if scalars else repr(name)


def choices() -> str:
    """List all activations as a user writes them, for messages and documentation."""
    return ", ".join(["None", *map(_spelling, names())])


def normalize(activation: object) -> Activation | None:
    """Convert an activation to a tuple of its name and its float scalars; None stays None.

    Parameters
    ----------
    activation : None, str or tuple
        None, a name, or a name with its scalars. Normalised activations are accepted.

    Raises
    ------
    ArgumentTypeError
        `activation` is neither a name nor a tuple, or a scalar is no number.
    ArgumentError
        No activation has that name, the number of scalars is wrong, a scalar is NaN, or ``lo > hi``.
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
    scalars = tuple(float(value) + 0.0 for value in values)  # + 0.0 turns -0.0 into 0.0: equal numbers need equal text
    if any(map(math.isnan, scalars)):
        raise ArgumentError(must("activation", f"{_spelling(name)} without NaN", repr(activation)))
    if name == "clip" and scalars[0] > scalars[1]:
        raise ArgumentError(must("activation", "('clip', lo, hi) with lo <= hi", repr(activation)))
    return (name, *scalars)


def apply(x: np.ndarray, activation: Activation | None) -> np.ndarray:
    """Apply the normalised `activation` to each element of the float64 array `x`; NaN stays NaN."""
    if activation is None:
        return x
    name, *scalars = activation
    with np.errstate(over="ignore", invalid="ignore"):
        return FUNCTIONS[name].meaning(x, *scalars)


def to_text(activation: Activation | None) -> str:
    """Text of an activation in problem keys: ``none``, ``relu``, ``clip:0.0:6.0``."""
    return "none" if activation is None else ":".join(map(str, activation))


def from_text(text: str) -> Activation | None:
    """Parse the text that `to_text` wrote.

    Raises
    ------
    ArgumentError
        The text is not an activation.
    """
    if text == "none":
        return None
    name, *values = text.split(":")
    try:
        return normalize((name, *map(float, values)))
    except ValueError as error:
        raise ArgumentError(must("activation", "as in act=relu or act=clip:0.0:6.0", f"act={text}")) from error
