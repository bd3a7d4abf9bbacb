"""The time left of a warmup: it holds within a third once the first batch is done, on a simulated clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from autotune.tuning import progress
from autotune.tuning.effort import EFFORTS
from autotune.tuning.progress import Progress, ProgressEstimate

FIRST_BATCH = 4
SOME = 3.0  # seconds that a wrong estimate may always be off by


class Simulated:
    """A warmup whose compiles and timings move the clock; `told` has each moment's time and estimate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.told: list[tuple[float, Progress]] = []
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.now))

    def run(self, batches: Sequence[int], start: float, driver: float, compile_: float, timing: float) -> None:
        """Candidates take `compile_` seconds and problems `timing`, each half to one and a half times as long. The
        first candidate also waits `start` seconds for workers, and every tenth of the first batch compiles a driver."""
        draw = random.Random(1)
        estimate = ProgressEstimate(sum(batches), EFFORTS["quick"], 2, lambda at: self.told.append((self.now, at)))
        for number, problems in enumerate(batches):
            tasks = [draw.choice((6, 8, 10)) for _ in range(problems)]
            estimate.compiling(problems, sum(tasks))
            for task in range(sum(tasks)):
                self.now += (start if number == task == 0 else 0.0) + compile_ * draw.uniform(0.5, 1.5)
                self.now += driver if number == 0 and task % 10 == 0 else 0.0
                estimate.did_compile()
            estimate.timing()
            begun = self.now
            for _ in range(3 * problems):  # visits
                self.now += timing / 3 * draw.uniform(0.5, 1.5)
                estimate.tell("time", "visited")
            for _ in range(problems):
                estimate.did_time("done", 1.0, (self.now - begun) / problems)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    return Simulated(monkeypatch)


@pytest.mark.parametrize("batches", [(4, 8, 15), (4, 8, 16, 24, 24), (4, 4)])
@pytest.mark.parametrize("compile_, timing", [(0.15, 1.4), (0.5, 1.7), (0.1, 1.2), (1.0, 1.2)])
def test_from_the_fifth_layer_on_it_holds_within_a_third(
    simulated: Simulated, batches: tuple[int, ...], compile_: float, timing: float
) -> None:
    simulated.run(batches, start=20.0, driver=4.0 * compile_, compile_=compile_, timing=timing)
    checked = [(now, at.left) for now, at in simulated.told if at.done >= FIRST_BATCH]
    assert len(checked) > 10
    for now, left in checked:
        real = simulated.now - now
        assert abs(left - real) <= max(real / 3, SOME), (now, left, real)


def test_it_falls_while_a_batch_is_timed_and_ends_at_nothing(simulated: Simulated) -> None:
    simulated.run((4, 20), start=0.0, driver=0.0, compile_=0.1, timing=1.5)
    timed = [at.left for _, at in simulated.told if at.stage == "time" and not at.ended][-60:]
    assert timed == sorted(timed, reverse=True) and timed[0] > 20.0 > 8.0 > timed[-1]
    assert (simulated.told[-1][1].left, simulated.told[-1][1].fraction) == (0.0, 1.0)


def test_the_start_of_workers_is_no_rate(simulated: Simulated) -> None:
    simulated.run((4, 8), start=25.0, driver=0.0, compile_=0.2, timing=1.2)
    assert max(at.left for now, at in simulated.told) < 2.5 * (simulated.now - 25.0)


def test_problems_of_other_processes_are_not_counted(simulated: Simulated) -> None:
    estimate = ProgressEstimate(3, EFFORTS["quick"], 2, lambda at: None)
    before = estimate.left()
    estimate.skip()
    assert estimate.left() == pytest.approx(before * 2 / 3)
