"""What a process remembers between calls, in one object."""

from __future__ import annotations

import functools

from cpuconv.memory.fingerprint import Fingerprinter
from cpuconv.memory.remembered import Remembered, default_limit
from cpuconv.memory.weights import Weights
from cpuconv.memory.workspaces import Workspaces


class Session:
    """Plans and packed weights that `conv2d` remembers, weights that plans share, workspaces.

    Attributes
    ----------
    remembered : Remembered
        Plans by arguments and packed weights by content and form, together within one bound on bytes.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.remembered = Remembered(default_limit() if limit is None else limit)
        self.weights = Weights(self.remembered)
        self.workspaces = Workspaces()

    @functools.cached_property
    def fingerprint(self) -> Fingerprinter:
        """Takes fingerprints of weights; made at first use, as its kernel is compiled or loaded then."""
        return Fingerprinter()

    def clear(self) -> None:
        """Forget everything that nobody holds."""
        self.remembered.clear()
        self.workspaces.clear()


current = Session()
"""The session of this process; tests put another here."""
