"""Packed weights by content and form: plans and calls with equal weights share one copy.

Weights are identified by the fingerprint of their content, so that changes in place are detected. Packed weights exist
as long as a plan that reads them, and longer if the cache limit allows.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict

import numpy as np

from baselib.locks import Lock
from cpuconv.conv.caches.fingerprint import Fingerprint
from cpuconv.conv.caches.lru_cache import Entry, LruCache
from cpuconv.kernels.packing.packing import Packing

_MAX_SEEN = 1 << 14  # fingerprints of weights that were packed and not cached


class Weights:
    """The packed weights of a process."""

    def __init__(self, cache: LruCache) -> None:
        self._cache = cache
        self._alive: dict[Fingerprint, dict[Packing, weakref.ref[np.ndarray]]] = {}
        self._seen: OrderedDict[Fingerprint, None] = OrderedDict()
        self._lock = Lock()

    def find(self, name: Fingerprint, form: Packing) -> np.ndarray | None:
        """Weights packed in a form, if they exist."""
        packed = self._cache.get((name, form))
        if packed is None and (forms := self._alive.get(name)) and (alive := forms.get(form)):
            packed = alive()
        return packed

    def forms(self, name: Fingerprint) -> frozenset[Packing]:
        """The existing packed forms of weights."""
        return frozenset(self._alive.get(name, ()))

    def pack(self, name: Fingerprint, form: Packing, weight: np.ndarray, threads: int) -> np.ndarray:
        """Pack `weight` in a form; `find` returns the result as long as it has an owner."""
        packed = form.pack(weight, threads)
        with self._lock:
            forms = self._alive.setdefault(name, {})
            forms[form] = weakref.ref(packed, lambda gone: self._forget(name, form, gone))
        return packed

    def remember(self, name: Fingerprint, form: Packing, packed: np.ndarray) -> Entry | None:
        """Cache packed weights; None if they exceed the limit."""
        return self._cache.put((name, form), packed, packed.nbytes)

    def was_seen(self, name: Fingerprint) -> bool:
        """Whether this method was called with these weights before."""
        with self._lock:
            known = name in self._seen
            self._seen[name] = None
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
        return known

    def _forget(self, name: Fingerprint, form: Packing, gone: weakref.ref[np.ndarray]) -> None:
        # Runs at any place where the last reference is dropped, so it takes no lock: each step is one dict operation.
        forms = self._alive.get(name)
        if forms is not None and forms.get(form) is gone:
            forms.pop(form, None)
            if not forms:
                self._alive.pop(name, None)
