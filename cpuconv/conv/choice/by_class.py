"""The solver of a class of sizes: one that all its sizes may run with, so that a new size needs no search.

Sums of floats that are added in another order differ in their last bits. So that equal arrays give equal bits whatever
ran before, the solver follows from the class alone, from the first call on. Where transforms (Winograd, FFT) may win,
the best one depends on how tiles divide a plane, and each size is decided by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cpuconv.conv import session
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import Choice, Limits, search
from cpuconv.conv.choice.select import choose, chosen, note_untuned
from cpuconv.conv.template import is_padded
from cpuconv.errors import ArgumentError
from cpuconv.following.classes import representative_size, size_class
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import TABLE, why_not

_CONTENDS = 1.3
"""Most of a transform's estimate, over that of the class's solver, for each size to be decided by itself."""
_SLOWER = 1.03
"""Most of the estimate of the class's solver, over the best one's, for sizes that are not the representative."""


def representative(problem: ConvProblem) -> ConvProblem | None:
    """The problem of the sizes that decide for the class of a problem; None: it has a larger kernel than these."""
    n, h, w = (representative_size(size_class(size)) for size in (problem.n, problem.h, problem.w))
    pads: list[int] = []
    for padded, reach in zip(is_padded(problem), problem.effective_kernel, strict=True):
        pads += [reach // 2, (reach - 1) // 2] if padded else [0, 0]
    top, bottom, left, right = pads
    try:
        return replace(problem, n=n, h=h, w=w, pads=(top, bottom, left, right))
    except ArgumentError:
        return None


def class_choice(problem: ConvProblem, strategy: str, limits: Limits) -> Choice | None:
    """What is chosen for the representative of a problem's class; None where each size is decided by itself."""
    known = representative(problem)
    if known is None:
        return None
    choices, asked = session.current.choices, (strategy, limits, class_choice.__name__)
    found = choices.get(known, asked)
    if found is None:
        try:
            found = (_class_choice(known, strategy, limits),)
        except ArgumentError:  # of a size of the class that is smaller than the kernel
            found = (None,)
        choices.put(known, asked, found)
    choice: Choice | None = found[0]
    return choice


def _class_choice(known: ConvProblem, strategy: str, limits: Limits) -> Choice | None:
    choice = chosen(known, strategy, limits)
    if known.types.sum.integer:  # sums are exact in any order
        return choice
    if choice.candidate.solver.ROUNDING:
        return None
    name = f"{choice.candidate.solver.NAME}("
    for size in _probes(known):
        found, own = search(size, limits), search(size, limits, name)
        if found is None or own is None or own.cost.estimate > _SLOWER * found.cost.estimate:
            return None
    if known.r == known.s == 1:  # transforms gain nothing
        return choice
    best = search(known, limits)
    transforms = (each for each in TABLE if each.ROUNDING and why_not(each, known, current()) is None)
    below = _CONTENDS * best.cost.estimate if best is not None else 0.0
    if any(search(known, limits, f"{each.NAME}(", below) is not None for each in transforms):
        return None
    return choice


def _probes(known: ConvProblem) -> Iterator[ConvProblem]:
    """Other sizes of the class of a representative: a wide one and a tall one, which tiles divide badly."""
    for at in (False, True):
        yield replace(known, h=_probe(known.h, at), w=_probe(known.w, not at))


def _probe(size: int, long: bool) -> int:
    """A size of the class that a representative's size is of: one of its largest, or of its smallest."""
    if size == 1:
        return 1
    return 5 * size // 4 if long else 2 * size // 3 + 1


def follows_class(problem: ConvProblem, strategy: str, limits: Limits) -> bool:
    """Whether a choice within these limits may follow from a class of sizes."""
    single = not limits.reproducible or problem.threads == 1
    return strategy != "profile" and limits.workspace is None and single and problem.n > 0


def is_stored(problem: ConvProblem) -> bool:
    """Whether somebody tuned exactly this problem."""
    here = session.current
    return tuned.any_rows() and problem.key in here.tiers.problems(here.device)


def choose_in_class(problem: ConvProblem, strategy: str, limits: Limits) -> Choice:
    """As `choose`, of the solver of the problem's class; what was tuned of exactly this problem counts first."""
    if not follows_class(problem, strategy, limits) or problem.types.sum.integer:
        return choose(problem, strategy, limits)
    of = None if strategy == "cached" and is_stored(problem) else class_choice(problem, strategy, limits)
    if of is None or why_not(of.candidate.solver, problem, current()) is not None:
        return choose(problem, strategy, limits)
    choice = choose(problem, strategy, limits, of.candidate.solver.NAME)
    note_untuned(problem, strategy, limits, choice)
    return choice
