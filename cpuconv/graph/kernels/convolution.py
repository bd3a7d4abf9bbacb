"""Convolutions of a network: run by the solvers, as plans run them, on operands wherever they lie.

Groups that share channel blocks may run joined: as fewer groups, with zeros for the weights between those that were
joined. That is more arithmetic, but of a kind that solvers are fast at. The results are the same wherever the input is
finite; an infinity or NaN spreads to the outputs of all groups that were joined with its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpuconv.choice.model import Choice, favourite, search
from cpuconv.choice.select import choose, favourite_layouts
from cpuconv.graph.ir import Value
from cpuconv.graph.lowering import Call, Offer, Target
from cpuconv.graph.place import BLOCKED, DENSE, STRIDED
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.recipe import assemble, effective_threads
from cpuconv.solvers.shared import blocked
from cpuconv.solvers.shared.base import Operands, Ref, Step, aligned, divide

_WIDEST_BLOCK = 16
_LIES = {"NCHW": (STRIDED, DENSE), "NHWC": (DENSE, DENSE)}  # what is read, and what is written, in plain layouts


@dataclass(frozen=True)
class Convolution:
    """A convolution as a solver is asked for it, and what chooses the solver.

    Attributes
    ----------
    problem : ConvProblem
        Its layouts are the instruction set's blocks, "NCHW" for plain operands, or "NHWC" for rows of channels.
    target : Target
    seconds : float
        By the model, whatever has been tuned: tuning does not change which layouts a network asks for.
    joined : int
        Groups of the network that lie side by side in each group of the problem.
    """

    problem: ConvProblem
    target: Target
    seconds: float
    joined: int = 1

    @property
    def choice(self) -> Choice:
        """The candidate that runs it."""
        return choose(self.problem, self.target.strategy, self.target.limits, tuner=self.target.tuner)

    @property
    def flops(self) -> int:
        """Operations of the direct sum, without those on zeros between joined groups."""
        return self.problem.flops // self.joined


def ways(problem: ConvProblem, target: Target) -> Iterator[Convolution]:
    """The problem in every pair of layouts, blocks and "NCHW", that the model finds worth asking for.

    A pair is not where another pair, with reorders of the whole input and output around it, is as fast.
    """
    forms = [
        (_shared(replace(problem, groups=groups), target), problem.groups // groups) for groups in _groups(problem)
    ]
    reorders = target.moving(2 * problem.in_bytes), target.moving(2 * problem.out_bytes)
    known: dict[tuple[str, str], float] = {}
    for first in favourite_layouts(problem.c):
        for second in favourite_layouts(problem.k):
            around = [
                seconds + reorders[0] * (first != other[0]) + reorders[1] * (second != other[1])
                for other, seconds in known.items()
            ]
            found: Convolution | None = None
            below = min(around, default=math.inf)
            for form, joined in forms:
                option = replace(form, in_layout=first, out_layout=second)
                asked = below < math.inf
                ranked = search(option, target.limits, below=below) if asked else favourite(option, target.limits)
                if ranked is not None:
                    below = ranked.cost.estimate
                    found = Convolution(option, target, below, joined)
            if found is not None:
                known[first, second] = found.seconds
                yield found


def _groups(problem: ConvProblem) -> list[int]:
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


def _shared(problem: ConvProblem, target: Target) -> ConvProblem:
    """The problem for as many threads of the target as are worth waking."""
    problem = replace(problem, threads=target.threads)
    return replace(problem, threads=effective_threads(problem))


def offer(way: Convolution, inputs: Sequence[Value | None]) -> Offer:
    """One way for operands in the order of Conv: input, weights, bias, what is added (which lies as the output)."""
    first, _ = _LIES.get(way.problem.in_layout, (BLOCKED, BLOCKED))
    added, result = _LIES.get(way.problem.out_layout, (BLOCKED, BLOCKED))
    lies = (first, "", "", added if way.problem.residual else "")
    return Offer(lies[: len(inputs)], (result,), way.seconds, way)


def steps(
    call: Call, operands: Operands, weight: np.ndarray, bias: np.ndarray | None, view: Hashable = None
) -> list[Step]:
    """The kernel calls of a convolution whose weights are the constant `call.node.inputs[1]`.

    Parameters
    ----------
    call : Call
        Its offer is one of `offer`.
    operands : Operands
    weight : numpy.ndarray, (K, C/groups, R, S)
        float32, of any strides.
    bias : numpy.ndarray, (K,), or None
    view : hashable
        Tells views of one constant apart, which may be packed in the same form.
    """
    asked: Convolution = call.offer.detail
    problem, candidate = asked.problem, asked.choice.candidate
    recipe = assemble(problem, candidate, operands)
    packing = candidate.packing(problem)
    name, joined = call.node.inputs[1], asked.joined
    form = view, joined, packing
    known = {
        "w": call.constants.packed(
            name,
            form,
            lambda: packing.pack(_joined(weight, joined, problem.groups), call.target.threads, call.constants.room),
        ),
        "bias": call.constants.keep(_padded(problem.k, bias)),
        "workspace": call.space.reserve(recipe.workspace) if recipe.workspace else Ref("workspace"),
    }
    alone = recipe.threads < call.target.threads
    return [_placed(step, known, alone) for step in recipe.steps]


def _joined(weight: np.ndarray, joined: int, groups: int) -> np.ndarray:
    """Weights (K, C/groups, R, S) with every `joined` groups as one, zeros between them."""
    if joined == 1:
        return weight
    k, c, *taps = weight.shape
    made = np.zeros((groups, joined, k // groups // joined, joined, c, *taps), weight.dtype)
    same = np.arange(joined)
    made[:, same, :, same] = weight.reshape(groups, joined, -1, c, *taps).swapaxes(0, 1)
    return made.reshape(k, joined * c, *taps)


def _padded(k: int, bias: np.ndarray | None) -> np.ndarray:
    """The bias with zeros up to whole blocks; all zeros for None."""
    padded = aligned(divide(k, _WIDEST_BLOCK) * _WIDEST_BLOCK)
    padded[:] = 0
    if bias is not None:
        padded[:k] = bias.reshape(k)
    return padded


def _placed(step: Step, known: dict[str, Ref], alone: bool) -> Step:
    """A step with other bases in its addresses; `alone`: run by one worker."""
    args = {
        name: known[value.name] + value.offset if isinstance(value, Ref) and value.name in known else value
        for name, value in step.args.items()
    }
    return replace(step, args=args, parts=0 if alone else step.parts)
