"""What a problem that is not tuned can learn: from its own rows of older kernels, else from the nearest tuned one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.workload import REGIMES
from cpuconv import tuned
from cpuconv.errors import CpuconvError
from cpuconv.problem import ConvProblem
from cpuconv.recipe import Candidate
from cpuconv.select import Limits, Ranked, limited, modelled_cost

AGREES = 1.1  # the model may find a neighbour's algorithm so much slower than its own choice
_OTHER_EPILOGUE = 0.1  # what another activation or residual counts as, in factors of e of a size


def remembered(problem: ConvProblem, names: Sequence[str], favourite: Ranked, limits: Limits) -> Candidate | None:
    """The first of the candidates that were fastest with older kernels which the cost model agrees with.

    Arguments:
        names: of the candidates, the fastest first; those that no solver has any more are passed over.  favourite: the
            model's, within the limits.
    """
    for name in names:
        candidate = tuned.named(problem, name)
        if candidate is not None:
            own = Ranked(candidate, modelled_cost(problem, candidate))
            if own.cost.estimate <= AGREES * favourite.cost.estimate and limited(problem, own, limits) is None:
                return candidate
    return None


def suggestion(problem: ConvProblem, ranked: Sequence[Ranked]) -> Candidate | None:
    """The candidate that the nearest tuned neighbour speaks for, if the cost model agrees.

    Arguments:
        ranked: what may run the problem, the model's favourite first. The neighbour's own candidate is looked for, or
            else the favourite of its solver.
    """
    limit = AGREES * ranked[0].cost.estimate
    near = nearest(problem)
    if near is None:
        return None
    solver = near.partition("(")[0]
    likely = [each for each in ranked if solver == each.candidate.solver.NAME and each.cost.estimate <= limit]
    same = [each for each in likely if str(each.candidate) == near]
    return next((each.candidate for each in same + likely), None)


def nearest(problem: ConvProblem) -> str | None:
    """The winner of the tuned problem that is nearest: same kernel, steps, layouts and threads, sizes alike."""
    found = []
    for regime in REGIMES:
        for key, candidate in tuned.winners(_alike(problem), regime):
            try:
                other = ConvProblem.parse(key)
                Candidate.parse(candidate)
            except (CpuconvError, ValueError):  # a key or a name that this version did not write
                continue
            if _kind(other) == _kind(problem):
                found.append((_distance(problem, other), key, candidate))
    return min(found)[2] if found else None


def _alike(problem: ConvProblem) -> str:
    """Pattern of the keys of problems with this kernel, steps, layouts and threads."""
    (down, across), (high, wide) = problem.stride, problem.dilation
    return (
        f"%kh{problem.r}kw{problem.s}sh{down}sw{across}ph%dh{high - 1}dw{wide - 1}"
        f" in={problem.in_layout} out={problem.out_layout} %threads={problem.threads}"
    )


def _kind(problem: ConvProblem) -> str:
    if problem.groups == 1:
        return "dense"
    return "depthwise" if problem.cg == problem.kg == 1 else "grouped"


def _distance(a: ConvProblem, b: ConvProblem) -> float:
    """How far sizes are apart, in factors of e."""
    names = ("n", "groups", "cg", "kg", "oh", "ow")
    far = sum(abs(math.log(max(1, getattr(a, name)) / max(1, getattr(b, name)))) for name in names)
    return far + _OTHER_EPILOGUE * ((a.activation != b.activation) + (a.residual != b.residual))
