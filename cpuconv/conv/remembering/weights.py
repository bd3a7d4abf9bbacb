"""Packed weights by content and form: plans and calls with equal weights share one copy.

Weights are recognised by the fingerprint of their content, so that a change in place is noticed. Packed weights live as
long as a plan that reads them, and beyond that as the bound on remembered bytes allows.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict

import numpy as np

from autotune.locks import Lock
from cpuconv.conv.remembering.fingerprint import Fingerprint
from cpuconv.conv.remembering.remembered import Entry, Remembered
from cpuconv.kernels.packing.packing import Packing

_MOST_SEEN = 1 << 14  # fingerprints of weights that were packed and not remembered


class Weights:
    """Packed weights of a process."""

    def __init__(self, remembered: Remembered) -> None:
        self._remembered = remembered
        self._alive: dict[Fingerprint, dict[Packing, weakref.ref[np.ndarray]]] = {}
        self._seen: OrderedDict[Fingerprint, None] = OrderedDict()
        self._lock = Lock()

    def find(self, name: Fingerprint, form: Packing) -> np.ndarray | None:
        """Weights packed in that form, if they still exist."""
        packed = self._remembered.get((name, form))
        if packed is None and (forms := self._alive.get(name)) and (alive := forms.get(form)):
            packed = alive()
        return packed

    def forms(self, name: Fingerprint) -> frozenset[Packing]:
        """The packed forms of these weights that exist."""
        return frozenset(self._alive.get(name, ()))

    def pack(self, name: Fingerprint, form: Packing, weight: np.ndarray, threads: int) -> np.ndarray:
        """`weight` in the packed form, found by others as long as somebody holds it."""
        packed = form.pack(weight, threads)
        with self._lock:
            forms = self._alive.setdefault(name, {})
            forms[form] = weakref.ref(packed, lambda gone: self._forget(name, form, gone))
        return packed

    def remember(self, name: Fingerprint, form: Packing, packed: np.ndarray) -> Entry | None:
        """Keep packed weights, within the bound; None if they are larger than that."""
        return self._remembered.put((name, form), packed, packed.nbytes)

    def was_seen(self, name: Fingerprint) -> bool:
        """Whether this was called with these weights before."""
        with self._lock:
            known = name in self._seen
            self._seen[name] = None
            if len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)
        return known

    def _forget(self, name: Fingerprint, form: Packing, gone: weakref.ref[np.ndarray]) -> None:
        # Runs wherever the last reference is dropped, so it takes no lock: each step is one operation on a dict.
        forms = self._alive.get(name)
        if forms is not None and forms.get(form) is gone:
            forms.pop(form, None)
            if not forms:
                self._alive.pop(name, None)
