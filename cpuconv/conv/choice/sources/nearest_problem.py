"""Source: the algorithm of the nearest tuned problem, if the cost model confirms it."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from autotune.workload import WEIGHTS
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import Choice, ranking, why_excluded
from cpuconv.conv.choice.query import Query
from cpuconv.conv.recipe import Candidate
from cpuconv.errors import CpuconvError
from cpuconv.problem.activation import Activation
from cpuconv.problem.problem import ConvProblem

_OTHER_EPILOGUE = 0.1  # distance of another activation or residual; a size ratio of e has distance 1


def nearest_problem(query: Query) -> Choice | None:
    """Select the fastest candidate of the nearest tuned problem, or another one of its solver, if the model agrees."""
    if query.strategy == "heuristic":
        return None
    problem, prefix = query.problem, query.prefix
    near = nearest(problem)
    if near is None:
        return None
    solver = near.partition("(")[0]
    if prefix and solver != prefix.partition("(")[0]:
        return None
    ranked = ranking(problem, solver, query.limits.closed)
    likely = [item for item in ranked if item.cost.estimate <= query.agreed]
    likely.sort(key=lambda item: str(item.candidate) != near)
    for item in likely:
        if str(item.candidate).startswith(prefix) and why_excluded(problem, item, query.limits) is None:
            return Choice(item.candidate, "neighbour")
    return None


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
