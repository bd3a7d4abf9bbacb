"""Replace the symbolic sizes in values by other sizes or by numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.symbolic.sizes import SIZES, is_symbolic, sizes_array

Number = Callable[[Any], Any]  # returns the replacement of a size


def filled(value: Any, number: Number) -> Any:
    """Replace each symbolic size in a value by `number(size)`, in order."""
    if is_symbolic(value):
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
    """Collect the sizes that `fill` replaces, in order."""
    found: list[Any] = []

    def noted(size: Any) -> Any:
        found.append(size)
        return size

    fill(noted)
    return found
