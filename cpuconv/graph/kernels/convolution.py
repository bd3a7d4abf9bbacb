"""Convolutions of a network: run by the solvers, as plans run them, on operands wherever they lie."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpuconv.choice.model import Choice, favourite, search
from cpuconv.choice.select import choose, favourite_layouts
from cpuconv.graph.ir import Value
from cpuconv.graph.lowering import Call, Offer, Target
from cpuconv.graph.place import BLOCKED, DENSE, STRIDED
from cpuconv.problem.problem import ConvProblem
from cpuconv.recipe import assemble, effective_threads
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
    """

    problem: ConvProblem
    target: Target
    seconds: float

    @property
    def choice(self) -> Choice:
        """The candidate that runs it."""
        return choose(self.problem, self.target.strategy, self.target.limits, tuner=self.target.tuner)


def ways(problem: ConvProblem, target: Target) -> Iterator[Convolution]:
    """The problem in every pair of layouts, blocks and "NCHW", that the model finds worth asking for.

    A pair is not where another pair, with reorders of the whole input and output around it, is as fast.
    """
    problem = _shared(problem, target)
    reorders = target.moving(2 * problem.in_bytes), target.moving(2 * problem.out_bytes)
    known: dict[tuple[str, str], float] = {}
    for first in favourite_layouts(problem.c):
        for second in favourite_layouts(problem.k):
            option = replace(problem, in_layout=first, out_layout=second)
            around = [
                seconds + reorders[0] * (first != other[0]) + reorders[1] * (second != other[1])
                for other, seconds in known.items()
            ]
            ranked = search(option, target.limits, below=min(around)) if around else favourite(option, target.limits)
            if ranked is not None:
                known[first, second] = ranked.cost.estimate
                yield Convolution(option, target, ranked.cost.estimate)


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
    name = call.node.inputs[1]
    known = {
        "w": call.constants.packed(name, (view, packing), lambda: packing.pack(weight, call.target.threads)),
        "bias": call.constants.keep(_padded(problem.k, bias)),
        "workspace": call.space.reserve(recipe.workspace) if recipe.workspace else Ref("workspace"),
    }
    alone = recipe.threads < call.target.threads
    return [_placed(step, known, alone) for step in recipe.steps]


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
