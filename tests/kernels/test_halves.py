"""Which expressions float16 arithmetic serves, and the machine code of those on eight float16."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cpuconv.elements import F16
from cpuconv.isa import current, neon
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Ref
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.elementwise.driver import elementwise_steps, loops
from cpuconv.kernels.elementwise.expression import Expression, Operand, apply
from cpuconv.kernels.elementwise.halves import is_float16_safe

A, B, C = map(Operand, range(3))
SUM, GATE = apply("add", A, B), apply("sigmoid", A)
SERVED = {  # and whether results are those of float32
    SUM: True,
    apply("relu", SUM): True,
    apply("clip", SUM, -1e30, 0.1): True,
    apply("mul", A, 0.5): True,
    apply("neg", apply("div", A, B)): True,
    apply("leaky_relu", A, 0.25): True,
    apply("leaky_relu", A, 0.1): False,
    apply("mul", A, 0.1): False,
    apply("add", SUM, C): False,
    apply("mul", A, GATE): False,
    apply("silu", SUM): False,
    apply("hardswish", SUM): False,
    apply("add", C, apply("mul", B, GATE)): False,
    apply("max", apply("mul", A, B), 0.0): True,
    apply("swish", A, 0.5): False,
}
LEFT = (  # to float32
    A,
    apply("exp", A),
    apply("gelu", A),
    apply("add", A, 1e-5),  # subnormal
    apply("mul", A, 1e5),  # too large
    apply("add", apply("mul", A, B), C),  # may overflow though the result does not
    apply("swish", A, 2.0),
    apply("mul", apply("mul", A, A), 0.001),
)


@pytest.mark.parametrize("tree", SERVED, ids=str)
def test_served(tree: Expression) -> None:
    assert is_float16_safe(tree) and is_float16_safe(tree, exact=True) == SERVED[tree]


@pytest.mark.parametrize("tree", LEFT, ids=str)
def test_left_to_float32(tree: Expression) -> None:
    assert not is_float16_safe(tree)


@pytest.mark.skipif(not neon.computes_halves(), reason="this CPU does not compute in float16")
@pytest.mark.parametrize("tree", [apply("relu", SUM), apply("silu", SUM)], ids=str)
def test_nothing_is_converted(tree: Expression) -> None:
    isa = current()
    places = [
        TensorView.blocked(Ref(name), (1, 16, 5, 3), isa.block(F16), dtype=np.dtype(np.float16)) for name in "yab"
    ]
    (step,) = elementwise_steps(Processor(isa, 1), tree, places[0], places[1:], exact=False)
    text = loops.assembly(step.args["loops"].tile)
    assert re.search(r"fadd\s+v\d+\.8h", text) and not re.search(r"fcvt[nl]", text)
