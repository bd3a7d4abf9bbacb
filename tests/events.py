"""Waiting for what happens, however busy the machine is: the time limit of the test is the only one."""

from __future__ import annotations

import time
from collections.abc import Callable

PERIOD = 0.02  # seconds between looks


def until(happened: Callable[[], object]) -> None:
    """Return once `happened()` is true."""
    while not happened():
        time.sleep(PERIOD)
