"""Described machines: choices as they are made on another CPU than this one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

from cpuconv.conv import session
from cpuconv.isa import table
from cpuconv.kernels.binding import machine
from cpuconv.kernels.binding.machine import Machine


@contextlib.contextmanager
def on(described: Machine) -> Iterator[Machine]:
    """Problems are ranked and choices made as on that machine; where its vectors are of another width than this one's,
    nothing may be compiled or run meanwhile."""
    caches = {"L1d": described.l1, "L2": described.l2, "L3": described.l3}
    found, fingerprint = table._found, machine.fingerprint
    table._found, machine.fingerprint = lambda: described.isa, lambda: SimpleNamespace(caches=tuple(caches.items()))
    _forget()
    try:
        assert machine.machine() == described
        yield described
    finally:
        table._found, machine.fingerprint = found, fingerprint
        _forget()


def _forget() -> None:
    """Drop what a process remembers of its machine; other caches have the machine in their keys."""
    table.current.cache_clear()
    machine.machine.cache_clear()
    session.current.forget_choices()
