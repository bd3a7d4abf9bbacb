"""The soak: that a short one finds nothing, and that what is broken on purpose is found."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpuconv
from bench import soak
from bench.soak import STUCK, Soak, main
from bench.soak_networks import NETWORKS, PICTURES
from cpuconv.memory import arenas, large_pages
from cpuconv.network import interpret
from cpuconv.network.running import execution_context
from support.running import processes

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell what memory is taken"),
    pytest.mark.filterwarnings("ignore:.*reference evaluator:cpuconv.CpuconvWarning"),
]
_LEAKING = """
import json
import numpy as np
from bench.soak import Soak
from bench.soak_networks import NETWORKS
from cpuconv.network.running import context_pool

leaked = []
# A pool that does not give out again what it gets.
context_pool.ContextPool.give_back = lambda self, one: leaked.append((one, np.ones(1 << 16)))
print(json.dumps(Soak([network for network in NETWORKS if network.name == "lookup"]).run(2.0, 2).problems))
"""
LOOKUP = [network for network in NETWORKS if network.name == "lookup"]


@pytest.fixture(autouse=True)
def _older_objects_are_left_alone() -> Iterator[None]:
    """A soak collects garbage again and again: among its own objects, not all those of the tests before it."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts another function in the place of a model's `run`, once the soak is ready; gives its problems."""

    def problems(run: Any, seconds: float = 0.4, **options: Any) -> list[str]:
        ready = Soak(LOOKUP)
        usual = cpuconv.Model.run
        monkeypatch.setattr(cpuconv.Model, "run", lambda self, feed, **given: run(usual, self, feed, **given))
        return ready.run(seconds, 2, **options).problems

    return problems


def test_a_short_soak_finds_nothing() -> None:
    ready = Soak()
    ready.growth = 1.0  # in so short a time nothing has settled
    report = ready.run(4.0, 3)
    assert report.problems == []
    assert {kind for kind, count in report.runs.items() if count} == {"plain", "failing", "stopped", "bad"}
    of_pictures = Soak(PICTURES[:1]).run(0.5, 2)
    assert of_pictures.problems == [] and {"plain", "failing", "bad"} <= of_pictures.runs.keys()
    assert report.points >= 3  # the outputs, an arena, a node that a reference computes
    assert execution_context.run is interpret.run and arenas.large is large_pages.large  # nothing fails any longer


def test_a_leak_is_found() -> None:
    """In a process of its own: of a large one the system may take back what older tests hold, as fast as it leaks."""
    problems = json.loads(processes.run("-c", _LEAKING).stdout.splitlines()[-1])
    assert len(problems) == 1 and problems[0].startswith("memory grew from")


def test_other_bits_are_found(broken: Any) -> None:
    def run(usual: Any, model: Any, feed: Any, **options: Any) -> Any:
        return {name: array + np.float32(1e-7) for name, array in usual(model, feed, **options).items()}

    problems = broken(run)
    assert problems and all("output 'y' differs" in each for each in problems)


def test_an_exception_that_nobody_made_is_found(broken: Any) -> None:
    def run(usual: Any, model: Any, feed: Any, **options: Any) -> Any:
        raise cpuconv.SourceError("out of the blue")

    problems = broken(run)
    assert any("plain: SourceError: out of the blue" in each for each in problems)
    assert any("a run failed of itself" in each for each in problems)


def test_a_bad_feed_that_is_taken_is_found(broken: Any) -> None:
    def run(usual: Any, model: Any, feed: Any, **options: Any) -> Any:
        return usual(model, {"words": np.minimum(feed["words"], 0)} if feed["words"].max() >= 5000 else feed, **options)

    problems = broken(run, 2.0)
    assert problems and all("bad: AssertionError: a run was not refused" in each for each in problems)


def test_a_run_that_does_not_end_is_found(broken: Any) -> None:
    never = threading.Event()

    def run(usual: Any, model: Any, feed: Any, **options: Any) -> Any:
        never.wait()
        return usual(model, feed, **options)

    try:
        assert STUCK in broken(run, 0.2, patience=0.05)
    finally:
        never.set()


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(soak, "Soak", lambda networks, seed: Soak(LOOKUP, seed))
    monkeypatch.setattr(Soak, "growth", 1.0)
    assert main(["--minutes", "0.01", "--threads", "2", "--seed", "3"]) == 0
    assert capsys.readouterr().out.startswith("runs: ")
    monkeypatch.setattr(Soak, "growth", -1.0)
    assert main(["--minutes", "0.01", "--threads", "2"]) == 1
    assert "PROBLEM (1 times): memory grew" in capsys.readouterr().out
