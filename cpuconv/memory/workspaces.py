"""Workspaces: scratch memory of calls.

There are as many as concurrent calls, each as large as the largest call needed. Layers that run one after another
therefore find their workspace in the caches, and memory does not grow with the number of shapes.
"""

from __future__ import annotations

import numpy as np

from cpuconv.memory.large_pages import large
from cpuconv.problem.arrays import address

_MAX_UNUSED = 256 << 20  # maximum size of unused workspaces, in bytes; others are freed after their call


class Workspace:
    """Memory aligned to a cache line, and its address."""

    __slots__ = ("address", "memory")

    def __init__(self, memory: np.ndarray) -> None:
        self.memory, self.address = memory, address(memory)


class Workspaces:
    """A pool of workspaces; several threads may use it concurrently."""

    def __init__(self) -> None:
        self._free: list[Workspace] = []

    def take(self, size: int) -> Workspace:
        """Take a workspace of at least `size` bytes, until it is returned."""
        try:
            workspace = self._free.pop()
        except IndexError:
            return Workspace(large(size))
        return workspace if workspace.memory.nbytes >= size else Workspace(large(size))

    def give_back(self, workspace: Workspace) -> None:
        """Return a workspace to the pool."""
        size = workspace.memory.nbytes
        if self._free:
            size += sum(other.memory.nbytes for other in self._free)
        if size <= _MAX_UNUSED:
            self._free.append(workspace)

    def clear(self) -> None:
        """Free all unused workspaces."""
        self._free.clear()
