"""The roofs over the lines of the benchmark: the library's own roofline, measured in the engine's process."""

from __future__ import annotations

from autotune.machine.device import fingerprint
from autotune.machine.roofline import Roofs, bounds
from cpuconv.conv.least_work import work
from cpuconv.conv.recipe import Candidate
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.probes import probe


def measure(threads: int) -> Roofs:
    """The roofs of so many threads, measured by the library's own probes in about a second."""
    return Roofs.of(dict(probe(threads)), dict(fingerprint().caches), threads)


def shares(problem: ConvProblem, algorithm: str, roofs: Roofs, seconds: float) -> dict[str, float]:
    """How much of each roof a run that took `seconds` reaches; the roof that binds has the largest share.

    `algorithm` is a candidate as `plan.algorithm` names it.
    """
    found = bounds(work(problem, Candidate.parse(algorithm)), roofs)
    return {name: bound / seconds for name, bound in found.items()}
