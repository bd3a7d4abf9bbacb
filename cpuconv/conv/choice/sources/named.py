"""Source: the candidate that the user names."""

from __future__ import annotations

from cpuconv.conv.choice.model import Choice, Limits, ranking
from cpuconv.conv.choice.query import Query
from cpuconv.conv.recipe import Candidate, workspace_bytes
from cpuconv.errors import ArgumentError, WorkspaceError, must
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import BY_NAME, why_not


def named(query: Query) -> Choice | None:
    """Select the candidate that `algorithm` names; the name of a solver only restricts later sources.

    Raises
    ------
    ArgumentError
        Unknown name, a solver that cannot run the problem (with its reason), or less accurate than requested.
    WorkspaceError
        It needs more workspace than the limit.
    """
    if query.algorithm is None:
        return None
    candidate = _by_name(query.problem, query.algorithm, query.limits)
    return None if candidate is None else Choice(candidate, "named")


def _by_name(problem: ConvProblem, algorithm: str, limits: Limits) -> Candidate | None:
    """The candidate of a name; None if it names only a solver that can run the problem."""
    solver = algorithm.partition("(")[0] if isinstance(algorithm, str) else ""
    if solver not in BY_NAME:
        raise ArgumentError(must("algorithm", f"one of {', '.join(BY_NAME)}, or one with parameters", repr(algorithm)))
    reason = why_not(BY_NAME[solver], problem, current())
    if reason is not None:
        raise ArgumentError(must("algorithm", f"one that can run this problem ({solver}: {reason})", repr(algorithm)))
    if algorithm == solver:
        return None
    try:
        candidate = Candidate.parse(algorithm)
    except ValueError as error:
        raise ArgumentError(must("algorithm", f"a solver with its parameters ({error})", repr(algorithm))) from error
    known = [ranked.candidate for ranked in ranking(problem, solver)]
    if candidate not in known:
        names = ", ".join(map(str, known[:8]))
        raise ArgumentError(must("algorithm", f"a candidate of this problem, such as {names}", repr(algorithm)))
    if not limits.admits_accuracy(candidate.accuracy):
        raise ArgumentError(must("accuracy", f"one that {algorithm} meets", repr(limits.accuracy)))
    if limits.workspace is not None and (least := workspace_bytes(problem, candidate)) > limits.workspace:
        raise WorkspaceError(must("workspace_limit", f"at least {least} bytes for {algorithm}", limits.workspace))
    return candidate
