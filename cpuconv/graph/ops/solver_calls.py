"""Offers and kernel calls of operators that convolution solvers compute."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.embedded import steps_of
from cpuconv.elements import S8
from cpuconv.graph.ir import Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.kernels.binding.steps import Operands, Step
from cpuconv.kernels.binding.tensor_view import BLOCKED, DENSE, NARROW, STRIDED, TensorView
from cpuconv.problem.quantization import Quantization


def offer(way: LayoutCandidate, inputs: Sequence[Value | None], last: str = DENSE) -> Offer:
    """Make an offer for operands in the order of Conv: input, weights, bias, residual (in the form of the output).

    `last`: the form of tensors in NHWC; rows of a matrix are dense.
    """
    problem = way.problem
    plain = {"NCHW": (STRIDED, DENSE), "NHWC": (last, last)}  # form to read and form to write
    first, _ = plain.get(problem.in_layout, (BLOCKED, BLOCKED))
    added, result = plain.get(problem.out_layout, (BLOCKED, BLOCKED))
    if (narrow := NARROW.get(problem.types.x)) is not None:
        first = narrow[DENSE if first == STRIDED else first]
    if (narrow := NARROW.get(problem.types.y)) is not None:
        added, result = narrow[added], narrow[result]
    computed = inputs[1] is not None and inputs[1].array is None
    forms = (first, DENSE if computed else "", "", added if problem.residual else "")
    return Offer(forms[: len(inputs)], (result,), way.seconds, way)


def steps(
    call: Call,
    operands: Operands,
    weight: np.ndarray | TensorView,
    bias: np.ndarray | None,
    view: Hashable = None,
    quantization: Quantization | None = None,
) -> list[Step]:
    """Kernel calls of an offer whose weights are `call.node.inputs[1]`, constant or computed; see `steps_of`."""
    asked, name = call.offer.detail, call.node.inputs[1]
    if quantization is not None:
        quantization.check(asked.problem.types, S8, asked.problem.k, asked.problem.residual)
    return steps_of(asked, operands, call.constants, call.space, name, weight, bias, view, quantization)
