"""Each emitted activation against float64 over the whole range of float32."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
import layouts
from cpuconv.functions.table import FUNCTIONS
from cpuconv.isa import current
from cpuconv.kernels.elementwise.functions import EMITTERS
from cpuconv.kernels.products.closed import closed_tile
from cpuconv.problem import activation as activations
from cpuconv.problem.problem import ConvProblem
from support import oracle

SCALARS = {
    "clip": [(-0.5, 0.75), (0.0, float("inf"))],
    "leaky_relu": [(0.01,), (-2.0,), (0.0,)],
    "elu": [(0.5,)],
    "swish": [(2.0,)],
}
ALL = [(name, *scalars) for name in activations.names() for scalars in SCALARS.get(name, [()])]
SATURATING = ("sigmoid", "tanh", "hardsigmoid", "relu6")
ABSOLUTE, RELATIVE = 4e-7, 2e-6
BLOCKED = layouts.blocked(current().lanes).name


def values() -> np.ndarray:
    """Magnitudes over all of float32, dense where the functions bend, with infinities and NaN."""
    tiny, huge = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    magnitudes = np.concatenate([np.geomspace(tiny, huge, 700), np.linspace(0, 20, 1001), np.linspace(80, 120, 81)])
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, huge, -huge, tiny, -tiny, 3.0, -3.0, 6.0]
    found = np.concatenate([magnitudes, -magnitudes, special]).astype(np.float32)
    return np.concatenate([found, np.zeros(-found.size % 64, np.float32)])


def emitted(x: np.ndarray, activation: tuple, algorithm: str = "pointwise") -> np.ndarray:
    """The activation of x through a 1x1 convolution with weight 1."""
    one = np.ones((1, 1, 1, 1), np.float32)
    shape = (1, 1, 64, x.size // 64)
    made = cpuconv.plan(shape, one, activation=activation, strategy="heuristic", algorithm=algorithm, threads=1)
    return made(x.reshape(shape)).ravel()


def assert_close(y: np.ndarray, expected: np.ndarray, scale: np.ndarray) -> None:
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(y[infinite], expected[infinite])
    finite = np.isfinite(expected)
    assert np.isfinite(y[finite]).all()
    error = np.abs(y[finite] - expected[finite])
    allowed = ABSOLUTE * np.maximum(1, scale[finite]) + RELATIVE * np.abs(expected[finite])
    worst = (error - allowed).argmax()
    assert error[worst] <= allowed[worst], f"{error[worst]:.3g} where {expected[finite][worst]:.6g} is expected"


@pytest.mark.parametrize("activation", ALL, ids=lambda a: activations.to_text(a))
def test_whole_range(activation):
    x = values()
    y = emitted(x, activation)
    with np.errstate(all="ignore"):
        expected = activations.apply(x.astype(np.float64), activation).astype(np.float32).astype(np.float64)
    if activation[0] in (
        "silu",
        "swish",
        "hardswish",
        "gelu",
        "gelu_tanh",
    ):  # x times a small error of a bounded factor
        negative_infinity = np.isneginf(x)
        x, y, expected = x[~negative_infinity], y[~negative_infinity], expected[~negative_infinity]
        # Far out on the negative side the factor's own absolute error is multiplied: there the limit is checked below.
        far = x < -30
        x, y, expected = x[~far], y[~far], expected[~far]
    assert_close(y, expected, np.where(np.isfinite(x) & (np.abs(x) < 30), np.abs(x), 1))
    assert np.isnan(y[np.isnan(x)]).all()


@pytest.mark.parametrize("name", ["silu", "sigmoid", "tanh"])
def test_results_rounded_to_float16(name):
    """For every float16: within 1e-4 of the result and a rounding."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = np.where(np.isinf(x), np.float16(0), x).reshape(1, 1, 256, 256)
    y = cpuconv.conv2d(x, np.ones((1, 1, 1, 1), np.float16), activation=name, strategy="heuristic", threads=1)
    assert y.dtype == np.float16
    with np.errstate(all="ignore"):
        expected = activations.apply(x.astype(np.float64), (name,))
    allowed = (1e-4 + 2.0**-11) * np.abs(expected) + 2.0**-24
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    assert (np.abs(y - expected) <= allowed)[~np.isnan(x)].all()
    assert y[0, 0, 0, 0] == activations.apply(np.zeros(1), (name,))[0]


@pytest.mark.parametrize("name", ["silu", "hardswish", "gelu", "gelu_tanh"])
def test_gates_close(name):
    """What gates its input lets nothing through from the far negative side, and everything from the positive."""
    x = np.repeat(-np.geomspace(30, 1e30, 64).astype(np.float32), 2)
    x[::2] *= -1
    y = emitted(x, (name,))
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y[::2], x[::2], rtol=1e-6)
    assert np.abs(y[1::2]).max() <= 1e-5


@pytest.mark.parametrize("name", SATURATING)
def test_saturates_within_its_range(name):
    lo, hi = {"sigmoid": (0, 1), "tanh": (-1, 1), "hardsigmoid": (0, 1), "relu6": (0, 6)}[name]
    x = values()
    y = emitted(x, (name,))
    finite = y[~np.isnan(x)]
    assert finite.min() >= lo and finite.max() <= hi
    assert emitted(np.full(64, np.inf, np.float32), (name,))[0] == hi
    assert emitted(np.full(64, -np.inf, np.float32), (name,))[0] == pytest.approx(lo, abs=1e-37)


@pytest.mark.parametrize("name", ["tanh", "gelu", "gelu_tanh", "silu"])
def test_small_values(name):
    """Absolutely right close to zero, and zero at zero."""
    x = np.concatenate([np.geomspace(1e-38, 1e-2, 127), [0.0]]).astype(np.float32)
    y = emitted(x, (name,))
    expected = activations.apply(x.astype(np.float64), (name,))
    assert np.abs(y - expected).max() <= 1.5e-7
    assert y[-1] == 0


@pytest.mark.parametrize("activation", [("sigmoid",), ("clip", 0.25, 2.0), ("hardsigmoid",)], ids=lambda a: a[0])
@pytest.mark.parametrize("layout", layouts.NAMES)
def test_tails_stay_zero(activation, layout):
    """Activations that are not 0 at 0 leave the channels that fill up a block at 0."""
    problem = ConvProblem(2, 5, 3, 4, 19, 1, 1, activation=activation, out_layout=layout)
    oracle.check(problem, "pointwise")


def test_what_is_no_formula_is_emitted():
    assert EMITTERS.keys() == {name for name, function in FUNCTIONS.items() if function.formula is None}


def test_names_and_tuples():
    x = np.linspace(-8, 8, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    one = np.ones((1, 1, 1, 1), np.float32)
    for name in ("relu6", ("clip", 0, 6), ["clip", 0.0, 6.0]):
        y = cpuconv.conv2d(x, one, activation=name, strategy="heuristic")
        np.testing.assert_array_equal(y, np.clip(x, 0, 6))


def test_networks_fuse_what_the_closed_set_computes():
    fused = {name for name in activations.names() if activations.is_fused(name)}
    assert fused == {"relu", "relu6", "clip", *closed_tile.HELD, *closed_tile.CALLED}
