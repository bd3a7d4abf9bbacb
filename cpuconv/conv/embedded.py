"""Kernel calls of a convolution whose operands are in the memory of a network."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from cpuconv.conv.balanced_rounding import round_balanced
from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.model import Choice, search
from cpuconv.conv.epilogue_block import Numbers, epilogue_block, padding_word
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.elements import BF16, F16, round_to
from cpuconv.kernels.binding.constants import Constants
from cpuconv.kernels.binding.steps import Operand, Operands, Ref, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.packing.packing import TabledPacking
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.types import ALL_F32
from cpuconv.symbolic.sizes import memoised


def steps_of(
    convolution: LayoutCandidate,
    operands: Operands,
    constants: Constants,
    space: Space,
    name: str,
    weight: np.ndarray | TensorView,
    bias: np.ndarray | None,
    view: Hashable = None,
    quantization: Quantization | None = None,
) -> list[Step]:
    """Bind the kernel calls of a convolution.

    Parameters
    ----------
    convolution : LayoutCandidate
    operands : Operands
    constants : Constants
        Stores the packed weights and the bias.
    space : Space
        Workspace of the calls.
    name : str
        Name of the constant that holds the weights.
    weight : numpy.ndarray or TensorView, (K, C/groups, R, S)
        Any strides; integer weights have their zero points subtracted. Computed float32 weights, in memory, are packed
        at run time (`with_computed_weights`).
    bias : numpy.ndarray, (K,), or None
    view : hashable
        Distinguishes views of one constant that are packed in the same form.
    quantization : Quantization or None
        Scales and zero points of integers.
    """
    problem, candidate, joined, threads = (
        convolution.problem,
        convolution.choice.candidate,
        convolution.joined,
        convolution.target.threads,
    )
    closed = convolution.target.limits.closed
    given = {name: operand for name, operand in vars(operands).items() if operand is not None}
    # Placeholder bases, as operands may be in the workspace of the network.
    named = {name: Operand(_BASES[name], operand.strides) for name, operand in given.items()}
    recipe = _assembled(problem, candidate, Operands(**named), closed)
    packing = candidate.packing(problem, closed)
    before, numbers = list[Step](), None
    if isinstance(weight, TensorView):
        assert isinstance(packing, TabledPacking)
        packed = space.reserve(packing.size)
        before.append(packing.step(weight.strides, weight.ref, packed, space, threads))
    else:
        numbers, raw = None if quantization is None else Numbers.of(weight, quantization), weight

        def pack() -> np.ndarray:
            return packing.pack(_joined(_as_stored(raw, problem), joined, problem.groups), threads, constants.room)

        packed = constants.packed(name, (view, joined, packing), pack)
    known: dict[str, Ref | int] = {name: operand.ref for name, operand in given.items()} | {
        "w": packed,
        "bias": constants.keep(epilogue_block(problem, candidate, bias, numbers, closed)),
        "fill": padding_word(problem, quantization),
        "workspace": space.reserve(recipe.workspace) if recipe.workspace else Ref("workspace"),
    }
    return before + [_placed(step, known, alone=recipe.threads < threads) for step in recipe.steps]


def with_computed_weights(found: LayoutCandidate) -> LayoutCandidate | None:
    """The convolution in the same layouts, by the best candidate whose weights the packing kernel alone packs."""
    problem = replace(found.problem, groups=found.problem.groups * found.joined)
    limits = found.target.limits

    def packable(candidate: Candidate) -> bool:
        packing = candidate.packing(problem, limits.closed)
        return isinstance(packing, TabledPacking) and packing.is_complete

    best = search(problem, limits, accept=packable) if problem.types == ALL_F32 else None
    if best is None:
        return None
    choice = Choice(best.candidate, "model")
    return replace(found, problem=problem, seconds=best.cost.estimate, joined=1, settled=choice)


_BASES = {name: Ref(name) for name in ("x", "y", "residual")}
_assembled = memoised(64)(assemble)  # cached, as networks repeat layers


def _as_stored(weight: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """The float32 weights in the problem's element type."""
    if problem.types.w == F16:
        return round_to(weight, F16)
    return round_balanced(weight) if problem.types.w == BF16 else weight


def _joined(weight: np.ndarray, joined: int, groups: int) -> np.ndarray:
    """Merge every `joined` groups of weights (K, C/groups, R, S) into one, with zeros between them."""
    if joined == 1:
        return weight
    k, c, *taps = weight.shape
    made = np.zeros((groups, joined, k // groups // joined, joined, c, *taps), weight.dtype)
    same = np.arange(joined)
    made[:, same, :, same] = weight.reshape(groups, joined, -1, c, *taps).swapaxes(0, 1)
    return made.reshape(k, joined * c, *taps)


def _placed(step: Step, known: dict[str, Ref | int], alone: bool) -> Step:
    """Replace the symbolic bases in a step's addresses; `alone`: one worker runs it."""
    args = dict(step.args)
    for name, value in step.args.items():
        if type(value) is Ref and value.name in known:
            args[name] = known[value.name] + value.offset
    return Step(step.kernel, step.tile, args, 0 if alone else step.parts, step.clears_tail)
