"""The interface by which kernels register constants of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from cpuconv.kernels.binding.steps import Ref


class Constants(Protocol):
    """Owner of arrays that a program uses."""

    def keep(self, array: np.ndarray) -> Ref:
        """Register a C-contiguous array, which the program keeps alive; returns its address."""

    def packed(self, name: str, form: Any, make: Callable[[], np.ndarray]) -> Ref:
        """Address of the constant `name`, packed by `make` in a form; packed once for all programs of a model."""

    def room(self, size: int) -> np.ndarray:
        """Allocate `size` uninitialised bytes for packed data, after the previous allocation."""
