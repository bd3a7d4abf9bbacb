"""Every part of a row is done once, whichever threads run when, and nobody waits for a thread that has not begun."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import launch, thread_pool, threads, work_stealing
from cpuconv.runtime.thread_pool import ASLEEP, IDLE
from support import oracle
from support.example import BLOCKED
from support.running.sharing import cut_finely
from support.running.turns import Stage

ROWS, BOARD, MOST = 1 << 20, 1 << 16, 1 << 12  # addresses on the stage
TURNS = 6  # rows of a caller
COUNTS = st.integers(1, 5)


class Log:
    """What kernels are called for; a call begins with the row's entry and ends with its negative."""

    def __init__(self) -> None:
        self.done: dict[int, list[int]] = {}
        self.working: set[tuple[int, int]] = set()
        self.last: dict[tuple[int, int], int] = {}

    def __call__(self, entry: int, worker: int, before: int, part: int, parts: int) -> None:
        me = abs(entry), worker
        if entry < 0:
            self.working.remove(me)
            self.done.setdefault(-entry, []).append(part)
            return
        assert me not in self.working, "two threads are one worker"
        assert before == self.last.get(me, -1) and 0 <= part < parts
        self.last[me] = part
        self.working.add(me)

    def end(self, entry: int, parts: int) -> None:
        """The row is done, all of it, and nobody is at it."""
        assert not [me for me in self.working if me[0] == entry]
        assert sorted(self.done.get(entry, ())) == list(range(parts))


def place(stage: Stage, row: int, workers: int) -> None:
    """A new row on the stage."""
    for index, value in enumerate(work_stealing.new_row(workers)):
        stage.memory[row + 8 * index] = int(value)
    for worker in range(workers):
        stage.memory[row + (work_stealing.FIRST_WORKER + worker) * work_stealing.LINE_BYTES + 8 * work_stealing.ROW] = (
            row
        )


def line(row: int, worker: int) -> int:
    return row + (work_stealing.FIRST_WORKER + worker) * work_stealing.LINE_BYTES


@given(seed=st.integers(0, 2**32), workers=COUNTS, each=st.integers(1, 9), switch=st.sampled_from((0.1, 0.5, 1.0)))
@settings(max_examples=60)
def test_every_part_is_done_once(seed, workers, each, switch):
    """Some workers begin late, or never."""
    rng, log = random.Random(seed), Log()
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(patch, rng, switch, log)
        place(stage, ROWS, workers)
        stage._switch = 0.0
        work_stealing.begin(ROWS, 1, 0, each)
        stage._switch = switch
        there = sorted(rng.sample(range(workers), rng.randint(1, workers)))
        stage.play([stage.start(work_stealing.work, line(ROWS, worker)) for worker in there])
    log.end(1, each * workers)
    assert len(log.done) == 1


@given(
    seed=st.integers(0, 2**32),
    callers=st.integers(1, 3),
    threads_=st.integers(0, 3),
    workers=COUNTS,
    each=st.integers(1, 3),
    switch=st.sampled_from((0.05, 0.3, 1.0)),
    pauses=st.sampled_from((0, 1, 3)),
)
@settings(max_examples=300)
def test_callers_and_helpers(seed, callers, threads_, workers, each, switch, pauses):
    """Several callers, a few rows each, on one board: no row ends early, no request is lost, nobody sleeps for ever."""
    rng, log = random.Random(seed), Log()
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(patch, rng, switch, log)
        stage.memory[BOARD + 8 * thread_pool.THREADS] = threads_
        stage.memory[BOARD + 8 * thread_pool.IDLE_PAUSES] = stage.memory[BOARD + 8 * thread_pool.END_PAUSES] = pauses

        def call(row: int, caller: int) -> None:
            for turn in range(TURNS):
                entry = 1 + TURNS * caller + turn
                work_stealing.begin(row, entry, 0, each)
                found = thread_pool.ask(BOARD, row)
                assert 1 <= found <= min(workers, 1 + threads_)
                work_stealing.work(line(row, 0))
                thread_pool.collect(BOARD, row, found)
                log.end(entry, each * workers)

        for index in range(threads_):
            mail = BOARD + (1 + index) * work_stealing.LINE_BYTES
            stage.memory[mail + 8 * thread_pool.BOARD] = BOARD
            stage.start(thread_pool._help, mail)
        calling = []
        for caller in range(callers):
            row = ROWS + caller * MOST
            place(stage, row, workers)
            calling.append(stage.start(call, row, caller))
        stage.play(calling)
    assert len(log.done) == TURNS * callers


@pytest.mark.skipif(not thread_pool.available(), reason="threads are those of Numba's layer here")
def test_idle_threads_fall_asleep():
    made, end = thread_pool.Helpers(2), time.monotonic() + 10
    mails = [(1 + thread) * work_stealing.LINE for thread in range(2)]
    try:
        while set(made.board[mails]) != {ASLEEP} and time.monotonic() < end:
            time.sleep(0.001)
        assert set(made.board[mails]) == {ASLEEP}
    finally:
        assert made.close(os.getpid())


@given(units=st.integers(1, 60), parts=st.integers(1, 90))
def test_the_unit_before(units, parts):
    """It is of the part before, never of another worker's."""
    for before in range(-1, parts):
        done = range(units * before // parts, units * (before + 1) // parts) if before >= 0 else ()
        assert last_unit.py_func(units, before, parts) == (done[-1] if done else -1)


def test_runs_are_cut_as_evenly_as_can_be():
    for workers in range(1, 8):
        for parts in range(1, 40):
            runs = [work_stealing.run.py_func(parts, worker, workers) for worker in range(workers)]
            sizes = [(run >> 32) - (run & 0xFFFFFFFF) for run in runs]
            assert sum(sizes) == parts and max(sizes) - min(sizes) <= 1


@pytest.mark.usefixtures("small_work_is_shared")
class TestKernels:
    """Real kernels, in parts that are done in any order by any worker."""

    def plans(self, solver):
        """A blocked problem, and the solver's own."""
        home = oracle.home(solver)
        for problem in (home, replace(home, n=2, in_layout=BLOCKED, out_layout=BLOCKED, residual=True)):
            problem = replace(problem, threads=3)
            given = oracle.operands(problem)
            candidates = list(solver.candidates(problem, current()))
            for params in candidates[:: max(1, len(candidates) // 3)]:
                workspaces = oracle.Spoilt()
                yield oracle.plan(problem, given, Candidate(solver, params), workspaces=workspaces), given, workspaces

    @pytest.mark.parametrize("solver", oracle.SOLVERS, ids=lambda solver: solver.name)
    @cut_finely(3)
    def test_any_cut_and_any_order_give_the_same_bits(self, solver):
        rng = random.Random(7)
        for made, operands, workspaces in self.plans(solver):
            expected = oracle.run(made, operands)
            context = made._contexts[None, None][0]
            y = np.empty_like(expected)
            for parts in (1, 2, 3, 5, 8, 29):
                made(operands.x, residual=operands.residual, out=y)  # tells the blocks where y is
                if made.workspace_bytes:
                    workspaces.give_back(workspaces.take(made.workspace_bytes))  # the same, all NaN again
                y[...] = np.nan
                for entry, block, _ in context._program._table.tolist():
                    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 5)(entry)
                    before = {}
                    for part in rng.sample(range(parts), parts):
                        worker = rng.randrange(made.problem.threads)
                        call(None, worker, before.get(worker, -1), part, parts, block)
                        before[worker] = part
                np.testing.assert_array_equal(y, expected, err_msg=f"{made.algorithm} in {parts} parts")

    @pytest.mark.skipif(not thread_pool.available(), reason="threads are those of Numba's layer here")
    def test_a_thread_that_never_comes_is_not_waited_for(self, monkeypatch):
        """Its mailbox is empty again after the call."""
        board = thread_pool.new_board(1)
        nobody = SimpleNamespace(address=board.ctypes.data, parallel_for=0, guard=contextlib.nullcontext())
        monkeypatch.setattr(launch, "pool", lambda: nobody)
        monkeypatch.setattr(threads, "maximum_threads", lambda: 2)
        problem = ConvProblem(1, 24, 18, 17, 40, 3, 3, pads=(1, 1, 1, 1))
        operands = oracle.operands(problem)
        expected = oracle.plan(problem, operands, "direct")(operands.x)
        made = oracle.plan(replace(problem, threads=2), operands, "direct")
        for _ in range(3):
            np.testing.assert_array_equal(made(operands.x), expected)
            assert board[work_stealing.LINE] == IDLE
