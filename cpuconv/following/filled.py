"""Values that hold sizes, with other sizes or numbers in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.following.sizes import SIZES, is_followed, sizes_array

Number = Callable[[Any], Any]  # gives what takes the place of a size


def filled(value: Any, number: Number) -> Any:
    """The same value with `number(size)` in the place of each size that is followed, in order."""
    if is_followed(value):
        return number(value)
    if isinstance(value, (tuple, list)):
        made = type(value)(filled(each, number) for each in value)
        return value if all(one is other for one, other in zip(made, value, strict=True)) else made
    if isinstance(value, np.ndarray) and value.dtype == SIZES:
        made = sizes_array(filled(each, number) for each in value.ravel()).reshape(value.shape)
        made.flags.writeable = False
        return made
    return value


def held(fill: Callable[[Number], object]) -> list[Any]:
    """The sizes that `fill` asks for, in order."""
    found: list[Any] = []

    def noted(size: Any) -> Any:
        found.append(size)
        return size

    fill(noted)
    return found
