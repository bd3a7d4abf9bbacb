"""Waiting for events, however busy the machine is: the only time limit is that of the test."""

from __future__ import annotations

import time
from collections.abc import Callable

PERIOD = 0.02  # seconds between looks


def until(happened: Callable[[], object]) -> None:
    """Return once `happened()` is true."""
    while not happened():
        time.sleep(PERIOD)
