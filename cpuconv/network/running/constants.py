"""Constants of a program, as its kernels read them: packed weights, tables, and other arrays at fixed addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cpuconv.kernels.binding.steps import Ref
from cpuconv.memory.mapped_files import owned_copy
from cpuconv.network.running.packed import Packed
from cpuconv.symbolic.sizes import SIZES


class FixedConstants:
    """Arrays that a program needs at fixed addresses.

    Attributes
    ----------
    arrays : dict of str to numpy.ndarray
        Arrays by base.
    shared : set of str
        Bases of the arrays that other programs may read too.
    prefix : str
        Prefix of the bases.
    """

    def __init__(self, raw: Mapping[str, np.ndarray], packed: Packed, prefix: str = "constant") -> None:
        self.prefix = prefix
        self.arrays: dict[str, np.ndarray] = {}
        self.shared: set[str] = set()
        self._raw, self._packed = raw, packed
        self._names: dict[int, str] = {}

    @property
    def own_bytes(self) -> int:
        """Size of the arrays that no other program reads, in bytes."""
        return sum(array.nbytes for name, array in self.arrays.items() if name not in self.shared)

    def keep(self, array: np.ndarray) -> Ref:
        """Store a C-contiguous array, and return its address."""
        return self._placed(owned_copy(array))

    def packed(self, name: str, form: Any, make: Callable[[], np.ndarray]) -> Ref:
        """Store a constant in a packed form, and return its address."""
        kept = self._placed(self._packed.get(self._raw[name], form, make))
        self.shared.add(kept.name)
        return kept

    def _placed(self, array: np.ndarray) -> Ref:
        if array.dtype == SIZES:
            raise TypeError("a constant with symbolic sizes has no address")
        name = self._names.get(id(array))
        if name is None:
            name = self._names[id(array)] = f"{self.prefix} {len(self.arrays)}"
            self.arrays[name] = array
        return Ref(name)

    def room(self, size: int) -> np.ndarray:
        """Allocate memory for a constant in a packed form."""
        return self._packed.pool.take(size)
