"""Many Python threads, one library."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cpuconv
from cpuconv.api import convolution
from cpuconv.conv.plan import Plan
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import Program
from cpuconv.runtime import threads as runtime_threads
from support import oracle

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
CALLERS = 8
ROUNDS = 12
PROBLEM = ConvProblem(1, 24, 18, 17, 40, 3, 3, pads=(1, 1, 1, 1), activation="relu")


def all_at_once(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Results of tasks started together."""
    barrier = threading.Barrier(len(tasks))

    def started(task: Callable[[], Any]) -> Any:
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(started, task) for task in tasks]]


@pytest.mark.parametrize("threads", sorted({1, oracle.THREADS}))
@pytest.mark.parametrize("algorithm", ["direct", "winograd", "im2col"])
def test_one_plan(algorithm, threads):
    """Each caller has its own input; its result is that of a lone caller, bit for bit, every time."""
    if algorithm not in {solver.name for solver in oracle.SOLVERS}:
        return
    problem = replace(PROBLEM, threads=threads, out_layout="NHWC", residual=True)
    given = [oracle.operands(problem, seed) for seed in range(CALLERS)]
    plan = oracle.plan(problem, given[0], algorithm)
    alone = [plan(each.x, residual=each.residual) for each in given]
    expected = reference.conv2d(given[1].x, given[0].w, given[0].bias, problem, given[1].residual)
    assert reference.relative_error(alone[1], expected) < 1e-4

    def caller(each: oracle.Operands) -> list[np.ndarray]:
        return [plan(each.x, residual=each.residual) for _ in range(ROUNDS)]

    for first, results in zip(alone, all_at_once([lambda e=each: caller(e) for each in given]), strict=True):
        for result in results:
            np.testing.assert_array_equal(result, first)


@pytest.mark.parametrize("threads", sorted({1, oracle.THREADS}))
def test_different_plans(threads):
    problems = [replace(oracle.home(solver), threads=threads) for solver in oracle.SOLVERS]
    given = [oracle.operands(problem) for problem in problems]
    plans = [
        oracle.plan(problem, each, solver.name)
        for problem, each, solver in zip(problems, given, oracle.SOLVERS, strict=True)
    ]
    alone = [plan(each.x) for plan, each in zip(plans, given, strict=True)]

    def caller(start: int) -> None:
        for step in range(ROUNDS):
            index = (start + step) % len(plans)
            np.testing.assert_array_equal(plans[index](given[index].x), alone[index])

    all_at_once([lambda start=start: caller(start) for start in range(CALLERS)])


def test_plans_made_at_once():
    """Kernels that nobody has compiled yet, wanted by all."""
    problem = ConvProblem(1, 21, 11, 13, 27, 2, 3, (1, 2), (1, 0, 1, 2), activation="tanh", threads=oracle.THREADS)
    given = oracle.operands(problem)
    results = all_at_once([lambda: oracle.plan(problem, given)(given.x)] * 4)
    expected = reference.conv2d(given.x, given.w, given.bias, problem)
    for result in results:
        assert reference.relative_error(result, expected) < 1e-5
        np.testing.assert_array_equal(result, results[0])


def test_conv2d_with_remembered_weights():
    """Each caller has a bias of its own: none sees another's."""
    w = oracle.normal((24, 16, 3, 3)) / 12
    w.flags.writeable = False
    x = oracle.normal((1, 16, 12, 12), 1)
    plain = cpuconv.conv2d(x, w, padding=1, strategy="heuristic", accuracy="exact")

    def caller(index: int) -> None:
        bias = np.full(24, 100 * index, np.float32)
        for _ in range(ROUNDS):
            y = cpuconv.conv2d(x, w, bias if index else None, padding=1, strategy="heuristic", accuracy="exact")
            np.testing.assert_allclose(y, plain + 100 * index, rtol=0, atol=1e-3)

    all_at_once([lambda index=index: caller(index) for index in range(CALLERS)])


@pytest.mark.parametrize("threads", sorted({1, oracle.THREADS}))
def test_contexts_are_reused(threads, monkeypatch):
    """One caller after another needs one context, however often it calls."""
    problem = replace(PROBLEM, threads=threads)
    given = oracle.operands(problem)
    plan = oracle.plan(problem, given, "winograd")
    made: list[object] = []  # programs, of which each context has one
    monkeypatch.setattr(sys.modules[Plan.__module__], "Program", lambda *words: made.append(words) or Program(*words))
    results = [plan(given.x) for _ in range(5)]
    assert made == []
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.usefixtures("default_threads")
def test_number_of_threads():
    most = runtime_threads.maximum_threads()
    assert cpuconv.get_num_threads() == most >= 1
    for n in {1, most, np.int64(1)}:
        cpuconv.set_num_threads(n)
        assert cpuconv.get_num_threads() == n
        assert cpuconv.plan((1, 1, 4, 4), np.ones((1, 1, 1, 1), np.float32)).problem.threads == n
    for n in (0, -1):
        with pytest.raises(ArgumentError, match=f"'n' must be 1 or more, not {n}"):
            cpuconv.set_num_threads(n)
    for n in (1.0, "1", True):
        with pytest.raises(ArgumentTypeError, match="'n' must be an integer"):
            cpuconv.set_num_threads(n)
    assert cpuconv.get_num_threads() == 1 or most > 1


@pytest.mark.usefixtures("default_threads")
def test_threads_above_the_cores_are_clamped_with_one_warning(monkeypatch):
    most = runtime_threads.maximum_threads()
    x, w = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 1, 1), np.float32)
    calls = (
        lambda: cpuconv.set_num_threads(most + 7),
        lambda: cpuconv.plan(x.shape, w, threads=most + 7),
        lambda: cpuconv.conv2d(x, w, threads=10**6),
        lambda: cpuconv.explain(x.shape, w.shape, threads=most + 1),
    )
    for call in calls:
        monkeypatch.setattr(runtime_threads, "_told_of_cores", False)
        with pytest.warns(CpuconvWarning, match=rf"threads are more than the cores .*: {most} run instead") as told:
            call()
            call()
        assert len(told) == 1 and told[0].filename == __file__
    assert cpuconv.get_num_threads() == most
    assert cpuconv.plan(x.shape, w, threads=10**6).problem.threads == most


@pytest.mark.usefixtures("default_threads")
def test_set_num_threads_reaches_remembered_plans(monkeypatch):
    made: list[int] = []
    original = convolution.Plan

    def counted(problem: ConvProblem, *rest: Any, **named: Any) -> convolution.Plan:
        made.append(problem.threads)
        return original(problem, *rest, **named)

    monkeypatch.setattr(convolution, "Plan", counted)
    w = oracle.normal((8, 8, 1, 1))
    w.flags.writeable = False
    x = oracle.normal((1, 8, 4, 4))
    for n in (oracle.THREADS, 1, oracle.THREADS):
        cpuconv.set_num_threads(n)
        cpuconv.conv2d(x, w, strategy="heuristic")
    assert made == sorted({oracle.THREADS, 1}, reverse=True)
