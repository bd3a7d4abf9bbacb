"""Offers and kernel calls of operators that convolution solvers compute."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.embedded import steps_of
from cpuconv.elements import BF16, S8
from cpuconv.graph.ir import Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.kernels.binding.steps import Operands, Step
from cpuconv.kernels.binding.tensor_view import BLOCKED, BLOCKED_BF16, DENSE, DENSE_BF16, STRIDED, TensorView
from cpuconv.problem.quantization import Quantization

_PLAIN_FORMS = {"NCHW": (STRIDED, DENSE), "NHWC": (DENSE, DENSE)}  # form to read and form to write, in plain layouts
_PLAIN_BF16_FORMS = {"NCHW": DENSE_BF16, "NHWC": DENSE_BF16}  # form to read


def offer(way: LayoutCandidate, inputs: Sequence[Value | None]) -> Offer:
    """Make an offer for operands in the order of Conv: input, weights, bias, residual (in the form of the output)."""
    types = way.problem.types
    first, _ = _PLAIN_FORMS.get(way.problem.in_layout, (BLOCKED, BLOCKED))
    added, result = _PLAIN_FORMS.get(way.problem.out_layout, (BLOCKED, BLOCKED))
    first = _PLAIN_BF16_FORMS.get(way.problem.in_layout, BLOCKED_BF16) if types.x == BF16 else first
    added, result = (BLOCKED_BF16, BLOCKED_BF16) if types.y == BF16 else (added, result)
    computed = inputs[1] is not None and inputs[1].array is None
    forms = (first, DENSE if computed else "", "", added if way.problem.residual else "")
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
