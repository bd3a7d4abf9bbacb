"""Roofs for the lines of the benchmark: cpuconv's own roofline, measured in the engine's process."""

from __future__ import annotations

from autotune.machine.device import fingerprint
from autotune.machine.roofline import Roofs, bounds
from cpuconv.conv.least_work import work
from cpuconv.conv.recipe import Candidate
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.probes import probe


def measure(threads: int) -> Roofs:
    """Measure the roofs of `threads` threads by cpuconv's own probes, in about a second."""
    return Roofs.of(dict(probe(threads)), dict(fingerprint().caches), threads)


def shares(problem: ConvProblem, algorithm: str, roofs: Roofs, seconds: float) -> dict[str, float]:
    """Return the share of each roof that a run of `seconds` reaches; the roof that binds has the largest share.

    `algorithm` is the name of a candidate, as in `plan.algorithm`.
    """
    found = bounds(work(problem, Candidate.parse(algorithm)), roofs)
    return {name: bound / seconds for name, bound in found.items()}
