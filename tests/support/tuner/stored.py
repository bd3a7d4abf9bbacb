"""Rows of a store as tuners write them."""

from __future__ import annotations

from autotune.machine.device import fingerprint
from autotune.store.rows import Row
from cpuconv.conv.recipe import Candidate
from cpuconv.problem.problem import ConvProblem

DEVICE = fingerprint().key


def row(candidate: str, seconds: float, **values: object) -> Row:
    """A row of some device and problem."""
    given = {"device": "d", "problem": "p", "sources": "s", "state": "ok", "median": seconds, "score": seconds}
    return Row(**{**given, "candidate": candidate, **values})


def timed(problem: ConvProblem, candidate: str, seconds: float, **values: object) -> Row:
    """A row of this device and of today's kernels."""
    given = {"device": DEVICE, "problem": problem.key, "sources": Candidate.parse(candidate).sources}
    return row(candidate, seconds, **{**given, **values})
