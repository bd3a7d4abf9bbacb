"""What the tuner has stored for this device, as inference asks for it."""

from __future__ import annotations

import math

from autotune.device import fingerprint
from autotune.search import profile as profile_problem
from autotune.store import Row, shared
from cpuconv.problem import ConvProblem
from cpuconv.recipe import Candidate
from cpuconv.runtime.cache import source_stamp
from cpuconv.select import ACCURACIES, Limits, forget


def lookup(problem: ConvProblem, limits: Limits, *, read_only: bool = True) -> Candidate | None:
    """The fastest stored candidate within the limits, or None; `read_only=False` asks the store `profile` writes."""
    row = shared(read_only=read_only).lookup(
        fingerprint().key,
        problem.key,
        sources=source_stamp(),
        workspace_limit=limits.workspace,
        accuracies=ACCURACIES[: ACCURACIES.index(limits.accuracy) + 1],
    )
    if row is None:
        return None
    try:
        return Candidate.parse(row.candidate)
    except ValueError:  # a row that no solver of these sources wrote: as good as none
        return None


def rows(problem: ConvProblem) -> dict[str, Row]:
    """Every stored row of the problem that is not stale, by candidate."""
    stored = shared().rows(fingerprint().key, problem.key)
    return {row.candidate: row for row in stored if row.sources == source_stamp()}


def measured(row: Row | None) -> float | None:
    """Seconds of a row that was timed, or None."""
    return row.median if row is not None and row.state == "ok" and not math.isnan(row.median) else None


def profile(problem: ConvProblem) -> None:
    """Time the problem's candidates now, in this process, and store the results."""
    from cpuconv.workload import workload

    profile_problem(workload, problem.key, shared(read_only=False))
    forget()
