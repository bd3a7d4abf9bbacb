"""Machine code in memory: a program's kernels live as long as the program, and older ones are freed."""

from __future__ import annotations

import collections
import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import cpuconv
from cpuconv.problem import reference
from cpuconv.runtime.code.cache import Code, Entries

CHANNELS = 8


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Entries, "_latest", collections.deque(maxlen=1))
    gc.collect()
    yield
    gc.collect()


def alive() -> list[Code]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Code]


def plan_of(width: int, weight: np.ndarray) -> cpuconv.Plan:
    """Of a width that makes tiles that no other width has, and an activation that no other test has."""
    shape = (1, CHANNELS, width, width)
    return cpuconv.plan(shape, weight, padding=1, algorithm="direct", threads=1, activation=("clip", -1e6, 1e6))


def test_a_plan_keeps_its_kernels() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32)
    plans = {width: plan_of(width, weight) for width in (3, 5, 7, 9)}
    gc.collect()
    for width, plan in plans.items():
        x = rng.standard_normal((1, CHANNELS, width, width), dtype=np.float32)
        expected = reference.conv2d(x, weight, None, plan.problem)
        np.testing.assert_allclose(plan(x), expected, atol=1e-5 * np.abs(expected).max())


def test_kernels_are_freed_with_the_last_plan_and_found_again() -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32)
    x = rng.standard_normal((1, CHANNELS, 11, 11), dtype=np.float32)
    plan_of(3, weight)  # from here on the process keeps what all plans use, such as the kernels of fingerprints
    before = {id(each): each for each in alive()}
    plan, second = plan_of(11, weight), plan_of(11, weight)
    codes = [weakref.ref(each) for each in alive() if id(each) not in before]
    assert codes
    expected = plan(x)
    del plan
    gc.collect()
    assert all(code() is not None for code in codes)  # the other plan has the same
    del second
    plan_of(5, weight)
    gc.collect()
    assert all(code() is None for code in codes)
    np.testing.assert_array_equal(plan_of(11, weight)(x), expected)


def test_memory_does_not_grow_with_the_shapes_met() -> None:
    weight = np.ones((CHANNELS, CHANNELS, 3, 3), np.float32)
    plan_of(3, weight)
    before = len(alive())
    for width in range(4, 30):
        plan_of(width, weight)
    assert len(alive()) <= before + 1
