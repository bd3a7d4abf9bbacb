"""Random numbers of a seed: one generator per draw, so that no draw depends on other nodes or threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

_TIMED = ContextVar("timed", default=False)  # whether the run is for timing, and its results are discarded


@contextmanager
def timed_draws() -> Iterator[None]:
    """Do not count draws of seeds inside this context: timing before the first run must not change its numbers."""
    before = _TIMED.set(True)
    try:
        yield
    finally:
        _TIMED.reset(before)


class Draws:
    """Draws of a seed: one generator per draw, in a reproducible order.

    Parameters
    ----------
    seed : int or float
    """

    def __init__(self, seed: float) -> None:
        self.seed = seed
        self._numbers = itertools.count()

    def __repr__(self) -> str:
        return f"{self.seed:g}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Draws, (self.seed,)

    def generator(self) -> np.random.RandomState:
        """Generator of the next draw; thread-safe."""
        number = 0 if _TIMED.get() else next(self._numbers)
        if not (0 <= self.seed < 1 << 32 and self.seed == int(self.seed)):
            return np.random.RandomState([*np.array([self.seed], np.float64).view(np.uint32).tolist(), number])
        return np.random.RandomState([int(self.seed), number] if number else int(self.seed))
