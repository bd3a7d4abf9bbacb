"""Layouts and numbers of threads that the user leaves open: "auto"."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.machine.cores import thread_counts
from cpuconv.conv import session
from cpuconv.conv.choice import tuned
from cpuconv.conv.choice.model import AUTO, Limits, search
from cpuconv.conv.choice.query import Tuner
from cpuconv.conv.choice.select import choose, is_tuned
from cpuconv.conv.recipe import effective_threads
from cpuconv.elements import F32, Element
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked

_MIN_NCHW_SPEEDUP = 1.02  # minimum speed-up of NCHW over blocks, as the next layer reads blocks without a reorder


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
