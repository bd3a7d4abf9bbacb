"""Workspaces: memory that calls need while they run.

There are as many as calls that run at once, each as large as the largest call needed: layers that run one after another
find their workspace in the caches, and memory does not grow with the number of shapes.
"""

from __future__ import annotations

import numpy as np

from cpuconv.memory.large_pages import large
from cpuconv.problem.arrays import address

_MOST_KEPT = 256 << 20  # bytes of those that nobody uses; what is beyond is freed after its call


class Workspace:
    """Memory on a cache line, and its address."""

    __slots__ = ("address", "memory")

    def __init__(self, memory: np.ndarray) -> None:
        self.memory, self.address = memory, address(memory)


class Workspaces:
    """A pool; several threads may use it at once."""

    def __init__(self) -> None:
        self._free: list[Workspace] = []

    def take(self, size: int) -> Workspace:
        """At least `size` bytes, for the caller until it gives them back."""
        try:
            workspace = self._free.pop()
        except IndexError:
            return Workspace(large(size))
        return workspace if workspace.memory.nbytes >= size else Workspace(large(size))

    def give_back(self, workspace: Workspace) -> None:
        """Let the next caller take the workspace."""
        size = workspace.memory.nbytes
        if self._free:
            size += sum(other.memory.nbytes for other in self._free)
        if size <= _MOST_KEPT:
            self._free.append(workspace)

    def clear(self) -> None:
        """Free those that nobody uses."""
        self._free.clear()
