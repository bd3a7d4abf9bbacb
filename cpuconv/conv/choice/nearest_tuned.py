"""Selection for untuned problems: from their own rows of older kernels, or from the nearest tuned problem."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from autotune.workload import WEIGHTS
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import Limits, Ranked, modelled_cost, ranking, why_excluded
from cpuconv.conv.recipe import Candidate
from cpuconv.errors import CpuconvError
from cpuconv.problem.activation import Activation
from cpuconv.problem.problem import ConvProblem

AGREES = 1.1  # maximum ratio of the model's estimate for a suggested algorithm to that for its own selection
_OTHER_EPILOGUE = 0.1  # distance of another activation or residual; a size ratio of e has distance 1


def from_older_kernels(problem: ConvProblem, names: Sequence[str], best: Ranked, limits: Limits) -> Candidate | None:
    """The first candidate of `names` that the cost model confirms.

    Parameters
    ----------
    names : sequence of str
        Candidates that were fastest with older kernels, the fastest first; unknown names are skipped.
    best : Ranked
        The model's own selection within the limits.
    """
    for name in names:
        candidate = tuned.named(problem, name)
        if candidate is not None:
            own = Ranked(candidate, modelled_cost(problem, candidate))
            if own.cost.estimate <= AGREES * best.cost.estimate and why_excluded(problem, own, limits) is None:
                return candidate
    return None


def from_nearest_problem(problem: ConvProblem, best: Ranked, limits: Limits, prefix: str = "") -> Candidate | None:
    """The fastest candidate of the nearest tuned problem, or another one of its solver, if the cost model confirms it.

    `best` is the model's own selection, the first of `model.within_limits`.
    """
    near = nearest(problem)
    if near is None:
        return None
    solver = near.partition("(")[0]
    if prefix and solver != prefix.partition("(")[0]:
        return None
    limit = AGREES * best.cost.estimate
    likely = [item for item in ranking(problem, solver, limits.closed) if item.cost.estimate <= limit]
    likely.sort(key=lambda item: str(item.candidate) != near)
    named = (item for item in likely if str(item.candidate).startswith(prefix))
    return next((item.candidate for item in named if why_excluded(problem, item, limits) is None), None)


def nearest(problem: ConvProblem) -> str | None:
    """The winner of the nearest tuned problem with equal kernel, stride, dilation, types, layouts and threads."""
    here = _place_of(problem)
    neighbours = []
    for weights in WEIGHTS:
        for key, candidate in tuned.winners(_alike(problem), weights):
            place = _place(key)
            if place is not None and place.kind == here.kind and _is_known(candidate):
                neighbours.append((_distance(here, place), key, candidate))
    return min(neighbours)[2] if neighbours else None


def _alike(problem: ConvProblem) -> str:
    """SQL pattern for keys of problems with this kernel, stride, dilation, types, layouts and threads."""
    (down, across), (high, wide) = problem.stride, problem.dilation
    return (
        f"%kh{problem.r}kw{problem.s}sh{down}sw{across}ph%dh{high - 1}dw{wide - 1}{problem.types_key}"
        f" in={problem.in_layout} out={problem.out_layout} %threads={problem.threads}"
    )


class _Place(NamedTuple):
    """Coordinates of a problem among those with the same kernel: kind, logarithms of sizes, epilogue."""

    kind: str
    sizes: tuple[float, ...]
    activation: Activation | None
    residual: bool


def _place_of(problem: ConvProblem) -> _Place:
    depthwise = problem.cg == problem.kg == 1
    kind = "dense" if problem.groups == 1 else "depthwise" if depthwise else "grouped"
    sizes = problem.n, problem.groups, problem.cg, problem.kg, problem.oh, problem.ow
    return _Place(kind, tuple(math.log(max(1, size)) for size in sizes), problem.activation, problem.residual)


@functools.lru_cache(maxsize=4096)
def _place(key: str) -> _Place | None:
    try:
        return _place_of(ConvProblem.parse(key))
    except CpuconvError:  # the key is from another version
        return None


@functools.lru_cache(maxsize=4096)
def _is_known(candidate: str) -> bool:
    """Whether this version has a candidate with this name."""
    try:
        Candidate.parse(candidate)
    except ValueError:
        return False
    return True


def _distance(a: _Place, b: _Place) -> float:
    """Sum of the differences of logarithms of sizes, plus the distance of epilogues."""
    sizes = sum(abs(x - y) for x, y in zip(a.sizes, b.sizes, strict=True))
    return sizes + _OTHER_EPILOGUE * ((a.activation != b.activation) + (a.residual != b.residual))
