"""Layouts and element types in which a network's convolution can run.

Groups that share channel blocks may be merged into fewer groups, with zero weights between the merged ones. This adds
arithmetic, but solvers run it faster. Results are equal for finite inputs; an infinity or NaN spreads to the outputs of
all groups that were merged with its own.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from baselib.data_classes import dataclass
from cpuconv.conv import session
from cpuconv.conv.choice.auto_settings import preferred_layouts
from cpuconv.conv.choice.model import Choice, Limits, applicable, cheapest, search
from cpuconv.conv.choice.query import Record
from cpuconv.conv.choice.select import choose, from_record
from cpuconv.conv.choice.target import PRECISION_F32, Target
from cpuconv.conv.recipe import effective_threads
from cpuconv.elements import F16, F32, Element
from cpuconv.errors import ArgumentError
from cpuconv.isa import Isa, current
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.tensor_view import BLOCKED, NARROW, narrow_element
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.solvers.shared import blocked


@dataclass(frozen=True)
class LayoutCandidate:
    """A convolution with layouts and types, and the settings that select its algorithm.

    Attributes
    ----------
    problem : ConvProblem
        Its layouts are the instruction set's blocks, "NCHW" for plain operands, or "NHWC" for rows of channels;
        blocks may be of bfloat16, float16 or bfloat16 parts.
    target : Target
    seconds : float
        Time by the model, regardless of tuning: tuning does not change the layouts of a network.
    joined : int
        Number of the network's groups that are merged into each group of the problem.
    settled : Choice or None
        The selected candidate, if it is known in advance.
    """

    problem: ConvProblem
    target: Target
    seconds: float
    joined: int = 1
    settled: Choice | None = None

    @property
    def choice(self) -> Choice:
        """The selected candidate."""
        if self.settled is not None:
            return self.settled
        return choose(self.problem, self.target.strategy, limits_of(self.problem, self.target), tuner=self.target.tuner)

    @property
    def flops(self) -> int:
        """Operations of the direct sum, without those on zeros between merged groups."""
        return self.problem.flops // self.joined

    def recorded(self) -> dict[str, Any]:
        """Convert to plain values, which `restored` reads."""
        choice = self.choice
        chosen = {"candidate": str(choice.awaited or choice.candidate), "decided_by": choice.decided_by}
        return {"problem": self.problem.key, "joined": self.joined, "seconds": self.seconds, **chosen}


def limits_of(problem: ConvProblem, target: Target) -> Limits:
    """The limits of a network's convolution: those in float16 may sum in float16, unless `accuracy` is "exact"."""
    limits = target.limits
    return replace(limits, accuracy="fast") if problem.types.x == F16 and limits.accuracy == "standard" else limits


def solvable(problem: ConvProblem) -> bool:
    """Whether there is a solver for the problem's types."""
    return any(reason is None for _, reason in applicable(problem))


def layout_candidates(problem: ConvProblem, target: Target) -> Iterator[LayoutCandidate]:
    """The problem in each pair of layouts, blocks and "NCHW", that the model finds useful.

    A pair is omitted if another pair, with reorders of the whole input and output, is as fast. If the target's
    precision allows it, input or output may be blocked bfloat16 or float16; weights have the input's type.
    """
    known, plain = session.current.choices, replace(target, node_precisions={}, tuner=None, strategy="heuristic")
    key = plain, machine(), layout_candidates.__name__
    found = known.get(problem, key)
    if found is None:
        found = tuple(_layout_candidates(problem, plain))
        known.put(problem, key, found)
    return (replace(each, target=target) for each in found)


def _layout_candidates(problem: ConvProblem, target: Target) -> Iterator[LayoutCandidate]:
    """As `layout_candidates`, for a target without precisions of single nodes."""
    reorders = target.moving(2 * problem.in_bytes), target.moving(2 * problem.out_bytes)
    known: dict[tuple[_TensorForm, _TensorForm], float] = {}
    blocks, isa, last = _blocks(target), target.isa, target.channels_last
    starts = _input_forms(problem.c, problem.types.x, blocks, isa, last)
    goals = _output_forms(problem.k, problem.types.y, blocks, isa, last)
    for first, second in itertools.product(starts, goals):
        around = [
            seconds + reorders[0] * (first != other[0]) + reorders[1] * (second != other[1])
            for other, seconds in known.items()
        ]
        found = _fastest(problem, target, first, second, min(around, default=math.inf))
        if found is not None:
            known[first, second] = found.seconds
            yield found


def _blocks(target: Target) -> tuple[str, ...]:
    """The blocked forms of float32 tensors: in bfloat16 parts, too, where these are multiplied and none is rounded."""
    parts = target.stored_parts if target.precision == PRECISION_F32 else None
    return (*target.blocks(), *([NARROW[parts][BLOCKED]] if parts else ()))


class _TensorForm(NamedTuple):
    """Layout and element type of an input or output."""

    layout: str
    element: Element


def _output_forms(channels: int, element: Element, blocks: tuple[str, ...], isa: Isa, last: bool) -> list[_TensorForm]:
    """Possible layouts and types of a tensor, by its channels, its type and the target's blocked forms.

    `last`: channels may be last.
    """
    layouts = preferred_layouts(channels, element)
    made = [_TensorForm(layout, element) for layout in layouts]
    narrow = narrow_element(blocks) if element == F32 and len(layouts) > 1 else None
    if narrow:
        made.append(_TensorForm(blocked.layout(isa, narrow), narrow))
    if last and element == F32 and len(layouts) > 1:
        made += [_TensorForm("NHWC", each) for each in (F32, *([narrow] if narrow and narrow.parts == 1 else ()))]
    return made


def _input_forms(channels: int, element: Element, blocks: tuple[str, ...], isa: Isa, last: bool) -> list[_TensorForm]:
    """Possible layouts and types of an input: one of few channels, stored in NCHW, may be narrow too."""
    made = _output_forms(channels, element, blocks, isa, last)
    narrow = narrow_element(blocks) if element == F32 and len(made) == 1 else None
    if narrow and narrow.parts == 1:
        made.append(_TensorForm("NCHW", narrow))
    return made


@functools.lru_cache(maxsize=4096)
def _is_possible(known: ConvProblem, types: Types, blocks: tuple[str, ...], isa: Isa, last: bool) -> bool:
    """Whether a problem of these types may have the layouts and types of a record."""
    if known.types.sum != types.sum or not types.sum.integer and known.types.w not in (known.types.x, F32):
        return False
    first, second = _TensorForm(known.in_layout, known.types.x), _TensorForm(known.out_layout, known.types.y)
    return first in _input_forms(known.c, types.x, blocks, isa, last) and second in _output_forms(
        known.k, types.y, blocks, isa, last
    )


def _fastest(
    problem: ConvProblem, target: Target, first: _TensorForm, second: _TensorForm, below: float
) -> LayoutCandidate | None:
    """The problem with given input and output forms, its groups as they are or merged; None if it is not below."""
    types = problem.types
    if not types.sum.integer:
        types = Types(first.element, first.element if first.element.parts == 1 else F32, F32, second.element)
    typed = replace(problem, types=types, in_layout=first.layout, out_layout=second.layout)
    found: LayoutCandidate | None = None
    for groups in merged_group_counts(typed):
        option = _with_threads(replace(typed, groups=groups), target)
        is_optional = below < math.inf or types != ALL_F32
        limits = limits_of(option, target)
        ranked = search(option, limits, below=below) if is_optional else cheapest(option, limits)
        if ranked is not None:
            below = ranked.cost.estimate
            found = LayoutCandidate(option, target, below, problem.groups // groups)
    return found


def merged_group_counts(problem: ConvProblem) -> list[int]:
    """Numbers of groups to try: the problem's own; if groups share blocks, also the most that do not, and one."""
    isa = current()
    if problem.cg == problem.kg == 1 or blocked.aligned_groups(problem, isa) is None:
        return [problem.groups]
    fewer = (groups for groups in range(problem.groups - 1, 1, -1) if problem.groups % groups == 0)
    whole = (groups for groups in fewer if blocked.aligned_groups(replace(problem, groups=groups), isa) is None)
    return list(dict.fromkeys([problem.groups, *itertools.islice(whole, 1), 1]))


def in_own_layouts(problem: ConvProblem, target: Target) -> LayoutCandidate:
    """The convolution of a problem in its own layouts."""
    problem = _with_threads(problem, target)
    return LayoutCandidate(problem, target, cheapest(problem, limits_of(problem, target)).cost.estimate)


def restored(
    problem: ConvProblem, target: Target, record: Mapping[str, Any], same: bool, free: bool = False
) -> LayoutCandidate | None:
    """Restore the convolution that a record describes, without considering other layouts.

    Parameters
    ----------
    problem : ConvProblem
        The problem as the network has it.
    record : mapping
        A result of `LayoutCandidate.recorded` for this problem or one of other sizes.
    same : bool
        Whether its algorithm is used too. For other sizes, its solver is used, with its tiles unless the model finds
        others clearly faster or results are stored.
    free : bool
        Whether to use the layouts of the record, as for `layout_candidates`; otherwise the problem's own.

    Returns
    -------
    LayoutCandidate or None
        None if the record does not fit.
    """
    try:
        known, joined, seconds = _parsed(record["problem"]), int(record["joined"]), float(record["seconds"])
        candidate, decided_by = str(record["candidate"]), str(record["decided_by"])
    except (ArgumentError, KeyError, TypeError, ValueError):
        return None
    layouts, types = (problem.in_layout, problem.out_layout), problem.types
    if free:
        layouts, types = (known.in_layout, known.out_layout), known.types
        if not _is_possible(known, problem.types, _blocks(target), target.isa, target.channels_last):
            return None
    elif known.types != types:
        return None
    if problem.groups != known.groups * joined or (problem.c, problem.k) != (known.c, known.k):
        return None
    wanted = _with_threads(
        problem, target, groups=known.groups, in_layout=layouts[0], out_layout=layouts[1], types=types
    )
    choice = (
        from_record(wanted, target.strategy, limits_of(wanted, target), Record(known, candidate, decided_by))
        if same
        else None
    )
    return LayoutCandidate(wanted, target, seconds, joined, choice)


_parsed = functools.lru_cache(maxsize=4096)(ConvProblem.parse)  # records are read again for each size


def _with_threads(problem: ConvProblem, target: Target, **changes: Any) -> ConvProblem:
    """The problem with changed fields, for as many of the target's threads as are worth using."""
    problem = problem.changed(threads=target.threads, **changes)
    threads = effective_threads(problem)
    return problem if threads == problem.threads else problem.changed(threads=threads)
