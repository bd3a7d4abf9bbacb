"""sin and cos against float64 over the whole range of float32."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.functions.table import FUNCTIONS
from cpuconv.graph import ops
from cpuconv.isa import current
from cpuconv.kernels.elementwise.expression import Expression, Operand, apply
from support.graph import lowered

LANES = current().lanes
X = Operand(0)
SNAKE = apply("add", X, apply("div", apply("mul", apply("sin", X), apply("sin", X)), 1.7))


def computed(tree: Expression, x: np.ndarray) -> np.ndarray:
    node = ops.TABLE["Elementwise"].node(["x"], ["y"], expression=tree)
    (y,) = lowered.run_offer(node, [x], lowered.offers(node, [x])[0])
    return y


def points() -> np.ndarray:
    """Any float32, the closest to multiples of π/2, and both sides of the bound between the reductions."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 0x7F800000, 100_000, np.uint32).view(np.float32)
    multiples = np.geomspace(1, 2.0**45, 50_000).round() * (np.pi / 2)
    ranges = [rng.uniform(0, 4.0**power, 20_000) for power in (0, 2, 4, 10, 20)]
    close = [16367173 * 2.0**72, 12438944 * 2.0**103, 12438944 * 2.0**104]  # sin or cos below 5e-8
    special = [0, 1e-45, 1e-39, 2.0**40, np.finfo(np.float32).max]
    found = np.concatenate([patterns, multiples, *ranges, close, special]).astype(np.float32)
    return np.concatenate([found, -found])


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_error_is_below_two_ulp(name):
    x = points()
    got, expected = computed(apply(name, X), x), FUNCTIONS[name].meaning(x.astype(np.float64))
    ulps = np.abs(got - expected) / np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    assert ulps.max() <= 2, f"{ulps.max():.2f} ulp at {x[ulps.argmax()]!r}"
    zeros = x == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_infinities_and_nan_give_nan(name):
    assert np.isnan(computed(apply(name, X), np.array([np.inf, -np.inf, np.nan], np.float32))).all()


@pytest.mark.parametrize("size", [1, LANES - 1, 9 * LANES + 3])
def test_far_lanes_do_not_change_near_lanes(size):
    x = np.linspace(-9, 9, size).astype(np.float32)
    near = computed(SNAKE, x)
    np.testing.assert_allclose(near, SNAKE.evaluate([x.astype(np.float64)]), atol=2e-6)
    for place in range(0, size, 5):
        mixed = x.copy()
        mixed[place] = -1e30
        np.testing.assert_allclose(computed(apply("sin", X), mixed), np.sin(mixed.astype(np.float64)), rtol=3e-7)
        np.testing.assert_array_equal(np.delete(computed(SNAKE, mixed), place), np.delete(near, place))
