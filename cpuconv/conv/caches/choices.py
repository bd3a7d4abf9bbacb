"""Cache of selected candidates, with limited size, as a server may process any number of shapes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from baselib.locks import Lock
from cpuconv.problem.problem import ConvProblem


class Choices:
    """At most `most` choices by problem and options; the oldest is evicted first."""

    most = 4096

    def __init__(self) -> None:
        self._choices: dict[tuple[ConvProblem, Hashable], Any] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._choices)

    def get(self, problem: ConvProblem, options: Hashable) -> Any | None:
        """The cached choice, or None."""
        return self._choices.get((problem, options))

    def put(self, problem: ConvProblem, options: Hashable, choice: Any) -> None:
        """Cache a choice."""
        with self._lock:
            while len(self._choices) >= self.most:
                del self._choices[next(iter(self._choices))]
            self._choices[problem, options] = choice

    def drop(self, problem: ConvProblem) -> None:
        """Remove the choices of a problem."""
        with self._lock:
            for key in [key for key in self._choices if key[0] == problem]:
                del self._choices[key]

    def clear(self) -> None:
        """Remove all choices."""
        with self._lock:
            self._choices.clear()
