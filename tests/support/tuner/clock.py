"""A machine with a simulated clock, for tests of timing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from autotune.timing.sample import Entrant, calibrate


class Clock:
    """A run takes its own time, times the machine's slowness; sleeping takes what was asked for, and no real time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.slowness = 1.0
        self.noise = random.Random(1)
        self.order: list[str] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: round(self.now * 1e9))
        monkeypatch.setattr(time, "sleep", self.advance)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def run(self, name: str, seconds: float, noise: float = 0.0) -> Callable[[], None]:
        def run() -> None:
            self.order.append(name)
            self.now += seconds * self.slowness * (1 + noise * self.noise.random())

        return run


def enter(clock: Clock, noise: float = 0.0, **seconds: float) -> dict[str, Entrant]:
    """Entrants that take so many seconds."""
    return {name: calibrate(clock.run(name, each, noise)) for name, each in seconds.items()}
