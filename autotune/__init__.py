"""Fast-Run: times the candidates of a problem on this machine and stores the fastest.

The package is independent of convolution. A `Workload`, found by entry point, defines the problems.
A `Store` has the results, one row per (device, problem, candidate).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baselib.exports import lazily

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
