"""More workers than this machine has cores: results are those of one worker, to the last bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.choice.target import Target
from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.network.compiling import compiled
from cpuconv.network.running.building import build
from cpuconv.network.running.packed import Packed
from cpuconv.network.running.recording import Recording
from cpuconv.reading.onnx_reader import read
from cpuconv.runtime import thread_pool, threads
from support import oracle
from support.graph.branches import branches, slowed
from support.graph.random_networks import known_networks
from support.graphs import programs_of
from support.running.sharing import cut_finely

WORKERS = (3, 7, 16)
pytestmark = pytest.mark.usefixtures("small_work_is_shared", "crowd")


@pytest.fixture(scope="module")
def crowd() -> Iterator[None]:
    """A thread for every worker, on however few cores, and parts of work of any size."""
    if not thread_pool.available():
        pytest.skip("threads of our own need to sleep on a word")
    with pytest.MonkeyPatch.context() as patch, cut_finely():
        made = thread_pool.Helpers(max(WORKERS) - 1)
        patch.setattr(threads, "_pool", made)
        yield
        made.close(os.getpid())


@pytest.mark.parametrize("solver", oracle.SOLVERS, ids=lambda solver: solver.name)
def test_a_convolution(solver):
    home = oracle.home(solver)
    for problem in (home, replace(home, n=3)):
        found = list(solver.candidates(problem, current()))
        given = oracle.operands(problem)
        for params in found[:: max(1, len(found) // 2)]:
            alone = oracle.plan(problem, given, Candidate(solver, params))(given.x)
            for count in WORKERS:
                many = oracle.plan(replace(problem, threads=count), given, Candidate(solver, params))
                np.testing.assert_array_equal(many(given.x), alone, err_msg=f"{params} on {count}")


@settings(max_examples=12)
@given(drawn=known_networks, count=st.sampled_from(WORKERS))
def test_a_network(drawn, count):
    """Planned for many workers and run by them, or by one."""
    model, feed = drawn
    made = compiled(read(model), Target(current(), count, "heuristic"), {})
    many = {name: array.copy() for name, array in made.run(feed).items()}
    executable = programs_of(made).last.executable
    for segment in executable.segments:
        if isinstance(segment, Recording):
            segment.threads = 1
    executable.release()  # what is bound to many workers
    for name, array in made.run(feed).items():
        np.testing.assert_array_equal(array, many[name], err_msg=name)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("count", [2, *WORKERS])
def test_branches(n, count):
    """Operators that share a join, and the same ones one after another."""
    x = np.random.default_rng(1).standard_normal((n, 20, 14, 14), np.float32)
    found = []
    for network_plan in (branches(n, count), slowed(branches(n, count))):
        made = build(network_plan, Target(current(), count, "heuristic"), Packed())
        outputs = [np.full([int(size) for size in each.shape], np.nan, np.float32) for each in made.outputs.values()]
        made.run([x], outputs)
        found.append(outputs)
        assert any(len(each) > 1 for each in made.groups) == (not found[:-1])
    for together, apart in zip(*found, strict=True):
        np.testing.assert_array_equal(together, apart)
