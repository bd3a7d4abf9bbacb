"""Session: all state that a process caches between calls, in one object."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from autotune.machine.device import fingerprint
from autotune.wisdom.tiers import Tiers
from baselib.locks import lazy
from cpuconv.conv.caches.choices import Choices
from cpuconv.conv.caches.fingerprint import Fingerprinter
from cpuconv.conv.caches.lru_cache import LruCache, default_limit
from cpuconv.conv.caches.size_classes import SizeClasses
from cpuconv.conv.caches.untuned_log import UntunedLog
from cpuconv.conv.caches.weights import Weights
from cpuconv.memory.workspaces import Workspaces
from cpuconv.origin import ROOT
from cpuconv.problem.problem import ConvProblem

TABLES = ROOT / "wisdom"
"""Device tables shipped with the package, each found by its device's fingerprint."""


class Session:
    """Caches and logs of a process.

    Attributes
    ----------
    cache : LruCache
        Cache of `conv2d`'s layers, by arguments, and of packed weights, by content and form, with one common limit.
    weights : Weights
        The packed weights in this cache.
    workspaces : Workspaces
    choices : Choices
        Selected candidates by problem.
    size_classes : SizeClasses
        Templates of convolutions that occurred with several sizes.
    tiers : autotune.wisdom.tiers.Tiers
        Pinned wisdom, the store, shipped tables.
    untuned : UntunedLog
        Requested problems without tuning results.
    persistent : bool
        Whether the session stores data for later processes, in addition to compiled kernels.
    """

    def __init__(
        self, limit: int | None = None, tables: Path = TABLES, *, persistent: bool = True, device: str | None = None
    ) -> None:
        """Start with empty caches.

        Parameters
        ----------
        limit : int or None
            Maximum size of layers and packed weights, in bytes; None: `default_limit()`.
        tables : Path
            The folder of shipped tables.
        persistent : bool
            Whether a daemon thread writes the untuned log to the store and checks for new tuning results, and whether
            layouts of networks are stored on disk.
        device : str or None
            The key of the device whose tuning results are used; None: this machine.
        """
        self.cache = LruCache(default_limit() if limit is None else limit)
        self.weights = Weights(self.cache)
        self.workspaces = Workspaces()
        self.choices = Choices()
        self.size_classes = SizeClasses()
        self.persistent = persistent
        self._device = device
        self.tiers = Tiers(tables)
        self.untuned = UntunedLog(self.forget_problem, lambda: self.tiers.forget(), persistent=persistent)

    @lazy
    def fingerprint(self) -> Fingerprinter:
        """Computes fingerprints of weights; created at first use, as it queries the instruction set."""
        return Fingerprinter()

    @property
    def device(self) -> str:
        """The key of the device whose rows in the store, in wisdom and in tables are used."""
        return self._device or fingerprint().key

    def clear(self) -> None:
        """Clear layers, packed weights without other owners, and fingerprints of read-only arrays; free workspaces."""
        self.cache.clear()
        self.size_classes.clear()
        if "fingerprint" in vars(self):  # it has been created
            self.fingerprint.forget()
        self.workspaces.clear()

    def forget_choices(self) -> None:
        """Clear cached rows of the store and of other wisdom, and all selections."""
        self.tiers.forget()
        self.choices.clear()
        self.size_classes.clear()

    def forget_problem(self, problem: ConvProblem) -> None:
        """Clear the selections of a problem, its layers for any number of threads, and all templates.

        Templates are cleared because a class of sizes may depend on the problem.
        """
        self.choices.drop(problem)
        self.size_classes.clear()
        for key, value in self.cache.items():
            if getattr(value, "solves", _never)(problem):
                self.cache.drop(key)


def _never(problem: ConvProblem) -> bool:
    return False


current = Session()
"""The session of this process; tests replace it."""


def _flush() -> None:
    current.untuned.flush()


def _after_fork_in_child() -> None:
    current.untuned.after_fork()


atexit.register(_flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
