"""Constants of a program, as kernels ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from cpuconv.kernels.binding.steps import Ref


class Constants(Protocol):
    """Arrays that a program holds on to."""

    def keep(self, array: np.ndarray) -> Ref:
        """The address of a C-contiguous array, which the program keeps alive."""

    def packed(self, name: str, form: Any, make: Callable[[], np.ndarray]) -> Ref:
        """The address of what `make` packs of the constant `name` in a form; made once for all programs of a model."""

    def room(self, size: int) -> np.ndarray:
        """`size` uninitialised bytes for what is packed, behind those given before."""
