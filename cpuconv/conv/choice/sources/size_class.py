"""Source: the algorithms of a class of sizes.

A new size needs no search, and its results do not depend on what ran before. Float sums in another order differ in
their last bits. The algorithm, and the tile of a transform (Winograd, FFT), therefore depend only on the class and the
size, from the first call on. A class has a few algorithms; each size uses the one with the lowest estimate, in
proportion to its operations. Parameters that do not affect rounding, such as GEMM tiles and blocks, depend on the size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from cpuconv.conv import session
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import Choice, Limits, Ranked, cheapest, cheapest_with_same_rounding, search
from cpuconv.conv.choice.query import Query
from cpuconv.conv.recipe import Candidate
from cpuconv.conv.template import Algorithm, is_padded
from cpuconv.errors import ArgumentError
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import why_not
from cpuconv.symbolic.classes import BATCH, representative_size, size_class

_MIN_SPEEDUP = 1.15  # speed-up by the model from which on a class gets another algorithm
_FEW_BITS = 4  # axes of up to 2**4 elements: tiles of transforms are selected per size


class ClassChoice(NamedTuple):
    """The algorithms of a class of sizes; algorithms with equal `rounding` give bit-identical results."""

    algorithms: tuple[Algorithm, ...]

    def plus(self, problem: ConvProblem, candidate: Candidate, seconds: float) -> ClassChoice:
        """Add an algorithm that takes `seconds` for a size of the class."""
        added = Algorithm(candidate, candidate.rounding, 1.0)
        return ClassChoice((*self.algorithms, added._replace(rate=seconds / added.seconds(problem))))

    def ordered(self, problem: ConvProblem) -> list[Algorithm]:
        """The algorithms for a size of the class, the lowest estimate first."""
        return sorted(self.algorithms, key=lambda each: each.seconds(problem))

    def better(self, problem: ConvProblem, limits: Limits) -> Ranked | None:
        """The best candidate for a size, if the class's algorithm takes over 1.15 times as long by the model."""
        able = (cheapest_with_same_rounding(problem, each.candidate, limits) for each in self.ordered(problem))
        own = next((each for each in able if each is not None), None)
        return None if own is None else search(problem, limits, below=own.cost.estimate / _MIN_SPEEDUP)


def representative(problem: ConvProblem) -> ConvProblem | None:
    """The problem with the representative sizes of a problem's class; None if its kernel is larger than these."""
    n = representative_size(size_class(problem.n, BATCH), batched=True)
    h, w = (representative_size(size_class(size)) for size in (problem.h, problem.w))
    pads: list[int] = []
    for padded, reach in zip(is_padded(problem), problem.effective_kernel, strict=True):
        pads += [reach // 2, (reach - 1) // 2] if padded else [0, 0]
    top, bottom, left, right = pads
    try:
        return replace(problem, n=n, h=h, w=w, pads=(top, bottom, left, right))
    except ArgumentError:
        return None


def class_choice(query: Query) -> ClassChoice | None:
    """The algorithms of a problem's class of sizes; None if each size is decided by itself."""
    known = representative(query.problem)
    if known is None:
        return None
    choices, key = session.current.choices, (query.strategy, query.limits, class_choice.__name__)
    found = choices.get(known, key)
    if found is None:
        first = query.choose(replace(query, problem=known, by_class=False, logged=False))
        found = (_class_choice(known, first.candidate, query.limits),)
        choices.put(known, key, found)
    choice: ClassChoice | None = found[0]
    return choice


def _class_choice(known: ConvProblem, first: Candidate, limits: Limits) -> ClassChoice | None:
    """The algorithms of the class of `known`, of which `first` is selected for `known` itself."""
    seconds = cheapest(known, limits).cost.estimate
    made = ClassChoice(()).plus(known, first, seconds)  # a tuned candidate counts as fast as the model's best
    is_small = any(size <= 2**_FEW_BITS and taps > 1 for size, taps in ((known.h, known.r), (known.w, known.s)))
    if is_small and first.solver.rounding:
        return None
    probes = [*_probes(known)]
    for problem in probes:
        better = made.better(problem, limits)
        if better is not None:
            made = made.plus(problem, better.candidate, better.cost.estimate)
    if is_small and any(each.candidate.solver.rounding for each in made.algorithms):
        return None
    if len(made.algorithms) > 1 and any(made.better(problem, limits) is not None for problem in probes):
        return None
    return made


def _probes(known: ConvProblem) -> Iterator[ConvProblem]:
    """Sizes of a class that are tested in addition to its representative: small and narrow planes.

    Large tiles fit such planes badly.
    """
    for narrow in ((True, True), (False, True), (True, False)):
        h, w = (_small(size) if small else size for size, small in zip((known.h, known.w), narrow, strict=True))
        with suppress(ArgumentError):  # the plane is smaller than the kernel
            yield replace(known, h=h, w=w)


def _small(size: int) -> int:
    """A size near the lower bound of a size's class."""
    return 5 * 2 ** size_class(size) // 16 or 1


def size_class_algorithm(query: Query) -> Choice | None:
    """Select among the algorithms of the class; results of tuning for this exact problem take priority."""
    if not query.by_class:
        return None
    alone = replace(query, by_class=False, logged=False)
    is_free = query.problem.types.sum.integer  # sums are exact in any order
    if is_free or not _follows_class(query) or query.strategy == "cached" and tuned.is_stored(query.problem):
        return query.choose(alone)
    of = class_choice(query)
    algorithms = () if of is None else of.ordered(query.problem)
    choices = (_with_algorithm(alone, each.candidate) for each in algorithms)
    return next((choice for choice in choices if choice is not None), None) or query.choose(alone)


def _follows_class(query: Query) -> bool:
    """Whether a class of sizes may decide for a problem within these limits."""
    problem, limits = query.problem, query.limits
    single = not limits.reproducible or problem.threads == 1
    return query.strategy != "profile" and limits.workspace is None and single and problem.n > 0


def _with_algorithm(query: Query, known: Candidate) -> Choice | None:
    """The candidate for a problem with the rounding of `known`; None if there is none."""
    problem, limits = query.problem, query.limits
    if why_not(known.solver, problem, current()) is not None:
        return None
    if not known.solver.rounding:
        return query.choose(replace(query, algorithm=known.solver.name))
    choices, key = session.current.choices, (query.strategy, limits, known.rounding)
    choice: Choice | None = choices.get(problem, key)
    if choice is None:
        best = cheapest_with_same_rounding(problem, known, limits)
        if best is None:
            return None
        choice = Choice(best.candidate, "model")
        choices.put(problem, key, choice)
    return choice
