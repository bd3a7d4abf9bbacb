"""Places in memory: drawn at random, on cache lines, in arenas that grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.machine.device import fingerprint
from cpuconv.memory.aligned import ALIGNMENT
from cpuconv.problem.arrays import address
from cpuconv.tuning import placement
from cpuconv.tuning.placement import MAX_RANGE, MIN_RANGE, TIMES, Arena, cold_memory, cold_weights


@pytest.mark.parametrize(
    ("size", "spare"), [(64, MIN_RANGE), (1000, MIN_RANGE), (1 << 20, TIMES << 20), (10 << 20, MAX_RANGE)]
)
def test_places_are_drawn_from_the_whole_arena(size: int, spare: int) -> None:
    arena = Arena()
    starts = [address(place) for place in (arena.place(size) for _ in range(100)) if place.nbytes == size]
    assert len(starts) == 100
    assert not any(start % ALIGNMENT for start in starts)
    assert 0.8 * spare < max(starts) - min(starts) < spare
    assert len({start >> 12 for start in starts}) > 30


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=20))
def test_copies_are_whole_and_apart_from_what_they_are_of(sizes: list[int]) -> None:
    arena = Arena()
    for size in sizes:
        array = np.arange(size, dtype=np.float32).reshape(1, size)
        copy = arena.copy(array)
        np.testing.assert_array_equal(copy, array)
        copy += 1
        np.testing.assert_array_equal(array[0], np.arange(size))


def test_an_arena_grows_and_what_it_held_stays_sound() -> None:
    arena = Arena()
    first = arena.copy(np.ones(10, np.float32))
    arena.place(5 * MAX_RANGE)[:] = 0
    assert first.sum() == 10  # its memory is kept as long as it is used


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose last cache holds a megabyte."""
    known = replace(fingerprint(), caches=(("L2", 1 << 20),))
    monkeypatch.setattr(placement, "fingerprint", lambda: known)
    cold_memory.cache_clear()
    yield
    cold_memory.cache_clear()


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize("size", [64, 1000, 300_000, 8 << 20])
def test_cold_weights_come_round_after_more_than_the_caches_hold(size: int) -> None:
    weights = cold_weights(size)
    starts = [address(each) for each in (next(weights) for _ in range(2 * placement.OVER_CACHE * (1 << 20) // 64))]
    assert not any(start % ALIGNMENT for start in starts)
    period = starts.index(starts[0], 1)
    assert starts[period:] == starts[: len(starts) - period]
    assert len({*starts[:period]}) == period
    assert period * size >= 3 << 20 or size > cold_memory().nbytes
    one = next(weights)
    assert one.nbytes == size and np.isfinite(one).all()
    assert np.abs(one[one != 0]).min() > np.finfo(np.float32).tiny  # denormals are slow


def test_cold_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "COLD_LIMIT", 1 << 20)
    cold_memory.cache_clear()
    assert cold_memory().nbytes <= 1 << 20
    cold_memory.cache_clear()
