"""Which candidate runs which problem, remembered: a server may meet any number of shapes."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from cpuconv.problem.problem import ConvProblem

MOST = 4096


class Choices:
    """At most `MOST` choices by (problem, what else was asked); the oldest goes first."""

    def __init__(self) -> None:
        self._found: dict[tuple[ConvProblem, Hashable], Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, problem: ConvProblem, asked: Hashable) -> Any | None:
        """The choice, or None."""
        return self._found.get((problem, asked))

    def put(self, problem: ConvProblem, asked: Hashable, choice: Any) -> None:
        """Remember a choice."""
        with self._lock:
            while len(self._found) >= MOST:
                del self._found[next(iter(self._found))]
            self._found[problem, asked] = choice

    def drop(self, problem: ConvProblem) -> None:
        """Forget the choices of a problem."""
        with self._lock:
            for key in [key for key in self._found if key[0] == problem]:
                del self._found[key]

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._found.clear()
