"""Queries of tuning results for this device, for inference."""

from __future__ import annotations

import functools

from autotune.machine.roofline import Roofs, roofs_for
from autotune.store import rows as stored
from autotune.store.store import shared
from autotune.wisdom.tiers import Found
from autotune.workload import ADMITS, WEIGHTS
from cpuconv.conv import session
from cpuconv.conv.choice.model import Choice, Limits, with_same_rounding
from cpuconv.conv.kernels_hash import kernels_hash
from cpuconv.conv.recipe import Candidate, current_sources, in_closed_set
from cpuconv.errors import CpuconvError
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import why_not


def best(problem: ConvProblem, limits: Limits, prefix: str = "", *, read_only: bool = True) -> Found | None:
    """The fastest row within the limits, of a candidate with the given name prefix, with its tier; or None.

    Rows timed with the weights of the limits, warm or cold, take priority; `read_only=False` queries the store that
    `profile` writes.
    """
    here = session.current
    if not here.tiers.know(here.device, read_only=read_only):
        return None
    row_limits = _stored_limits(limits, prefix)
    return here.tiers.lookup(here.device, problem.key, row_limits, read_only=read_only)


def any_rows() -> bool:
    """Whether rows of this device may exist."""
    return session.current.tiers.know(session.current.device)


def is_stored(problem: ConvProblem) -> bool:
    """Whether this exact problem has been tuned."""
    here = session.current
    known = here.tiers.problems(here.device)
    return bool(known) and problem.key in known


def lookup(problem: ConvProblem, limits: Limits, prefix: str = "", *, read_only: bool = True) -> Choice | None:
    """The candidate of `best` if it is valid for the problem, or None."""
    fastest = best(problem, limits, prefix, read_only=read_only)
    if fastest is None or (candidate := named(problem, fastest.row.candidate)) is None:
        return None
    if limits.closed and not in_closed_set(problem, candidate):
        return None
    return Choice(candidate, fastest.tier)


def older(problem: ConvProblem, limits: Limits, prefix: str = "") -> list[str]:
    """Candidates of rows of older kernels, within the limits and not measured since; the fastest first."""
    here = session.current
    if not here.tiers.know(here.device):
        return []
    rows = here.tiers.older(here.device, problem.key, _stored_limits(limits, prefix))
    return [known.row.candidate for known in rows]


def named(problem: ConvProblem, name: str) -> Candidate | None:
    """The candidate that a row names, if it is valid for the problem, or None."""
    try:
        candidate = Candidate.parse(name)
    except ValueError:  # the row is not from a solver of these sources: ignore it
        return None
    # A row must not name a candidate that the solver does not list: kernels do not check their parameters.
    solver, isa = candidate.solver, current()
    if why_not(solver, problem, isa) is not None or candidate not in with_same_rounding(problem, candidate):
        return None
    return candidate


def same_kernels(row: stored.Row) -> bool:
    """Whether a row of this device was timed with the current kernel calls, even if its sources have changed."""
    if not row.kernels or row.device != session.current.device:
        return False
    try:
        problem = ConvProblem.parse(row.problem)
    except CpuconvError:  # a network, or a key from another version
        return False
    candidate = named(problem, row.candidate)
    return candidate is not None and row.kernels == kernels_hash(problem, candidate)


def rows(problem: ConvProblem) -> list[Found]:
    """All current rows of the problem, warm before cold, with their tiers."""
    limits = stored.RowLimits(current_sources(), same_kernels=same_kernels)
    return session.current.tiers.all_rows(session.current.device, problem.key, limits)


def winners(like: str, weights: str) -> list[tuple[str, str]]:
    """(key, best candidate) of all problems in any tier whose keys match `like`, an SQL pattern."""
    return session.current.tiers.winners(session.current.device, like, current_sources(), weights)


def roofs(threads: int) -> Roofs | None:
    """This device's measured roofs for a number of threads, or None."""
    return roofs_for(shared().devices().get(session.current.device, {}), threads)


@functools.lru_cache(maxsize=64)
def _stored_limits(limits: Limits, prefix: str) -> stored.RowLimits:
    weights = WEIGHTS[::-1] if limits.cold else WEIGHTS
    admitted = ADMITS[limits.accuracy]
    return stored.RowLimits(current_sources(), limits.workspace, admitted, prefix, weights, same_kernels)
