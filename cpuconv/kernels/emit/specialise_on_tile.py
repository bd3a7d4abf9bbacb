"""Kernels that depend on the tile: a function is chosen before compilation, so that only what runs is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import overload

_OPTIONS = {"nogil": True, "error_model": "numpy", "forceinline": True}


def specialise_on_tile(
    choice: Callable[[Any], Callable[..., Any]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: in kernels, a call of the decorated (empty) function is a call of `choice(tile)`.

    `choice(tile)` is a function of the same arguments, of which the tile is the first.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        overload(function, jit_options=_OPTIONS, strict=False)(lambda tile, *rest: choice(tile.tile))
        return function

    return decorate
