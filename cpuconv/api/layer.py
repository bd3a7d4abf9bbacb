"""Layer: what `conv2d` remembers of a call: a plan that is given weights each time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.conv.plan import Plan
from cpuconv.conv.remembering.fingerprint import Fingerprint
from cpuconv.conv.remembering.remembered import Entry
from cpuconv.conv.session import Session
from cpuconv.problem.problem import ConvProblem

_MOST_CHANGES = 4  # calls in a row with new weights, after which new weights are not remembered


class Layer:
    """A plan, and the packed weights of its calls.

    Weights that change on every call would push others out of memory. So after a few changes in a row, weights are
    remembered only when they come a second time.
    """

    def __init__(self, plan: Plan, session: Session) -> None:
        self.plan = plan
        self._session = session
        self._threads = plan.problem.threads
        self._entries: dict[Fingerprint, Entry] = {}  # packed weights of former calls
        self._changes = 0

    def solves(self, problem: ConvProblem) -> bool:
        """Whether this is a layer of the problem, for any number of threads."""
        own = self.plan.problem
        return own == replace(problem, threads=own.threads)

    def run(self, x: Any, residual: Any, out: Any, bias: np.ndarray | None, weight: np.ndarray) -> Any:
        """The plan's result for raw weights (K, C/groups, R, S) and `bias` (K)."""
        name = self._session.fingerprint(weight, self._threads)
        entry = self._entries.get(name)
        packed = None if entry is None else entry.use()
        if packed is None:
            packed = self._packed(name, weight)
        else:
            self._changes = 0
        return self.plan.run(x, residual, out, bias, packed)

    def _packed(self, name: Fingerprint, weight: np.ndarray) -> np.ndarray:
        weights, form = self._session.weights, self.plan.packing
        packed = weights.find(name, form)
        if packed is None:
            packed = weights.pack(name, form, weight, self._threads)
            self._changes += 1
            if self._changes > _MOST_CHANGES and not weights.was_seen(name):
                return packed
        entry = weights.remember(name, form, packed)
        if entry is not None:
            for forgotten in [known for known, other in list(self._entries.items()) if other.value is None]:
                self._entries.pop(forgotten, None)
            self._entries[name] = entry
        return packed
