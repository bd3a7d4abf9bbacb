"""Places in memory: drawn at random, on cache lines, in rooms that grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.problem.arrays import address
from cpuconv.solvers.shared.base import ALIGNMENT
from cpuconv.tuning.places import LEAST, MOST, TIMES, Room


@pytest.mark.parametrize(("size", "spare"), [(64, LEAST), (1000, LEAST), (1 << 20, TIMES << 20), (10 << 20, MOST)])
def test_places_are_drawn_from_the_whole_room(size: int, spare: int) -> None:
    room = Room()
    starts = [address(place) for place in (room.place(size) for _ in range(100)) if place.nbytes == size]
    assert len(starts) == 100
    assert not any(start % ALIGNMENT for start in starts)
    assert 0.8 * spare < max(starts) - min(starts) < spare
    assert len({start >> 12 for start in starts}) > 30


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=20))
def test_copies_are_whole_and_apart_from_what_they_are_of(sizes: list[int]) -> None:
    room = Room()
    for size in sizes:
        array = np.arange(size, dtype=np.float32).reshape(1, size)
        copy = room.copy(array)
        np.testing.assert_array_equal(copy, array)
        copy += 1
        np.testing.assert_array_equal(array[0], np.arange(size))


def test_a_room_grows_and_what_it_held_stays_sound() -> None:
    room = Room()
    first = room.copy(np.ones(10, np.float32))
    room.place(5 * MOST)[:] = 0
    assert first.sum() == 10  # its memory is kept as long as it is used
