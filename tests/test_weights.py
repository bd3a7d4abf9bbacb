"""Weights remembered or packed again, biases that change, and numbers that are denormal or none."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from example import EXPECTED, PROBLEM, RELU, W, X, close, conv

import cpuconv
import layouts
from cpuconv import api, reference, select
from cpuconv.errors import ArgumentError
from cpuconv.plan import Plan


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans that conv2d makes, in order."""
    plans: list[Any] = []

    def counted(*arguments: Any) -> Plan:
        plans.append(Plan(*arguments))
        return plans[-1]

    monkeypatch.setattr(api, "Plan", counted)
    return plans


def test_read_only_weights_are_packed_once(made):
    w = read_only(W)
    for _ in range(3):
        close(conv(w=w), EXPECTED)
    assert len(made) == 1
    close(conv(w=w, activation="relu"), RELU)  # other arguments: another plan
    close(conv(X[:1], w=w), EXPECTED[:1])
    close(conv(w=w, residual=EXPECTED.astype(np.float32)), 2 * EXPECTED)
    assert len(made) == 4
    other = read_only(2 * W)
    close(conv(w=other), 2 * EXPECTED)
    close(conv(w=w), EXPECTED)
    assert len(made) == 5


def test_remembered_weights_are_let_go(made):
    w = read_only(W)
    before = len(api._remembered)
    conv(w=w)
    conv(w=w, activation="relu")
    assert len(api._remembered) == before + 2
    plans = [weakref.ref(plan) for plan in made]
    made.clear()
    del w
    gc.collect()
    assert len(api._remembered) == before
    assert [plan() for plan in plans] == [None, None]


def test_bias_changes_with_remembered_weights(made):
    w, bias = read_only(W), np.arange(24, dtype=np.float32)
    close(conv(w=w, bias=bias), EXPECTED + bias[:, None, None])
    close(conv(w=w), EXPECTED)
    bias *= -2
    close(conv(w=w, bias=bias), EXPECTED + bias[:, None, None])
    close(conv(w=w, bias=None), EXPECTED)
    assert len(made) == 1
    with pytest.raises(ArgumentError, match=r"'bias' must be of shape \(24,\), not \(23,\)"):
        conv(w=w, bias=bias[:23])


def test_lists_for_arguments():
    w = read_only(W)
    for _ in range(2):
        close(conv(w=w, stride=[1, 1], padding=[[1, 1], [1, 1]], dilation=[1, 1]), EXPECTED)


def test_writable_weights_are_packed_every_time(made):
    w = W.copy()
    close(conv(w=w), EXPECTED)
    w *= 3
    close(conv(w=w), 3 * EXPECTED)
    assert len(made) == 2


def test_a_plan_keeps_its_own_weights_and_bias():
    w, bias = W.copy(), np.ones(24, np.float32)
    fixed = cpuconv.plan(X.shape, w, bias, padding=1, strategy="heuristic")
    w[...], bias[...] = np.nan, np.nan
    close(fixed(X), EXPECTED + 1)


def test_denormal_weights_are_zero():
    w = np.full(W.shape, 1e-40, np.float32)
    assert w[0, 0, 0, 0] > 0
    for algorithm in (item.candidate.solver.NAME for item in select.spread(select.ranking(PROBLEM))):
        y = cpuconv.plan(X.shape, w, padding=1, strategy="heuristic", algorithm=algorithm)(X * 1e30)
        assert not y.any(), algorithm


def test_signed_weights_at_the_edge_of_normal():
    w = W.copy()
    w[:, 0] = np.finfo(np.float32).tiny * np.sign(w[:, 0])
    x = np.zeros_like(X)
    x[:, 0] = 1e38
    expected = reference.conv2d(x, w, None, PROBLEM)
    close(conv(x, w, accuracy="exact"), expected)
    assert np.abs(expected).max() > 0.1


def spoilt() -> np.ndarray:
    x = X.copy()
    x[0, 3, 2, 2], x[0, 5, 7, 11], x[1, 0, 0, 0], x[1, 7, 4, 4] = np.nan, np.inf, -np.inf, 3e38
    return x


def test_not_finite_exact():
    x = spoilt()
    expected = reference.conv2d(x, W, None, PROBLEM)
    assert np.isnan(expected).any() and np.isinf(expected).any() and np.isfinite(expected).any()
    for activation in (None, "relu", "relu6"):
        want = reference.conv2d(x, W, None, PROBLEM) if activation is None else None
        y = conv(x, accuracy="exact", activation=activation)
        if want is None:
            with np.errstate(invalid="ignore"):
                want = np.minimum(np.maximum(expected, 0), 6 if activation == "relu6" else np.inf)
        assert reference.relative_error(y, want) <= 1e-5


@pytest.mark.parametrize("accuracy", ["standard", "fast"])
def test_not_finite_elsewhere(accuracy):
    """No crash; an image without them is untouched."""
    x = spoilt()
    x[1] = X[1]
    for item in select.spread(select.ranking(PROBLEM)):
        if select.Limits(accuracy).admits_accuracy(item.candidate.accuracy):
            name = item.candidate.solver.NAME
            made = cpuconv.plan(x.shape, W, padding=1, strategy="heuristic", accuracy=accuracy, algorithm=name)
            y = made(x)
            assert np.isnan(y[0]).any(), name
            if name != "fft":  # a block of tiles may span images, a tile may not
                close(y[1], EXPECTED[1])


@pytest.mark.parametrize("layout", layouts.NAMES)
def test_empty_batch(layout):
    x = np.empty(layouts.get(layout).shape(0, 20, 8, 12), np.float32)
    y = cpuconv.conv2d(x, W, np.ones(24, np.float32), padding=1, in_layout=layout, out_layout=layout)
    assert y.shape == layouts.get(layout).shape(0, 24, 8, 12) and y.dtype == np.float32
    for strategy in select.STRATEGIES:
        made = cpuconv.plan((0, 20, 8, 12), W, padding=1, in_layout=layout, strategy=strategy, activation="sigmoid")
        assert made(x).shape == (0, 24, 8, 12)
    assert "0" in str(cpuconv.explain((0, 20, 8, 12), W.shape, padding=1))
    auto = cpuconv.plan((0, 20, 8, 12), W, in_layout="auto", out_layout="auto")
    assert auto.in_layout in layouts.NAMES


def test_remembered_plans_are_bounded(made, monkeypatch):
    monkeypatch.setattr(api, "_MOST_REMEMBERED", len(api._remembered) + 2)
    w = read_only(W)
    for activation in ("relu", "tanh", "silu", "gelu"):
        conv(w=w, activation=activation)
        assert len(api._remembered) <= api._MOST_REMEMBERED
    conv(w=w, activation="gelu")
    assert len(made) == 4  # the latest is still there
