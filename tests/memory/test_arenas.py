"""Arenas: no two runs have one at once, none is too small, and what nobody needs goes."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from cpuconv.memory import arenas
from cpuconv.memory.arenas import Arenas
from cpuconv.memory.large_pages import ADVICE, PAGE
from support.running.callers import at_once


@pytest.fixture
def pool() -> Arenas:
    return Arenas(1 << 30)


def test_the_next_run_takes_the_one_that_ran_last(pool):
    first, second = pool.take(100), pool.take(50)
    assert first is not second and len(pool) == 2 and pool.nbytes == 150
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(40) is second and pool.take(90) is first and len(pool) == 2


def test_one_that_is_large_enough_is_looked_for(pool):
    taken = [pool.take(size) for size in (3000, 100, 200)]
    for each in taken:
        pool.give_back(each)
    large = pool.take(2000)
    assert large is taken[0]
    assert {id(pool.take(1)), id(pool.take(1))} == {id(taken[1]), id(taken[2])}


def test_a_larger_one_takes_the_place_of_one_that_is_too_small(pool):
    sizes = [100, 200, 400, 300, 800]
    for size in sizes:
        arena = pool.take(size)
        assert arena.memory.nbytes >= size and len(pool) == 1
        pool.give_back(arena)
    del arena
    assert len(pool) == 1 and pool.nbytes == 800


def test_pinned_streams_keep_to_arenas_of_their_cores(pool, monkeypatch):
    def take(home: tuple[int, ...], size: int = 100) -> arenas.Arena:
        monkeypatch.setattr(arenas, "pinned_cores", lambda: home)
        return pool.take(size)

    first = take((0, 1))
    pool.give_back(first)
    second = take((2, 3))
    pool.give_back(second)
    assert second is not first and take((0, 1)) is first and take((2, 3)) is second
    pool.give_back(first)
    larger = take((0, 1), 2 * first.memory.nbytes)
    assert larger is not first and len({id(each) for each in (first, second, larger, take(()))}) == 4


def test_pinned_streams_in_turns_keep_their_arenas(monkeypatch):
    pool, found = Arenas(0), []
    for turn in range(600):
        monkeypatch.setattr(arenas, "pinned_cores", lambda turn=turn: (turn % 2,))
        found.append(pool.take(1 << 20))
        pool.give_back(found[-1])
    assert len({id(arena) for arena in found}) == len(pool) == 2
    pool.release()
    del found
    assert not len(pool)


@pytest.mark.skipif(ADVICE is None, reason="memory comes in pages of the system's size")
def test_larger_runs_find_the_pages_of_smaller_ones(pool):
    arena = pool.take(3 * PAGE)
    start = arena.address
    arena.memory[: 3 * PAGE] = 7
    pool.give_back(arena)
    larger = pool.take(5 * PAGE)
    assert larger.address == start and not start % PAGE and larger.memory[3 * PAGE - 1] == 7
    assert pool.nbytes == 5 * PAGE, "what is asked for ahead is not there yet"


def test_what_is_idle_is_bounded():
    for most, left in ((0, 1), (250, 3), (10_000, 8)):
        pool = Arenas(most)
        taken = [pool.take(100) for _ in range(8)]
        while taken:
            pool.give_back(taken.pop())
        assert len(pool) == left


def test_what_a_window_did_not_need_goes(pool):
    taken = [pool.take(10 * PAGE), pool.take(100)]
    while taken:
        pool.give_back(taken.pop())
    for _ in range(arenas._WINDOW):
        assert len(pool) == 2
        pool.give_back(pool.take(100))
    for _ in range(arenas._WINDOW):
        pool.give_back(pool.take(100))
    assert len(pool) == 1 and pool.nbytes <= 10 * PAGE
    for _ in range(2 * arenas._WINDOW):
        pool.give_back(pool.take(100))
    assert pool.nbytes == 100, "an arena for a size that is over"


def test_one_that_is_not_given_back_is_not_missed(pool):
    arena = pool.take(100)
    del arena
    assert not len(pool) and not pool.nbytes
    pool.give_back(pool.take(100))
    pool.release()
    assert not len(pool)


def test_no_two_runs_have_one_at_once(monkeypatch):
    monkeypatch.setattr(arenas, "_WINDOW", 5)
    pool, taken, lock = Arenas(2000), set(), threading.Lock()

    def run(at: int) -> None:
        rng = np.random.default_rng(at)
        for size in rng.integers(1, 4000, 300).tolist():
            arena = pool.take(size)
            with lock:
                assert id(arena) not in taken and arena.memory.nbytes >= size
                taken.add(id(arena))
            arena.memory[:size] = at
            assert (arena.memory[:size] == at).all()
            with lock:
                taken.remove(id(arena))
            pool.give_back(arena)

    at_once(8, run)
    assert not taken and 1 <= len(pool) <= 8


def test_memory_goes_with_the_pool_at_once():
    pool = Arenas()
    arena = pool.take(100)
    pool.give_back(arena)
    alive = weakref.ref(arena)
    del arena
    gc.collect()
    gc.disable()
    try:
        del pool
        assert alive() is None
    finally:
        gc.enable()


def test_changes_of_bytes_are_told(pool):
    before = pool.changes
    arena = pool.take(100)
    assert pool.changes > before
    pool.give_back(arena)
    before = pool.changes
    pool.give_back(pool.take(90))
    assert pool.changes == before
    pool.give_back(pool.take(110))
    assert pool.changes > before
    before = pool.changes
    del arena
    pool.release()
    assert pool.changes > before and not pool.nbytes
