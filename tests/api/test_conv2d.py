"""conv2d and plan as users call them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.errors import ArgumentError
from cpuconv.problem import reference
from cpuconv.problem.arguments import problem_from_arguments
from cpuconv.problem.problem import ConvProblem
from support import oracle
from support.example import BLOCKED, X, close, conv

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
PLANES = [1, 2, 3, 5, 7, 8, 12, 17, 23]
LAYOUTS = st.sampled_from(["NCHW", "NCHW", BLOCKED, "NHWC", "NCHW44", "NCHW8c"])


@st.composite
def paddings(draw: Any, stride: tuple[int, int]) -> Any:
    size = st.integers(0, 3)
    names = ["valid", "same_upper", "same_lower"] + ["same"] * (stride == (1, 1))
    return draw(
        st.one_of(
            size,
            st.tuples(size, size),
            st.tuples(st.tuples(size, size), st.tuples(size, size)),
            st.sampled_from(names),
        )
    )


@st.composite
def calls(draw: Any) -> tuple[ConvProblem, dict[str, Any]]:
    """A problem and the arguments of conv2d that state it."""
    one = st.sampled_from
    groups = draw(one([1, 1, 1, 2, 3, 7]))
    cg, kg = draw(st.integers(1, 70 // groups)), draw(st.integers(1, 70 // groups))
    if groups > 1 and draw(st.booleans()):
        cg = kg = draw(one([1, 2, 4]))
    r, s = draw(one([(1, 1), (3, 3), (3, 3), (5, 5), (2, 3), (1, 5), (4, 1)]))
    steps = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1)])
    stride, dilation = draw(steps), draw(steps)
    shape = (draw(st.integers(1, 3)), cg * groups, draw(one(PLANES)), draw(one(PLANES)))
    arguments = {
        "stride": draw(one([stride, list(stride)])) if stride[0] != stride[1] else stride[0],
        "padding": draw(paddings(stride)),
        "dilation": dilation,
        "groups": groups,
        "activation": draw(one([None, None, "relu", ("clip", -1, 0.5), "sigmoid"])),
        "in_layout": draw(LAYOUTS),
        "out_layout": draw(LAYOUTS),
        "threads": draw(one([1, oracle.THREADS])),
    }
    try:
        problem = problem_from_arguments(shape, (kg * groups, cg, r, s), residual=draw(st.booleans()), **arguments)
    except ArgumentError:  # a kernel larger than the padded input
        assume(False)
    return problem, arguments


@settings(max_examples=60)
@given(calls(), st.booleans(), st.integers(0, 99))
def test_against_the_oracle(call, with_bias, seed):
    problem, arguments = call
    have = oracle.operands(problem, seed, with_bias)
    before = have.x.copy(), have.w.copy()
    y = cpuconv.conv2d(have.x, have.w, have.bias, residual=have.residual, strategy="heuristic", **arguments)
    expected = reference.conv2d(have.x, have.w, have.bias, problem, have.residual)
    assert y.flags.c_contiguous and y.flags.writeable
    oracle.expect(y, expected, "standard", problem.out_layout, problem.k, arguments)
    np.testing.assert_array_equal(have.x, before[0])
    np.testing.assert_array_equal(have.w, before[1])


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_against_torch():
    torch = pytest.importorskip("torch")
    for padding in ("same", "valid", 2):
        for stride, dilation, groups in ((1, 2, 1), (1, 1, 4)) if padding == "same" else ((2, 1, 1), (1, 1, 20)):
            w = oracle.normal((20, 20 // groups, 4, 3), 1) / 13
            expected = torch.nn.functional.conv2d(
                torch.from_numpy(X).double(), torch.from_numpy(w).double(), None, stride, padding, dilation, groups
            )
            close(conv(X, w, stride=stride, padding=padding, dilation=dilation, groups=groups), expected.numpy())
