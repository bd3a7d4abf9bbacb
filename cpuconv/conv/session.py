"""What a process remembers between calls, in one object."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from autotune.locks import lazy
from autotune.machine.device import fingerprint
from autotune.wisdom.tiers import Tiers
from cpuconv.conv.remembering.choices import Choices
from cpuconv.conv.remembering.fingerprint import Fingerprinter
from cpuconv.conv.remembering.remembered import Remembered, default_limit
from cpuconv.conv.remembering.size_classes import SizeClasses
from cpuconv.conv.remembering.untuned_log import UntunedLog
from cpuconv.conv.remembering.weights import Weights
from cpuconv.memory.workspaces import Workspaces
from cpuconv.origin import ROOT
from cpuconv.problem.problem import ConvProblem

TABLES = ROOT / "wisdom"
"""Device tables that come with the package, each found by its device's fingerprint."""


class Session:
    """What calls remember for later calls.

    Attributes
    ----------
    remembered : Remembered
        `conv2d`'s layers by arguments and packed weights by content and form, together within one bound on bytes.
    weights : Weights
        The packed weights among these.
    workspaces : Workspaces
    choices : Choices
        Which candidate runs which problem.
    size_classes : SizeClasses
        Templates of convolutions that met several sizes.
    tiers : autotune.wisdom.tiers.Tiers
        Pinned wisdom, the store, shipped tables.
    untuned : UntunedLog
        Problems that calls asked for and nobody tuned.
    attended : bool
        Whether anything is kept for later processes, compiled kernels aside.
    """

    def __init__(
        self, limit: int | None = None, tables: Path = TABLES, *, attended: bool = True, device: str | None = None
    ) -> None:
        """Start with nothing remembered.

        Parameters
        ----------
        limit : int or None
            Bytes of layers and packed weights; None: `default_limit()`.
        tables : Path
            The folder of shipped tables.
        attended : bool
            Whether a daemon thread writes the untuned log to the store and notices what has been tuned, and layouts of
            networks are kept on disk.
        device : str or None
            The key of the device whose rows decide; None: this machine.
        """
        self.remembered = Remembered(default_limit() if limit is None else limit)
        self.weights = Weights(self.remembered)
        self.workspaces = Workspaces()
        self.choices = Choices()
        self.size_classes = SizeClasses()
        self.attended = attended
        self._device = device
        self.tiers = Tiers(tables)
        self.untuned = UntunedLog(self.forget_problem, lambda: self.tiers.forget(), attended=attended)

    @lazy
    def fingerprint(self) -> Fingerprinter:
        """Computes fingerprints of weights; made at first use, which asks for the instruction set."""
        return Fingerprinter()

    @property
    def device(self) -> str:
        """The key of the device whose rows in the store, in wisdom and in tables decide."""
        return self._device or fingerprint().key

    def clear(self) -> None:
        """Forget layers, packed weights that nobody holds, and what was read of arrays; free workspaces."""
        self.remembered.clear()
        self.size_classes.clear()
        if "fingerprint" in vars(self):  # it has been made
            self.fingerprint.forget()
        self.workspaces.clear()

    def forget_choices(self) -> None:
        """Forget what was read from the store and other wisdom, and all choices."""
        self.tiers.forget()
        self.choices.clear()
        self.size_classes.clear()

    def forget_problem(self, problem: ConvProblem) -> None:
        """Forget the choices of a problem, and its layers for any number of threads; and all templates, as a class may
        follow it."""
        self.choices.drop(problem)
        self.size_classes.clear()
        for key, value in self.remembered.items():
            if getattr(value, "solves", _never)(problem):
                self.remembered.drop(key)


def _never(problem: ConvProblem) -> bool:
    return False


current = Session()
"""The session of this process; tests put another here."""


def _flush() -> None:
    current.untuned.flush()


def _after_fork_in_child() -> None:
    current.untuned.after_fork()


atexit.register(_flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
