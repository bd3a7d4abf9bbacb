"""Selection of the candidate for a problem: by name, else the fastest stored one, else by the cost model."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from autotune.machine.cores import thread_counts
from autotune.wisdom.tiers import OLDER_KERNELS
from cpuconv.conv import session
from cpuconv.conv.choice import nearest_tuned, tuned
from cpuconv.conv.choice.model import (
    AT_HAND,
    AUTO,
    Choice,
    Limits,
    Ranked,
    by_model,
    by_name,
    cheapest,
    modelled_cost,
    search,
    with_kernels_of,
)
from cpuconv.conv.choice.substitutes import find_substitute
from cpuconv.conv.recipe import Candidate, effective_threads
from cpuconv.elements import F32, Element
from cpuconv.isa import current
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.code import background
from cpuconv.solvers.shared import blocked

_MIN_NCHW_SPEEDUP = 1.02  # minimum speed-up of NCHW over blocks, as the next layer reads blocks without a reorder
MODELLED = ("neighbour", "model")  # sources of decisions without stored results
_UNTUNED = (OLDER_KERNELS, *MODELLED)  # sources of decisions without results of current kernels
_MAX_REUSE_SLOWDOWN = 1.1  # ratio up to which another size's micro-kernels are used; the model's error is as large
_MAX_PACKED_SLOWDOWN = 1.03  # maximum ratio of the estimate of a candidate with packed weights to the selected one's


class Tuner(Protocol):
    """The interface that times candidates during a call, for strategy "profile": `cpuconv.tuning.profile`."""

    def profile(self, problem: ConvProblem) -> None:
        """Time the problem's candidates and store the results."""

    def compare_threads(self, options: Sequence[ConvProblem]) -> None:
        """Time the stored winners of a problem for several numbers of threads in turn, and store the results."""


def choose(
    problem: ConvProblem, strategy: str, limits: Limits, algorithm: str | None = None, tuner: Tuner | None = None
) -> Choice:
    """Select the candidate for a problem; the session caches it. Strategy "profile" needs a `tuner`."""
    choice = chosen(problem, strategy, limits, algorithm, tuner)
    if algorithm is None:
        note_untuned(problem, strategy, limits, choice)
    return choice


def chosen(
    problem: ConvProblem, strategy: str, limits: Limits, algorithm: str | None = None, tuner: Tuner | None = None
) -> Choice:
    """Select as `choose`, but do not log the problem as untuned."""
    choices, asked = session.current.choices, (strategy, limits, algorithm)
    choice = choices.get(problem, asked)
    if choice is None:
        choice = _choose(problem, strategy, limits, algorithm, tuner)
        choices.put(problem, asked, choice)
    return choice


def note_untuned(problem: ConvProblem, strategy: str, limits: Limits, choice: Choice) -> None:
    """Log a problem whose selection was not decided by a row of current kernels."""
    if strategy == "cached" and choice.decided_by in _UNTUNED:
        session.current.untuned.add(problem, limits, is_tuned)


def is_tuned(problem: ConvProblem, limits: Limits) -> bool:
    """Whether a row of current kernels decides, and no row of older kernels is faster."""
    return tuned.lookup(problem, limits) is not None and not tuned.older(problem, limits)


def _choose(problem: ConvProblem, strategy: str, limits: Limits, algorithm: str | None, tuner: Tuner | None) -> Choice:
    prefix = ""  # prefix of the names of allowed candidates
    if algorithm is not None:
        named = by_name(problem, algorithm, limits)
        if named is not None:
            return Choice(named, "named")
        prefix = f"{algorithm}("
    if limits.reproducible and problem.threads > 1:
        # Results do not depend on workers but on the order of summation: the selection for one thread is used for all.
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
    """Select a candidate for a problem without a decisive row of current kernels.

    In this order: the fastest with older kernels, if the model confirms it; `known`; the algorithm of the nearest tuned
    problem, if the model confirms it; the model's selection.

    Parameters
    ----------
    older : sequence of str
        Candidates that were fastest with older kernels, the fastest first.
    known : Choice or None
        The best candidate of current kernels, which was slower than those.
    """
    best = cheapest(problem, limits, prefix)
    old = nearest_tuned.from_older_kernels(problem, older, best, limits)
    if old is not None:
        return Choice(old, OLDER_KERNELS)
    if known is not None:
        return known
    near = nearest_tuned.from_nearest_problem(problem, best, limits, prefix)
    return Choice(best.candidate, "model") if near is None else Choice(near, "neighbour")


def choose_for_new_size(problem: ConvProblem, strategy: str, limits: Limits, name: str) -> Choice | None:
    """Select a candidate by the model, starting from `name`, selected for the same convolution of another size.

    Only the same solver is considered. Its existing micro-kernels are preferred, unless the model finds others clearly
    faster. None if that does not decide: results are stored, or the solver cannot run the problem.
    """
    if strategy == "profile" or limits.reproducible:
        return None
    choices, asked = session.current.choices, (strategy, limits, name, choose_for_new_size.__name__)
    choice = choices.get(problem, asked)
    if choice is None:
        if strategy == "cached" and tuned.any_rows() and _is_stored(problem, limits):
            return None
        best = _with_kernels_of(name, problem, limits)
        if best is None:
            return None
        choice = Choice(best.candidate, "model")
        choices.put(problem, asked, choice)
    if strategy == "cached":
        session.current.untuned.add(problem, limits, is_tuned)
    return choice


def _is_stored(problem: ConvProblem, limits: Limits) -> bool:
    return bool(tuned.lookup(problem, limits) or tuned.older(problem, limits))


_parsed = functools.lru_cache(maxsize=4096)(Candidate.parse)


def _with_kernels_of(name: str, problem: ConvProblem, limits: Limits) -> Ranked | None:
    try:
        known = _parsed(name)
    except ValueError:  # the name is from an older release
        return search(problem, limits, f"{name.partition('(')[0]}(")
    return with_kernels_of(known, problem, limits, _MAX_REUSE_SLOWDOWN)


def at_hand(problem: ConvProblem, strategy: str, choice: Choice, limits: Limits) -> Choice:
    """Return the choice; if its kernels are missing, one with kernels at hand and the same rounding.

    If the choice is clearly faster by the model, its kernels are compiled in the background, for later programs.
    """
    if strategy == "profile" or choice.decided_by == "named":
        return choice
    found = find_substitute(problem, limits, choice.candidate)
    if found.candidate == choice.candidate:
        return choice
    awaited = found.loss > background.MIN_SAVING and background.request(found.missing)
    return Choice(found.candidate, AT_HAND, choice.candidate if awaited else None)


def prefer_packed(problem: ConvProblem, limits: Limits, choice: Choice, forms: Collection[Packing]) -> Choice:
    """Return the choice, or a candidate that reads weights in one of the existing packed `forms`.

    That requires that nothing is stored, that the rounding is equal, and that the model finds it hardly slower. Packing
    would take longer than the slower candidate loses.
    """
    if choice.decided_by not in MODELLED or not forms or choice.candidate.packing(problem) in forms:
        return choice
    prefix = "" if problem.types.sum.integer else choice.candidate.rounding
    below = _MAX_PACKED_SLOWDOWN * modelled_cost(problem, choice.candidate).estimate
    packed = search(problem, limits, prefix, below, lambda candidate: candidate.packing(problem) in forms)
    return choice if packed is None else Choice(packed.candidate, "model")


def best_threads(problem: ConvProblem, strategy: str, limits: Limits, tuner: Tuner | None = None) -> ConvProblem:
    """The problem with its fastest number of threads, up to its own: as stored, else all if there is enough work."""
    if strategy != "heuristic" and problem.n:
        options = [replace(problem, threads=count) for count in thread_counts(problem.threads)]
        rows = [tuned.best(option, limits) for option in options]
        if tuner is not None and strategy == "profile" and None in rows:
            for option in options:
                choose(option, strategy, limits, tuner=tuner)
            tuner.compare_threads(options)
            rows = [tuned.best(option, limits, read_only=False) for option in options]
        seconds: list[tuple[float, ConvProblem]] = []
        for row, option in zip(rows, options, strict=True):
            if row is not None:
                seconds.append((row.row.score, option))
            elif strategy == "cached":
                session.current.untuned.add(option, limits, is_tuned)
        if seconds:
            return min(seconds, key=lambda pair: pair[0])[1]
    return replace(problem, threads=effective_threads(problem))


def preferred_layouts(channels: int, element: Element = F32) -> tuple[str, ...]:
    """The preferred layouts for a number of channels of an element type: the instruction set's blocks, and NCHW.

    Channels that fill at most half a block stay in NCHW, as blocks would contain more zeros than channels.
    """
    return ("NCHW",) if 2 * channels <= current().lanes else (blocked.layout(current(), element), "NCHW")


def resolve_layouts(problem: ConvProblem, in_layout: str, out_layout: str, limits: Limits) -> ConvProblem:
    """Replace `auto` layouts of a problem by channel blocks, or by NCHW if the model finds it clearly faster."""
    choosing = replace(problem, threads=1) if limits.reproducible and problem.threads > 1 else problem
    options = [
        replace(choosing, in_layout=first, out_layout=second)
        for first in (preferred_layouts(problem.c, problem.types.x) if in_layout == AUTO else (in_layout,))
        for second in (preferred_layouts(problem.k, problem.types.y) if out_layout == AUTO else (out_layout,))
    ]
    best, least = options[0], math.inf
    for option in options if len(options) > 1 else ():
        weight = _MIN_NCHW_SPEEDUP ** (option.in_layout, option.out_layout).count("NCHW")
        ranked = search(option, limits, below=least / weight)
        if ranked is not None and ranked.cost.estimate * weight < least:
            best, least = option, ranked.cost.estimate * weight
    return best if best.threads == problem.threads else replace(best, threads=problem.threads)
