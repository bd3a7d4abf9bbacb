"""Simulated machines: candidates are selected as on another CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from cpuconv.conv import session
from cpuconv.isa import table
from cpuconv.kernels.binding import machine
from cpuconv.kernels.binding.machine import Machine


@contextlib.contextmanager
def simulating(described: Machine) -> Iterator[Machine]:
    """Rank and select candidates as on that machine. If its vectors have another width than this machine's, nothing may
    be compiled or run in the meantime."""
    caches = {"L1d": described.l1, "L2": described.l2, "L3": described.l3}
    found: Any = table._found
    fingerprint: Any = machine.fingerprint
    _replace(lambda: described.isa, lambda: SimpleNamespace(caches=tuple(caches.items())))
    try:
        assert machine.machine() == described
        yield described
    finally:
        _replace(found, fingerprint)


def _replace(found: Any, fingerprint: Any) -> None:
    """Replace the functions that describe the machine, and clear the caches that depend on it; other caches have the
    machine in their keys."""
    vars(table)["_found"], vars(machine)["fingerprint"] = found, fingerprint
    table.current.cache_clear()
    machine.machine.cache_clear()
    session.current.forget_choices()
