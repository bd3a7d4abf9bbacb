"""Candidates whose kernels exist: in memory, in the user's cache or in a pack. Others cost 50 to 100 ms a kernel."""

from __future__ import annotations

from collections.abc import Callable

from cpuconv.conv.choice.model import Limits, Ranked, search
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.code.cache import NotCompiled, compiling_nothing


def exists(problem: ConvProblem, candidate: Candidate) -> bool:
    """Whether nothing would be compiled for a candidate, operands C-contiguous."""
    try:
        with compiling_nothing():
            for step in assemble(problem, candidate).steps:
                step.compile()
    except NotCompiled:
        return False
    return True


def nearly_as_fast(problem: ConvProblem, limits: Limits, best: Ranked, slower: float) -> Ranked:
    """The best candidate if its kernels exist; the fastest one whose kernels do, if the model finds it at most so many
    times slower; else the best one. All give the same bits: more kernels may exist when a size is made again."""
    if exists(problem, best.candidate):
        return best
    prefix = best.candidate.rounding
    found = search(problem, limits, prefix, slower * best.cost.estimate, _once(lambda each: exists(problem, each)))
    return found or best


def _once(accept: Callable[[Candidate], bool]) -> Callable[[Candidate], bool]:
    """The same of the first candidate with its micro-kernels; others with them differ in words of the driver."""
    known: dict[tuple[int, ...], bool] = {}

    def accepted(candidate: Candidate) -> bool:
        kernels = (*candidate.micro_kernels.values(),)
        if kernels not in known:
            known[kernels] = accept(candidate)
        return known[kernels]

    return accepted
