"""Timing of problems at run time, in this process: strategy "profile"."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.store.store import shared
from autotune.tuning import search, threads
from autotune.workload import WEIGHTS
from cpuconv.conv import session
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.workload import workload


def profile(problem: ConvProblem) -> None:
    """Time the problem's candidates and store the results."""
    search.profile(workload, problem.key, shared(read_only=False))
    session.current.forget_choices()


def compare_threads(options: Sequence[ConvProblem]) -> None:
    """Time the stored winners of one problem for several numbers of threads together, and store the results."""
    keys = {problem.threads: problem.key for problem in options}
    threads.compare(workload, keys, shared(read_only=False), WEIGHTS[0])
    session.current.forget_choices()
