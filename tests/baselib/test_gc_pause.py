"""The collector rests while it is asked to, and is left as it was."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from baselib import gc_pause
from baselib.gc_pause import MAX_MOVED, PAUSED_THRESHOLD, gc_paused


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    """Thresholds of this test, whatever the process has."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_nothing_is_collected_meanwhile(thresholds) -> None:
    found = []
    gc.callbacks.append(lambda phase, info: found.append(info["generation"]))
    try:
        gc.collect()
        found.clear()
        with gc_paused():
            kept = [[each] for each in range(PAUSED_THRESHOLD // 2)]
            assert found == []
        assert gc.get_threshold() == thresholds
        kept += [[each] for each in range(2000)]
        assert found
    finally:
        gc.callbacks.pop()


def test_what_others_leave_is_collected_all_the_same() -> None:
    found = []
    gc.callbacks.append(lambda phase, info: found.append(info["generation"]))
    try:
        with gc_paused():
            kept = [[each] for each in range(2 * PAUSED_THRESHOLD)]
        assert len(kept) == 2 * PAUSED_THRESHOLD and found
    finally:
        gc.callbacks.pop()


def test_it_may_rest_within_itself(thresholds) -> None:
    with gc_paused():
        with gc_paused():
            pass
        assert gc.get_threshold()[0] == PAUSED_THRESHOLD
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_was_made_is_among_the_oldest(frozen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody has frozen objects; and once many were moved so, all are looked through."""
    asked: list[str] = []
    doing = {name: lambda name=name: asked.append(name) for name in ("freeze", "unfreeze", "collect")}
    counted = Mock(return_value=frozen)
    telling = {"get_freeze_count": counted, "get_count": lambda: (MAX_MOVED // 2, 0, 0)}
    monkeypatch.setattr(gc_pause, "gc", SimpleNamespace(**{**vars(gc), **doing, **telling}))
    monkeypatch.setattr(gc_pause, "_moved", 0)
    monkeypatch.setattr(gc_pause, "_others_freeze", False)
    for _ in range(3):
        with gc_paused(), gc_paused():
            pass
    moved = ["freeze", "unfreeze"]
    assert asked == ([] if frozen else [*moved, *moved, "collect"])
    assert counted.call_count == (1 if frozen else 3)  # they are counted one by one: millions, never again


def test_an_error_ends_it(thresholds) -> None:
    with pytest.raises(ValueError, match="wrong"), gc_paused():
        raise ValueError("wrong")
    assert gc.get_threshold() == thresholds


def test_threads_may_do_so_at_once(thresholds) -> None:
    def rest(times: int) -> None:
        for _ in range(times):
            with gc_paused():
                assert gc.get_threshold()[0] == PAUSED_THRESHOLD

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(rest, [200] * 4)) == [None] * 4
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("stated", [0, PAUSED_THRESHOLD, 1_000_000])
def test_a_collector_that_is_off_or_rarer_stays_so(stated: int) -> None:
    gc.set_threshold(stated)
    with gc_paused():
        assert gc.get_threshold()[0] == stated
    assert gc.get_threshold()[0] == stated


def test_what_is_set_meanwhile_stays() -> None:
    with gc_paused():
        gc.set_threshold(123)
    assert gc.get_threshold()[0] == 123


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("mine", [False, True])
def test_in_a_child_it_rests_for_the_thread_that_is_there(mine: bool, thresholds) -> None:
    entered, leave = Event(), Event()

    def rest() -> None:
        with gc_paused():
            entered.set()
            leave.wait()

    other = Thread(target=rest)
    other.start()
    entered.wait()
    with gc_paused() if mine else contextlib.nullcontext():
        child = os.fork()
        if not child:
            during = gc.get_threshold()[0]
            with contextlib.nullcontext() if mine else gc_paused():
                pass
            os._exit(0 if during == (PAUSED_THRESHOLD if mine else 700) else 1)
    leave.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.get_threshold() == thresholds
