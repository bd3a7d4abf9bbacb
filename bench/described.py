"""Described machines: choices as they are made on another CPU than this one."""

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
def on(described: Machine) -> Iterator[Machine]:
    """Problems are ranked and choices made as on that machine; where its vectors are of another width than this one's,
    nothing may be compiled or run meanwhile."""
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
    """Have other functions tell what the machine is, and drop what the process remembers of it; other caches have the
    machine in their keys."""
    vars(table)["_found"], vars(machine)["fingerprint"] = found, fingerprint
    table.current.cache_clear()
    machine.machine.cache_clear()
    session.current.forget_choices()
