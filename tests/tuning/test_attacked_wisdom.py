"""Pinned wisdom that an attacker changed: plans take a candidate that computes the problem, or none of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.store.store import Store
from autotune.wisdom import exchange
from autotune.wisdom.document import Wisdom, render
from autotune.wisdom.tiers import PINNED
from autotune.workload import ADMITS
from cpuconv.conv import session
from cpuconv.conv.choice import model, tuned
from cpuconv.conv.choice.model import Limits
from cpuconv.problem.problem import ConvProblem
from cpuconv.tuning.workload import workload
from support.tuner.fuzz import fuzz_wisdom
from support.tuner.stored import DEVICE, timed

PROBLEM = ConvProblem(1, 8, 12, 12, 8, 3, 3, pads=(1, 1, 1, 1))


@pytest.fixture
def content(our_store: Store) -> bytes:
    """A file with rows as the tuner writes them: timed ones of several solvers, a rejected one, a stale one."""
    names = [str(each.candidate) for each in model.tuning_order(model.ranking(PROBLEM))[:12]]
    rows = [timed(PROBLEM, name, 1e-5 * (1 + at), spread=1e-6) for at, name in enumerate(names)]
    our_store.put([*rows, rows[-1]._replace(state="rejected", reason="wrong: 1 over 2")])
    our_store.put([rows[0]._replace(candidate=names[-1], sources="old", score=1e-9)])
    our_store.finish(DEVICE, PROBLEM.key, effort="quick", sources=workload.sources)
    return render(exchange.from_store(our_store)).encode()


def test_plans_are_right(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned, limits, checked = tmp_path / "pinned", Limits(), set()
    monkeypatch.setenv(PINNED, str(pinned))
    known = {each.candidate for each in model.ranking(PROBLEM)}

    def look(changed: bytes, found: Wisdom) -> str | None:
        """Say what is wrong with the selected candidate; each is checked once."""
        pinned.write_bytes(changed)
        session.current.forget_choices()
        choice = tuned.lookup(PROBLEM, limits)
        if choice is None or choice.candidate in checked:
            return None
        checked.add(choice.candidate)
        trial = workload.prepare(PROBLEM.key, str(choice.candidate))
        admitted = choice.candidate in known and choice.candidate.accuracy in ADMITS[limits.accuracy]
        return None if admitted and trial.check() <= trial.limit else f"{choice.candidate} is selected"

    tally = fuzz_wisdom(content, 1000, seed=4, look=look)
    assert (tally.wrong, tally.executed) == ([], []) and tally.taken > 5 and checked
