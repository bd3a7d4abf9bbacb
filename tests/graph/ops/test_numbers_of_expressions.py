"""Scales and offsets are arguments of elementwise kernels; bounds and slopes are constants."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.kernels.binding.steps import Ref, Step, micro_kernels
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.elementwise.driver import elementwise_steps
from cpuconv.kernels.elementwise.expression import Expression, Operand, apply, with_parameters
from cpuconv.network.running.recording import Recording
from cpuconv.problem.arrays import address
from support.graph import lowered

X = Operand(0)
VALUES = np.linspace(-3, 3, 40, dtype=np.float32)


def tree(scale: float, offset: float, bound: float) -> Expression:
    return apply("min", apply("add", apply("mul", X, scale), offset), bound)


def steps_of(expression: Expression) -> list[Step]:
    x, y = (TensorView(Ref(name), VALUES.shape, VALUES.strides) for name in "xy")
    return elementwise_steps(lowered.target(1), expression, y, [x])


def kernels(expression: Expression) -> set[object]:
    return {each.tile for step in steps_of(expression) for each in micro_kernels(step)}


def test_one_kernel_serves_all_scales_and_offsets():
    assert kernels(tree(0.5, 3, 2)) == kernels(tree(-0.25, 0, 2)) != kernels(tree(0.5, 3, 1))


@pytest.mark.parametrize("scale", [0.5, -0.25, 0.0, 1e300])  # the last is infinite as float32
def test_the_numbers_of_a_call_count(scale):
    out = np.empty_like(VALUES)
    Recording.of(steps_of(tree(scale, 1, 2)), 1).bind({"x": address(VALUES), "y": address(out)}).run()
    with np.errstate(over="ignore"):
        expected = np.minimum(VALUES.astype(np.float64) * scale + 1, 2).astype(np.float32)
    np.testing.assert_array_equal(out, expected)


def test_bounds_and_slopes_stay():
    made, numbers = with_parameters(apply("leaky_relu", apply("mul", X, 3), 0.1))
    assert repr(made) == "leaky_relu(mul(x0,p0),0.1)" and numbers == [3]
    made, numbers = with_parameters(apply("max", apply("mul", X, 3), 3))  # one number, which is a bound too
    assert repr(made) == "max(mul(x0,3.0),3.0)" and not numbers
    made, numbers = with_parameters(apply("max", apply("mul", X, 3), 0), every=True)
    assert repr(made) == "max(mul(x0,p0),p1)" and numbers == [3, 0]
