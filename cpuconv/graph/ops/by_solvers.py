"""Convolutions of a network: run by the solvers, as plans run them, on operands wherever they lie.

Groups that share channel blocks may run joined: as fewer groups, with zeros for the weights between those that were
joined. That is more arithmetic, but of a kind that solvers are fast at. The results are the same wherever the input is
finite; an infinity or NaN spreads to the outputs of all groups that were joined with its own.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cpuconv.conv.balanced import balanced
from cpuconv.conv.choice.model import Choice, applicable, favourite, search
from cpuconv.conv.choice.select import choose, favourite_layouts, following
from cpuconv.conv.choice.tuned import named
from cpuconv.conv.ending_block import Numbers, ending_block, fill_of
from cpuconv.conv.recipe import assemble, effective_threads
from cpuconv.elements import BF16, F32, Element
from cpuconv.errors import ArgumentError
from cpuconv.graph.ir import Value
from cpuconv.graph.lowering import Call, Offer, Target
from cpuconv.isa import current
from cpuconv.kernels.binding.place import BLOCKED, BLOCKED_BF16, DENSE, DENSE_BF16, STRIDED, Place
from cpuconv.kernels.binding.steps import Operand, Operands, Ref, Step
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.solvers.shared import blocked
from layouts import Strides

_LIES = {"NCHW": (STRIDED, DENSE), "NHWC": (DENSE, DENSE)}  # what is read, and what is written, in plain layouts
_BF16_LIES = {"NCHW": DENSE_BF16, "NHWC": DENSE_BF16}  # what is read


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
        chosen = {"candidate": str(choice.candidate), "decided_by": choice.decided_by}
        return {"problem": self.problem.key, "joined": self.joined, "seconds": self.seconds, **chosen}


def solvable(problem: ConvProblem) -> bool:
    """Whether there is a solver for the problem's types."""
    return any(reason is None for _, reason in applicable(problem))


def ways(problem: ConvProblem, target: Target) -> Iterator[Convolution]:
    """The problem in every pair of layouts, blocks and "NCHW", that the model finds worth asking for.

    A pair is not where another pair, with reorders of the whole input and output around it, is as fast. Where the
    target's precision allows, an end may be bfloat16, in blocks; weights are of the input's type.
    """
    reorders = target.moving(2 * problem.in_bytes), target.moving(2 * problem.out_bytes)
    known: dict[tuple[_End, _End], float] = {}
    starts, goals = _starts(problem.c, problem.types.x, target), _ends(problem.k, problem.types.y, target)
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


def _ends(channels: int, element: Element, target: Target) -> list[_End]:
    """The ways of so many channels of such elements."""
    layouts = favourite_layouts(channels, element)
    made = [_End(layout, element) for layout in layouts]
    if element == F32 and BLOCKED_BF16 in target.blocks() and len(layouts) > 1:
        made.append(_End(blocked.layout(target.isa, BF16), BF16))
    return made


def _starts(channels: int, element: Element, target: Target) -> list[_End]:
    """The ways of an input: one of few channels, which lies in planes, may be bfloat16 there."""
    made = _ends(channels, element, target)
    if element == F32 and BLOCKED_BF16 in target.blocks() and len(made) == 1:
        made.append(_End("NCHW", BF16))
    return made


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


def of_rows(problem: ConvProblem, target: Target) -> list[ConvProblem]:
    """A product of rows in float32; and with rows of bfloat16, where the target allows that and kernels multiply it."""
    if problem.types != ALL_F32 or problem.in_layout != "NHWC" or BLOCKED_BF16 not in target.blocks():
        return [problem]
    narrow = replace(problem, types=Types(BF16, BF16, F32, F32))
    return [problem, narrow] if solvable(narrow) else [problem]


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
        Whether its algorithm is taken over too: as it is if the problem is the same; for other sizes its solver, with
        the model's favourite tiles, where nothing is stored for them.
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
        ends = _End(layouts[0], types.x), _End(layouts[1], types.y)
        x, y = problem.types.x, problem.types.y
        if not (ends[0] in _starts(known.c, x, target) and ends[1] in _ends(known.k, y, target)):
            return None
    elif known.types != types:
        return None
    if problem.groups != known.groups * joined or (problem.c, problem.k) != (known.c, known.k):
        return None
    asked = _shared(problem, target, groups=known.groups, in_layout=layouts[0], out_layout=layouts[1], types=types)
    choice: Choice | None = None
    if same and asked != known:
        choice = following(asked, target.strategy, target.limits, candidate.partition("(")[0])
    elif same and (found := named(asked, candidate)) is not None:
        choice = Choice(found, decided_by)
    return Convolution(asked, target, seconds, joined, choice)


_parsed = functools.lru_cache(maxsize=4096)(ConvProblem.parse)  # records are read once for every size


def _shared(problem: ConvProblem, target: Target, **changes: Any) -> ConvProblem:
    """The problem, with other changes, for as many threads of the target as are worth waking."""
    problem = replace(problem, threads=target.threads, **changes)
    threads = effective_threads(problem)
    return problem if threads == problem.threads else replace(problem, threads=threads)


def rows_problem(shape: Sequence[int], columns: int, **fields: Any) -> ConvProblem:
    """A product of rows, an operand of `shape`, with a matrix of so many columns: the rows are pixels of an image.

    The first axis of several is the height, the others are the width. One row is one pixel.
    """
    *rows, depth = shape
    high, wide = (rows[0], math.prod(rows[1:])) if len(rows) > 1 else (1, math.prod(rows))
    layout = "NHWC" if high * wide > 1 else "NCHW"
    return ConvProblem(1, depth, high, wide, columns, 1, 1, in_layout=layout, out_layout=layout, **fields)


def rows_operand(place: Place) -> Operand:
    """Rows as the pixels of an image."""
    if math.prod(place.shape[:-1]) == 1:  # of one pixel height and width say nothing: as in a dense plane
        h = w = place.dtype.itemsize
    else:
        h, w = place.strides[0], place.strides[-2]
    return Operand(place.ref, Strides(place.size, 1, place.strides[-1], 0, h, w))


def offer(way: Convolution, inputs: Sequence[Value | None]) -> Offer:
    """One way for operands in the order of Conv: input, weights, bias, what is added (which lies as the output)."""
    types = way.problem.types
    first, _ = _LIES.get(way.problem.in_layout, (BLOCKED, BLOCKED))
    added, result = _LIES.get(way.problem.out_layout, (BLOCKED, BLOCKED))
    first = _BF16_LIES.get(way.problem.in_layout, BLOCKED_BF16) if types.x == BF16 else first
    added, result = (BLOCKED_BF16, BLOCKED_BF16) if types.y == BF16 else (added, result)
    forms = (first, "", "", added if way.problem.residual else "")
    return Offer(forms[: len(inputs)], (result,), way.seconds, way)


def steps(
    call: Call,
    operands: Operands,
    weight: np.ndarray,
    bias: np.ndarray | None,
    view: Hashable = None,
    quantization: Quantization | None = None,
) -> list[Step]:
    """The kernel calls of a convolution whose weights are the constant `call.node.inputs[1]`.

    Parameters
    ----------
    call : Call
        Its offer is one of `offer`.
    operands : Operands
    weight : numpy.ndarray, (K, C/groups, R, S)
        Of any strides; of integers less their zero points.
    bias : numpy.ndarray, (K,), or None
    view : hashable
        Tells views of one constant apart, which may be packed in the same form.
    quantization : Quantization or None
        Of integers.
    """
    asked: Convolution = call.offer.detail
    problem, candidate = asked.problem, asked.choice.candidate
    given = {name: operand for name, operand in vars(operands).items() if operand is not None}
    named = {name: replace(operand, ref=Ref(name)) for name, operand in given.items()}  # they may be in workspace
    recipe = assemble(problem, candidate, Operands(**named))
    packing = candidate.packing(problem)
    name, joined = call.node.inputs[1], asked.joined
    form = view, joined, packing
    numbers = None if quantization is None else Numbers.of(weight, quantization)
    known: dict[str, Ref | int] = {name: operand.ref for name, operand in given.items()} | {
        "w": call.constants.packed(
            name,
            form,
            lambda: packing.pack(
                _joined(_as_stored(weight, problem), joined, problem.groups), call.target.threads, call.constants.room
            ),
        ),
        "bias": call.constants.keep(ending_block(problem, candidate, bias, numbers)),
        "fill": fill_of(problem, quantization),
        "workspace": call.space.reserve(recipe.workspace) if recipe.workspace else Ref("workspace"),
    }
    alone = recipe.threads < call.target.threads
    return [_placed(step, known, alone) for step in recipe.steps]


def _as_stored(weight: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """float32 weights as the problem has them."""
    return balanced(weight) if problem.types.w == BF16 else weight


def _joined(weight: np.ndarray, joined: int, groups: int) -> np.ndarray:
    """Weights (K, C/groups, R, S) with every `joined` groups as one, zeros between them."""
    if joined == 1:
        return weight
    k, c, *taps = weight.shape
    made = np.zeros((groups, joined, k // groups // joined, joined, c, *taps), weight.dtype)
    same = np.arange(joined)
    made[:, same, :, same] = weight.reshape(groups, joined, -1, c, *taps).swapaxes(0, 1)
    return made.reshape(k, joined * c, *taps)


def _placed(step: Step, known: dict[str, Ref | int], alone: bool) -> Step:
    """A step with other bases in its addresses; `alone`: run by one worker."""
    args = {
        name: known[value.name] + value.offset if isinstance(value, Ref) and value.name in known else value
        for name, value in step.args.items()
    }
    return replace(step, args=args, parts=0 if alone else step.parts)
