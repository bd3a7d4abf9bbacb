"""Explanation of a selection: the tuner's report on a problem, with the requested limits."""

from __future__ import annotations

from autotune.report.explain import Explanation, Facts, account
from autotune.workload import Rejected
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import Limits, applicable, as_tuner_candidate, ranking, why_excluded
from cpuconv.conv.least_work import work_of
from cpuconv.problem.problem import ConvProblem


def explain(problem: ConvProblem, limits: Limits, algorithm: str, decided_by: str) -> Explanation:
    """Report on the selection of `algorithm` for `problem`; measured times and roofs come from the store."""
    every = ranking(problem)
    excluded = {str(ranked.candidate): why_excluded(problem, ranked, limits) for ranked in every}
    facts = Facts(
        problem.key,
        problem.flops,
        tuned.rows(problem),
        [as_tuner_candidate(problem, ranked) for ranked in every],
        [Rejected(name, reason) for name, reason in applicable(problem) if reason is not None],
        work=lambda name: work_of(problem, name),
        roofs=tuned.roofs(problem.threads),
        left_out={name: reason for name, reason in excluded.items() if reason is not None},
    )
    return account(facts, algorithm, decided_by)
