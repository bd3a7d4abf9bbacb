"""Checks of users' integers: Python's and NumPy's are accepted, but no bools, floats or strings."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.symbolic.sizes import is_symbolic


def is_integer(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer of Python or NumPy, but not a bool."""
    return type(value) is int or (isinstance(value, (int, np.integer)) and not isinstance(value, bool))


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether `value` is a tuple, a list or a 1-D NumPy array."""
    return isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim == 1)


def describe(value: object) -> str:
    """Text of `value` for a message, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def integer(value: object, name: str, least: int) -> int:
    """Check that `value` is an integer of at least `least` and return it as int; errors name the argument `name`."""
    if type(value) is int and value >= least:
        return value
    if is_symbolic(value) and value >= least:
        return value
    if not is_integer(value):
        raise ArgumentTypeError(must(name, "an integer", describe(value)))
    if value < least:
        raise ArgumentError(must(name, f"at least {least}", describe(value)))
    return operator.index(value)


def integers(value: object, name: str, count: int, least: int) -> tuple[int, ...]:
    """Check that `value` is a sequence of `count` integers of at least `least` and return it as a tuple of ints."""
    if type(value) is tuple and len(value) == count and set(map(type, value)) == {int} and min(value) >= least:
        return value
    if type(value) is tuple and any(map(is_symbolic, value)):
        return tuple(integer(each, name, least) for each in value)
    if not is_sequence(value):
        raise ArgumentTypeError(must(name, f"{count} integers", describe(value)))
    if len(value) != count:
        raise ArgumentError(must(name, f"{count} integers", describe(value)))
    if not all(map(is_integer, value)):
        raise ArgumentTypeError(must(name, f"{count} integers", describe(value)))
    if min(value) < least:
        raise ArgumentError(must(name, f"at least {least}", describe(value)))
    return tuple(map(operator.index, value))


def divide(a: int, b: int) -> int:
    """Divide a by b and round up."""
    return -(-a // b)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Shape to which all `shapes` broadcast, by NumPy's rules."""
    made = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis, size in enumerate(shape, len(made) - len(shape)):
            if size is made[axis] or size == 1:
                continue
            if made[axis] != 1 and made[axis] != size:
                raise ValueError(f"the shapes {', '.join(map(str, shapes))} do not broadcast")
            made[axis] = size
    return tuple(made)
