"""Which candidate runs a problem: pinned by name, else the store's fastest, else the cost model's choice."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from autotune.machine.cores import thread_counts
from autotune.wisdom.tiers import OLDER
from cpuconv import session
from cpuconv.choice import neighbours, tuned
from cpuconv.choice.model import AUTO, Choice, Limits, by_model, by_name, favourite, modelled_cost, search
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.recipe import effective_threads
from cpuconv.solvers.shared import blocked
from cpuconv.solvers.shared.packing import Packing

_CLEARLY = 1.02  # how much faster NCHW must be to be preferred to blocks, which the next layer reads as they are
_MODELLED = ("neighbour", "model")  # what decides where nothing is stored
_UNTUNED = (OLDER, *_MODELLED)  # where nothing current is
_HARDLY = 1.03  # how much slower a candidate may be whose packed weights exist


class Tuner(Protocol):
    """Who times candidates here and now, for strategy "profile": `cpuconv.tuning.profile`."""

    def profile(self, problem: ConvProblem) -> None:
        """Time the problem's candidates and store the results."""

    def compare_threads(self, options: Sequence[ConvProblem]) -> None:
        """Time the stored winners of one problem for several numbers of threads together, and store the results."""


def choose(
    problem: ConvProblem, strategy: str, limits: Limits, algorithm: str | None = None, tuner: Tuner | None = None
) -> Choice:
    """The candidate for a problem; remembered by the session. Strategy "profile" takes a `tuner`."""
    choices, asked = session.current.choices, (strategy, limits, algorithm)
    choice = choices.get(problem, asked)
    if choice is None:
        choice = _choose(problem, strategy, limits, algorithm, tuner)
        choices.put(problem, asked, choice)
    if strategy == "cached" and algorithm is None and choice.decided_by in _UNTUNED:
        session.current.untuned.add(problem, limits, is_tuned)
    return choice


def is_tuned(problem: ConvProblem, limits: Limits) -> bool:
    """Whether something current decides, that no faster row of older kernels puts in doubt."""
    return tuned.lookup(problem, limits) is not None and not tuned.older(problem, limits)


def _choose(problem: ConvProblem, strategy: str, limits: Limits, algorithm: str | None, tuner: Tuner | None) -> Choice:
    prefix = ""  # of the names to choose from
    if algorithm is not None:
        named = by_name(problem, algorithm, limits)
        if named is not None:
            return Choice(named, "named")
        prefix = f"{algorithm}("
    if limits.reproducible and problem.threads > 1:
        # Workers never change a result, other ways to sum do: one thread decides for any number of them.
        single = choose(replace(problem, threads=1), strategy, limits, algorithm, tuner)
        prefix = single.candidate.rounding
    if strategy == "heuristic":
        return Choice(by_model(problem, limits, prefix), "model")
    known = tuned.lookup(problem, limits, prefix)
    if known is None and tuner is not None and strategy == "profile" and problem.n and algorithm is None:
        tuner.profile(problem)
        known = tuned.lookup(problem, limits, prefix, read_only=False)
    older = tuned.older(problem, limits, prefix)
    return known if known is not None and not older else untuned(problem, limits, prefix, older, known)


def untuned(
    problem: ConvProblem, limits: Limits, prefix: str = "", older: Sequence[str] = (), known: Choice | None = None
) -> Choice:
    """What runs a problem that nothing current decides: where the model agrees, what was fastest with older kernels or
    else the nearest tuned neighbour's algorithm, else the model's choice.

    Arguments:
        older: candidates that were fastest with older kernels.  known: a choice among what is current, which was
        slower; it comes next.
    """
    best = favourite(problem, limits, prefix)
    if (found := neighbours.remembered(problem, older, best, limits)) is not None:
        return Choice(found, OLDER)
    if known is not None:
        return known
    found = neighbours.suggestion(problem, best, limits, prefix)
    return Choice(best.candidate, "model") if found is None else Choice(found, "neighbour")


def reusing(problem: ConvProblem, limits: Limits, choice: Choice, forms: Collection[Packing]) -> Choice:
    """The choice; or, where nothing is stored, the model's favourite among the candidates that read weights in one of
    the packed `forms`, if the model finds it hardly slower: packing takes longer than it loses."""
    if choice.decided_by not in _MODELLED or not forms or choice.candidate.packing(problem) in forms:
        return choice
    prefix = choice.candidate.rounding if limits.reproducible else ""
    below = _HARDLY * modelled_cost(problem, choice.candidate).estimate
    found = search(problem, limits, prefix, below, lambda candidate: candidate.packing(problem) in forms)
    return choice if found is None else Choice(found.candidate, "model")


def best_threads(problem: ConvProblem, strategy: str, limits: Limits, tuner: Tuner | None = None) -> ConvProblem:
    """The problem with the number of threads that is fastest, up to its own: as stored, else all if there is enough
    work to share."""
    if strategy != "heuristic" and problem.n:
        options = [replace(problem, threads=count) for count in thread_counts(problem.threads)]
        found = [tuned.best(option, limits) for option in options]
        if tuner is not None and strategy == "profile" and None in found:
            for option in options:
                choose(option, strategy, limits, tuner=tuner)
            tuner.compare_threads(options)
            found = [tuned.best(option, limits, read_only=False) for option in options]
        pairs = list(zip(found, options, strict=True))
        known = [(each.row.score, option) for each, option in pairs if each is not None]
        if strategy == "cached" and len(known) < len(options):
            for each, option in pairs:
                if each is None:
                    session.current.untuned.add(option, limits, is_tuned)
        if known:
            return min(known, key=lambda each: each[0])[1]
    return replace(problem, threads=effective_threads(problem))


def resolve_layouts(problem: ConvProblem, in_layout: str, out_layout: str, limits: Limits) -> ConvProblem:
    """The problem with `auto` layouts replaced: channel blocks, or NCHW where the model finds it clearly faster.

    Channels that fill no more than half of a block stay in planes, as images are: blocks would hold more zeros.
    """

    def favourites(channels: int) -> tuple[str, ...]:
        return ("NCHW",) if 2 * channels <= current().lanes else (blocked.layout(current()), "NCHW")

    choosing = replace(problem, threads=1) if limits.reproducible and problem.threads > 1 else problem
    options = [
        replace(choosing, in_layout=first, out_layout=second)
        for first in (favourites(problem.c) if in_layout == AUTO else (in_layout,))
        for second in (favourites(problem.k) if out_layout == AUTO else (out_layout,))
    ]
    best, least = options[0], math.inf
    for option in options if len(options) > 1 else ():
        weight = _CLEARLY ** (option.in_layout, option.out_layout).count("NCHW")
        found = search(option, limits, below=least / weight)
        if found is not None and found.cost.estimate * weight < least:
            best, least = option, found.cost.estimate * weight
    return best if best.threads == problem.threads else replace(best, threads=problem.threads)
