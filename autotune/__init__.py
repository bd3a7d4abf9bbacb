"""Fast-Run: times the ways to solve a problem on this machine and remembers the fastest.

Knows nothing of convolution. What is tuned reaches it as a `Workload` found by entry point;
what was found is kept in a `Store`, one row for each (device, problem, candidate).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.exports import lazily

if TYPE_CHECKING:
    from autotune.machine.device import Device, allowed_cores, fingerprint
    from autotune.store.store import Row, Store, shared
    from autotune.workload import ADMITS, Candidate, Problem, Rejected, SourceError, Trial, Workload

__all__ = [
    "ADMITS",
    "Candidate",
    "Device",
    "Problem",
    "Rejected",
    "Row",
    "SourceError",
    "Store",
    "Trial",
    "Workload",
    "allowed_cores",
    "fingerprint",
    "shared",
]

__getattr__ = lazily(
    __name__,
    {
        "autotune.machine.device": ("Device", "allowed_cores", "fingerprint"),
        "autotune.store.store": ("Row", "Store", "shared"),
        "autotune.workload": ("ADMITS", "Candidate", "Problem", "Rejected", "SourceError", "Trial", "Workload"),
    },
    globals(),
)
