"""Ways to run a convolution of a network: by which layouts and element types solvers are asked for it.

Groups that share channel blocks may run joined: as fewer groups, with zeros for the weights between those that were
joined. That is more arithmetic, but of a kind that solvers are fast at. The results are the same wherever the input is
finite; an infinity or NaN spreads to the outputs of all groups that were joined with its own.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from autotune.data_classes import dataclass
from cpuconv.conv import session
from cpuconv.conv.choice.model import Choice, applicable, favourite, search
from cpuconv.conv.choice.select import choose, favourite_layouts, following
from cpuconv.conv.choice.target import Target
from cpuconv.conv.choice.tuned import named
from cpuconv.conv.recipe import effective_threads
from cpuconv.elements import BF16, F32, Element
from cpuconv.errors import ArgumentError
from cpuconv.isa import Isa, current
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.place import BLOCKED_BF16
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.solvers.shared import blocked


@dataclass(frozen=True)
class Convolution:
    """A convolution as a solver is asked for it, and what chooses the solver.

    Attributes
    ----------
    problem : ConvProblem
        Its layouts are the instruction set's blocks, "NCHW" for plain operands, or "NHWC" for rows of channels;
        blocks may be of bfloat16.
    target : Target
    seconds : float
        By the model, whatever has been tuned: tuning does not change which layouts a network asks for.
    joined : int
        Groups of the network that lie side by side in each group of the problem.
    settled : Choice or None
        What runs it, where that is known beforehand.
    """

    problem: ConvProblem
    target: Target
    seconds: float
    joined: int = 1
    settled: Choice | None = None

    @property
    def choice(self) -> Choice:
        """The candidate that runs it."""
        if self.settled is not None:
            return self.settled
        return choose(self.problem, self.target.strategy, self.target.limits, tuner=self.target.tuner)

    @property
    def flops(self) -> int:
        """Operations of the direct sum, without those on zeros between joined groups."""
        return self.problem.flops // self.joined

    def recorded(self) -> dict[str, Any]:
        """As plain values, which `restored` reads."""
        choice = self.choice
        chosen = {"candidate": str(choice.awaited or choice.candidate), "decided_by": choice.decided_by}
        return {"problem": self.problem.key, "joined": self.joined, "seconds": self.seconds, **chosen}


def solvable(problem: ConvProblem) -> bool:
    """Whether there is a solver for the problem's types."""
    return any(reason is None for _, reason in applicable(problem))


def ways(problem: ConvProblem, target: Target) -> Iterator[Convolution]:
    """The problem in every pair of layouts, blocks and "NCHW", that the model finds worth asking for.

    A pair is not where another pair, with reorders of the whole input and output around it, is as fast. Where the
    target's precision allows, an end may be bfloat16, in blocks; weights are of the input's type.
    """
    known, plain = session.current.choices, replace(target, node_precisions={}, tuner=None, strategy="heuristic")
    asked = plain, machine(), ways.__name__
    found = known.get(problem, asked)
    if found is None:
        found = tuple(_ways(problem, plain))
        known.put(problem, asked, found)
    return (replace(way, target=target) for way in found)


def _ways(problem: ConvProblem, target: Target) -> Iterator[Convolution]:
    """The same, of a target without precisions of single nodes."""
    reorders = target.moving(2 * problem.in_bytes), target.moving(2 * problem.out_bytes)
    known: dict[tuple[_End, _End], float] = {}
    blocks, isa = target.blocks(), target.isa
    starts, goals = _starts(problem.c, problem.types.x, blocks, isa), _ends(problem.k, problem.types.y, blocks, isa)
    for first, second in itertools.product(starts, goals):
        around = [
            seconds + reorders[0] * (first != other[0]) + reorders[1] * (second != other[1])
            for other, seconds in known.items()
        ]
        found = _fastest(problem, target, first, second, min(around, default=math.inf))
        if found is not None:
            known[first, second] = found.seconds
            yield found


class _End(NamedTuple):
    """How an input or output may lie."""

    layout: str
    element: Element


def _ends(channels: int, element: Element, blocks: tuple[str, ...], isa: Isa) -> list[_End]:
    """The ways of so many channels of such elements, by the forms of blocks that a target has."""
    layouts = favourite_layouts(channels, element)
    made = [_End(layout, element) for layout in layouts]
    if element == F32 and BLOCKED_BF16 in blocks and len(layouts) > 1:
        made.append(_End(blocked.layout(isa, BF16), BF16))
    return made


def _starts(channels: int, element: Element, blocks: tuple[str, ...], isa: Isa) -> list[_End]:
    """The ways of an input: one of few channels, which lies in planes, may be bfloat16 there."""
    made = _ends(channels, element, blocks, isa)
    if element == F32 and BLOCKED_BF16 in blocks and len(made) == 1:
        made.append(_End("NCHW", BF16))
    return made


@functools.lru_cache(maxsize=4096)
def _may_lie_so(known: ConvProblem, types: Types, blocks: tuple[str, ...], isa: Isa) -> bool:
    """Whether a problem of these types may lie as a record's does."""
    first, second = _End(known.in_layout, known.types.x), _End(known.out_layout, known.types.y)
    return first in _starts(known.c, types.x, blocks, isa) and second in _ends(known.k, types.y, blocks, isa)


def _fastest(problem: ConvProblem, target: Target, first: _End, second: _End, below: float) -> Convolution | None:
    """The problem from one way to lie to another, its groups as they are or joined; None if it is not below."""
    types = problem.types
    types = types if types.sum.integer else Types(first.element, first.element, F32, second.element)
    typed = replace(problem, types=types, in_layout=first.layout, out_layout=second.layout)
    found: Convolution | None = None
    for groups in joined_groups(typed):
        option = _shared(replace(typed, groups=groups), target)
        asked = below < math.inf or types != ALL_F32
        ranked = search(option, target.limits, below=below) if asked else favourite(option, target.limits)
        if ranked is not None:
            below = ranked.cost.estimate
            found = Convolution(option, target, below, problem.groups // groups)
    return found


def joined_groups(problem: ConvProblem) -> list[int]:
    """Numbers of groups to run the problem with: its own, and if they share blocks, as many as do not, and one."""
    isa = current()
    if problem.cg == problem.kg == 1 or blocked.aligned_groups(problem, isa) is None:
        return [problem.groups]
    fewer = (groups for groups in range(problem.groups - 1, 1, -1) if problem.groups % groups == 0)
    whole = (groups for groups in fewer if blocked.aligned_groups(replace(problem, groups=groups), isa) is None)
    return [problem.groups, *itertools.islice(whole, 1), 1]


def way(problem: ConvProblem, target: Target) -> Convolution:
    """The problem in its own layouts."""
    problem = _shared(problem, target)
    return Convolution(problem, target, favourite(problem, target.limits).cost.estimate)


def restored(
    problem: ConvProblem, target: Target, record: Mapping[str, Any], same: bool, free: bool = False
) -> Convolution | None:
    """The convolution that a record describes, and no other ways looked at.

    Parameters
    ----------
    problem : ConvProblem
        As the network has it.
    record : mapping
        What `Convolution.recorded` gave, of this problem or one of other sizes.
    same : bool
        Whether its algorithm is taken over too: as it is if the problem is the same; for other sizes its solver, and
        its tiles unless the model finds others clearly faster, where nothing is stored for them.
    free : bool
        Whether layouts are those of the record, as for `ways`; else the problem's own.

    Returns
    -------
    Convolution or None
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
        if not _may_lie_so(known, problem.types, target.blocks(), target.isa):
            return None
    elif known.types != types:
        return None
    if problem.groups != known.groups * joined or (problem.c, problem.k) != (known.c, known.k):
        return None
    asked = _shared(problem, target, groups=known.groups, in_layout=layouts[0], out_layout=layouts[1], types=types)
    choice: Choice | None = None
    if same and asked != known:
        choice = following(asked, target.strategy, target.limits, candidate)
    elif same and (found := named(asked, candidate)) is not None:
        choice = Choice(found, decided_by)
    return Convolution(asked, target, seconds, joined, choice)


_parsed = functools.lru_cache(maxsize=4096)(ConvProblem.parse)  # records are read once for every size


def _shared(problem: ConvProblem, target: Target, **changes: Any) -> ConvProblem:
    """The problem, with other changes, for as many threads of the target as are worth waking."""
    problem = problem.changed(threads=target.threads, **changes)
    threads = effective_threads(problem)
    return problem if threads == problem.threads else problem.changed(threads=threads)
