"""Weights remembered or packed again, biases that change, and numbers that are denormal or none."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
import layouts
from cpuconv.api.layer import Layer
from cpuconv.conv import session
from cpuconv.conv.caches.fingerprint import is_constant
from cpuconv.conv.choice import model, substitutes
from cpuconv.conv.session import Session
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from support import oracle
from support.example import EXPECTED, PROBLEM, RELU, W, X, close, conv
from support.strided import VIEWS, read_only


class Counted(Session):
    """A session that counts how often weights are packed and layers are made."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(limit, persistent=False)
        self.packed: list[Any] = []
        pack = self.weights.pack

        def counted(name: Any, form: Any, *rest: Any) -> np.ndarray:
            self.packed.append(form)
            return pack(name, form, *rest)

        self.weights.pack = counted  # type: ignore[method-assign]

    @property
    def layers(self) -> int:
        return sum(isinstance(value, Layer) for _, value in self.cache.items())


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The session of a test."""
    monkeypatch.setattr(session, "current", Counted())
    return session.current


KINDS = {**VIEWS, "read-only": read_only}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_any_kind_are_packed_once(here, kind):
    w = KINDS[kind](W)
    for _ in range(3):
        close(conv(w=w), EXPECTED)
    assert len(here.packed) == here.layers == 1
    close(conv(w=w, activation="relu"), RELU)  # another plan; the same weights, perhaps in another form
    close(conv(X[:1], w=w), EXPECTED[:1])
    assert len(here.packed) == len(set(here.packed)) <= here.layers == 3
    close(conv(w=KINDS[kind](2 * W)), 2 * EXPECTED)
    close(conv(w=w), EXPECTED)
    assert here.layers == 3


def test_equal_weights_are_packed_once(here):
    for w in (W.copy(), W.copy(), read_only(W)):
        close(conv(w=w), EXPECTED)
        close(cpuconv.plan(X.shape, w, padding=1, strategy="heuristic", threads=1)(X), EXPECTED)
    assert len(here.packed) == 1


@pytest.mark.parametrize("view", [lambda w: w.view(), lambda w: np.broadcast_to(w, w.shape), lambda w: w[::-1][::-1]])
def test_a_change_behind_a_read_only_view_counts_at_once(here, view):
    w = W.copy()
    v = view(w)
    v.flags.writeable = False
    close(conv(w=v), EXPECTED)
    w *= 2
    close(conv(w=v), 2 * EXPECTED)


@pytest.mark.parametrize("view", [lambda w: w, lambda w: w[:]], ids=["itself", "a view"])
def test_an_array_that_becomes_writable_is_read_again(here, view):
    w = W.copy()
    w.flags.writeable = False
    v = view(w)
    for factor in (1, 2, 4):  # read-only at each call
        close(conv(w=v), factor * EXPECTED)
        w.flags.writeable = True
        close(conv(w=v), factor * EXPECTED)
        w *= 2
        close(conv(w=v), 2 * factor * EXPECTED)
        w.flags.writeable = False


def test_what_no_call_can_notice_is_read_again_when_the_cache_is_cleared(here):
    w = W.copy()
    before = w.view()
    w.flags.writeable = False
    close(conv(w=w), EXPECTED)
    before *= 2
    cpuconv.clear_cache()
    close(conv(w=w), 2 * EXPECTED)
    close(conv(w=W), EXPECTED)  # what w was read as is not what it is


def test_which_arrays_are_read_once():
    w = read_only(W)
    assert is_constant(w) and is_constant(w[1:]) and is_constant(KINDS["bytes"](W))
    view = W.view()
    view.flags.writeable = False
    assert not any(map(is_constant, (W, view, np.broadcast_to(W, W.shape), np.from_dlpack(W))))


def test_arrays_that_are_read_once_are_not_held(here):
    w = read_only(W)
    conv(w=w)
    gone = weakref.ref(w)
    del w
    gc.collect()
    assert gone() is None
    close(conv(w=read_only(2 * W)), 2 * EXPECTED)  # perhaps at the same address


CHANGES = ["swap", "one", "scale", "zero", "read_only", "copy", "plan", "clear", "none"]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(CHANGES),
                          st.integers(0, 2**20)), min_size=1, max_size=12))  # fmt: skip
def test_any_sequence_of_changes(steps):
    """Two arrays of weights change in any way between calls; each call equals a plan made for it."""
    kept, session.current = session.current, Session(limit=1 << 20)
    try:
        arrays = [W.copy(), 2 * W]
        plans = []
        for change, number in steps:
            w = arrays[0]
            if change in ("one", "scale", "zero"):
                w.flags.writeable = True
            if change == "swap":
                arrays.reverse()
            elif change == "one":
                w.flat[number % w.size] += 1
            elif change == "scale":
                w *= 1.25
            elif change == "zero":
                w[number % len(w)] = 0
            elif change == "read_only":
                w.flags.writeable = False
            elif change == "copy":
                arrays[0] = w.copy()
            elif change == "plan":
                plan = cpuconv.plan(X.shape, w, padding=1, strategy="heuristic", threads=1)
                plans.append((plan, reference.conv2d(X, w, None, PROBLEM)))
            elif change == "clear":
                cpuconv.clear_cache()
            close(conv(w=arrays[0]), reference.conv2d(X, arrays[0], None, PROBLEM))
        for plan, expected in plans:
            close(plan(X), expected)
    finally:
        session.current = kept


def test_weights_that_always_change_are_not_remembered(here):
    sizes = []
    for factor in range(1, 30):
        close(conv(w=W * np.float32(factor)), factor * EXPECTED)
        sizes.append(here.cache.nbytes)
    assert len(here.packed) == 29
    assert len(set(sizes[5:])) == 1
    for _ in range(3):  # now they stay
        close(conv(w=W * np.float32(29)), 29 * EXPECTED)
    assert len(here.packed) == 30


def test_many_layers_of_one_shape_are_all_remembered(here):
    weights = [W * np.float32(factor) for factor in range(1, 21)]
    for _ in range(4):
        for factor, w in enumerate(weights, 1):
            close(conv(w=w), factor * EXPECTED)
    before = len(here.packed)
    for w in weights:
        conv(w=w)
    assert len(here.packed) == before


def test_what_is_remembered_is_bounded_by_bytes(here):
    conv(w=W)
    one = here.cache.nbytes
    cpuconv.clear_cache()
    assert len(here.cache) == here.cache.nbytes == 0
    cpuconv.set_cache_limit(3 * one)
    for activation in ("relu", "tanh", "silu", "gelu", "sigmoid"):
        for factor in (1, 2, 3):
            conv(w=W * np.float32(factor), activation=activation)
            assert here.cache.nbytes <= 3 * one
    packed = len(here.packed)
    conv(w=W * np.float32(3), activation="sigmoid")
    assert len(here.packed) == packed  # the latest is still there
    cpuconv.set_cache_limit(0)
    assert len(here.cache) == 0
    close(conv(w=W), EXPECTED)
    for wrong in (-1, 1.5, "1", None):
        with pytest.raises((ArgumentError, ArgumentTypeError), match="'limit' must be"):
            cpuconv.set_cache_limit(wrong)


def test_plans_share_packed_weights_while_they_live(here):
    shapes = [(1, 20, 8 + 8 * i, 24) for i in range(4)]
    plans = [cpuconv.plan(shape, W, padding=1, strategy="heuristic", algorithm="im2col") for shape in shapes]
    assert len(here.packed) == len({plan.packing for plan in plans})
    assert here.cache.nbytes == 0
    held = [weakref.ref(plan) for plan in plans]
    before = len(here.packed)
    del plans
    gc.collect()
    assert [plan() for plan in held] == [None] * 4
    cpuconv.plan(shapes[0], W, padding=1, strategy="heuristic", algorithm="im2col")
    assert len(here.packed) == before + 1


def test_weights_from_eight_threads(here):
    weights = [W * np.float32(factor) for factor in range(1, 5)]

    def work(first: int) -> None:
        for turn in range(40):
            factor = (first + turn) % 4 + 1
            close(conv(w=weights[factor - 1]), factor * EXPECTED)
            if turn == 20:
                cpuconv.clear_cache()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_bias_changes_with_remembered_weights(here):
    w, bias = read_only(W), np.arange(24, dtype=np.float32)
    close(conv(w=w, bias=bias), EXPECTED + bias[:, None, None])
    close(conv(w=w), EXPECTED)
    bias *= -2
    close(conv(w=w, bias=bias), EXPECTED + bias[:, None, None])
    close(conv(w=w, bias=None), EXPECTED)
    assert len(here.packed) == here.layers == 1
    with pytest.raises(ArgumentError, match=r"'bias' must be of shape \(24,\), not \(23,\)"):
        conv(w=w, bias=bias[:23])


@pytest.mark.parametrize("one", [1, np.int64(1), [1, 1], np.array([1, 1])], ids=str)
def test_arguments_of_any_type_are_remembered(here, one):
    for _ in range(2):
        close(conv(stride=one, padding=[[1, 1], [1, 1]], dilation=one), EXPECTED)
    assert len(here.packed) == here.layers == 1


def test_equal_arguments_of_another_type_are_refused_all_the_same(here):
    conv(stride=1, reproducible=False)
    for wrong in ({"stride": 1.0}, {"threads": True}, {"groups": 1.0}, {"reproducible": 0}):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            conv(**wrong)


def test_a_plan_keeps_its_own_weights_and_bias():
    w, bias = W.copy(), np.ones(24, np.float32)
    fixed = cpuconv.plan(X.shape, w, bias, padding=1, strategy="heuristic")
    w[...], bias[...] = np.nan, np.nan
    close(fixed(X), EXPECTED + 1)


def test_denormal_weights_are_zero():
    w = np.full(W.shape, 1e-40, np.float32)
    assert w[0, 0, 0, 0] > 0
    for algorithm in (item.candidate.solver.name for item in model.tuning_order(model.ranking(PROBLEM))):
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


@pytest.mark.parametrize("accuracy", ["standard", "fast"])
def test_not_finite_elsewhere(accuracy):
    """No crash; an image without them is untouched."""
    x = spoilt()
    x[1] = X[1]
    for item in model.tuning_order(model.ranking(PROBLEM)):
        if model.Limits(accuracy).admits_accuracy(item.candidate.accuracy):
            name = item.candidate.solver.name
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
    for strategy in model.STRATEGIES:
        made = cpuconv.plan((0, 20, 8, 12), W, padding=1, in_layout=layout, strategy=strategy, activation="sigmoid")
        assert made(x).shape == (0, 24, 8, 12)
    assert "0" in str(cpuconv.explain((0, 20, 8, 12), W.shape, padding=1))
    auto = cpuconv.plan((0, 20, 8, 12), W, in_layout="auto", out_layout="auto")
    assert auto.in_layout in layouts.NAMES


def test_a_choice_prefers_packed_weights_that_exist(here):
    """Of candidates that the model finds equally fast within 3%, the one whose weights need no packing."""
    problem = PROBLEM
    ranked = [each for each in model.ranking(problem) if each.candidate.accuracy != "fast"]
    best = model.Choice(ranked[0].candidate, "model")
    limits = model.Limits()
    assert substitutes.with_packed_weights(problem, limits, best, ()) is best
    first = ranked[0].candidate.packing(problem)
    near = [each for each in ranked if each.cost.estimate < 1.03 * ranked[0].cost.estimate]
    far = [each for each in ranked if each.cost.estimate > 1.03 * ranked[0].cost.estimate]
    for each in near:
        form = each.candidate.packing(problem)
        assert substitutes.with_packed_weights(problem, limits, best, {form, first}) is best
        chosen = substitutes.with_packed_weights(problem, limits, best, {form}).candidate
        assert chosen.packing(problem) == form
    forms = {each.candidate.packing(problem) for each in far} - {each.candidate.packing(problem) for each in near}
    assert forms and substitutes.with_packed_weights(problem, limits, best, forms) is best
    stored = model.Choice(ranked[0].candidate, "store")
    assert substitutes.with_packed_weights(problem, limits, stored, forms) is stored
    for each in near:  # reproducible: never another way to form sums
        chosen = substitutes.with_packed_weights(
            problem, model.Limits(reproducible=True), best, {each.candidate.packing(problem)}
        )
        assert chosen.candidate.rounding == best.candidate.rounding


def test_sizes_of_a_layer_share_packed_weights(here):
    for height in range(24, 56):
        x = oracle.normal((1, 20, height, 40))
        y = cpuconv.conv2d(x, W, padding=1, threads=1, strategy="heuristic")
        problem = ConvProblem(1, 20, height, 40, 24, 3, 3, pads=(1, 1, 1, 1))
        close(y, reference.conv2d(x, W, None, problem))
    assert here.layers == 32
    assert len(here.packed) == len(set(here.packed)) < 8
