"""Memory in large pages: what is asked for is there, apart from all else, and freed with its last user."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.memory.large_pages import ADVICE, CHUNK, PAGE, Pool, large
from cpuconv.problem.arrays import address

SIZES = st.lists(st.one_of(st.integers(0, 300), st.integers(CHUNK - 100, CHUNK + 100)), min_size=1, max_size=12)
ADVISED = pytest.mark.parametrize("advice", [ADVICE, None], ids=["advised", "plain"])


def memory(array: np.ndarray) -> Any:
    """What owns the memory of an array."""
    base: Any = array
    while getattr(base, "base", None) is not None:
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


@pytest.mark.parametrize("size", [0, 1, 65, PAGE // 2 - 1, PAGE // 2, PAGE, 3 * PAGE + 1])
@ADVISED
def test_bytes_are_as_many_as_asked_for_and_start_a_page(size, advice):
    """With large pages, where the system has them, and as where it has none."""
    got = large(size, advice)
    got[:] = 7
    assert got.shape == (size,) and got.dtype == np.uint8 and got.flags.c_contiguous
    assert address(got) % (PAGE if advice is not None and size >= PAGE // 2 else 64) == 0


def test_a_system_that_refuses_large_pages_gives_others():
    got = large(PAGE, 10_000)  # no advice has that number
    got[:] = 1
    assert got.sum() == PAGE


@given(SIZES)
def test_arrays_of_a_pool_lie_apart_and_in_order(sizes):
    pool = Pool()
    arrays = [pool.take(size) for size in sizes]
    for number, array in enumerate(arrays):
        array[:1], array[-1:] = number, number
    for number, (size, array) in enumerate(zip(sizes, arrays, strict=True)):
        assert array.shape == (size,) and (not size or address(array) % 64 == 0)
        assert (array[:1] == number).all() and (array[-1:] == number).all()
    for first, second in zip(arrays, arrays[1:], strict=False):
        if first.size and second.size and memory(first) is memory(second):
            assert address(second) == address(first) + -(-first.size // 64) * 64


@given(st.lists(st.tuples(st.integers(0, 7), SIZES), max_size=12))
def test_room_of_arrays_that_are_gone_is_given_again(turns):
    """Arrays live and go in any order: no two that live share a byte, and all that is free is one span."""
    pool, alive = Pool(None), {}
    for place, sizes in turns:
        alive[place] = [pool.take(size) for size in sizes]
        spans = sorted((address(each), each.size) for arrays in alive.values() for each in arrays if each.size)
        assert all(start + size <= other for (start, size), (other, _) in pairwise(spans))
    alive.clear()
    pool.take(1)
    assert len(pool._chunks) == 1 and pool._chunks[0].free == [(64, CHUNK)]


def test_a_pool_that_is_used_for_long_takes_no_more_memory():
    """Where one array of many stays, those after it take the room of those that went."""
    pool, kept = Pool(), []
    for number in range(200):
        passing = [pool.take(CHUNK // 8) for _ in range(4)]
        if number % 10 == 0:
            kept.append(pool.take(64))
        del passing
    assert len(pool._chunks) == 1


@ADVISED
def test_memory_of_a_pool_is_freed_with_its_last_array(advice):
    pool = Pool(advice)
    arrays = [pool.take(1000) for _ in range(3)]
    alive = weakref.ref(memory(arrays[0]))
    del pool, arrays[:2]
    gc.collect()
    assert alive() is not None
    arrays.clear()
    gc.collect()
    assert alive() is None
