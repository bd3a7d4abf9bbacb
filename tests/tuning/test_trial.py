"""Trials: runs that the tuner times, their data in places drawn anew, and the probe of the machine's speed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.machine.device import fingerprint
from cpuconv.conv.choice import model
from cpuconv.kernels.streams.probe import fma_peak, write_all
from cpuconv.memory.aligned import ALIGNMENT
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import Program
from cpuconv.tuning import speed_probe
from cpuconv.tuning.placement import MAX_RANGE, MIN_RANGE, cold_memory
from cpuconv.tuning.workload import workload

PROBLEM = ConvProblem(1, 64, 28, 28, 64, 3, 3, pads=(1, 1, 1, 1))


def candidates(problem: ConvProblem, solver: str) -> list[model.Ranked]:
    """The solver's, the model's favourite first."""
    return model.ranking(problem, solver)


def test_cold_weights_are_others_in_each_run() -> None:
    for name in ("direct", "winograd"):
        candidate = str(candidates(PROBLEM, name)[0].candidate)
        trial = workload.prepare(PROBLEM.key, candidate, "cold")
        assert trial.check() <= trial.limit  # of its own weights
        starts, context = [], trial.plan._contexts[None, None][0]
        for _ in range(10):
            trial.run()
            starts.append(context._addresses["w"])
        assert len({*starts}) == 10
        memory = cold_memory()
        first, last = memory.ctypes.data, memory.ctypes.data + memory.nbytes
        assert all(first <= start <= last - trial.weight.nbytes for start in starts)
        assert np.isfinite(trial.shared.out).all()


def test_trials_of_a_problem_read_and_write_the_same_memory() -> None:
    first, second = (
        workload.prepare(PROBLEM.key, str(candidates(PROBLEM, n)[0].candidate)) for n in ("direct", "im2col")
    )
    assert first.shared is second.shared


@pytest.mark.parametrize("name", ["direct", "im2col", "winograd", "fft"])
def test_trials_move_their_data(name: str) -> None:
    trial = workload.prepare(PROBLEM.key, str(candidates(PROBLEM, name)[0].candidate))
    trial.run()
    before, context = trial.shared.out.copy(), trial.plan._contexts[None, None][0]
    places = []
    for _ in range(20):
        trial.move()
        trial.shared.out[...] = np.nan
        trial.run()
        places.append((trial.shared.x.ctypes.data, trial.shared.out.ctypes.data, *context._addresses.values()))
        np.testing.assert_array_equal(trial.shared.out, before)
    if not trial.plan.workspace_bytes:
        places = [place[:-1] for place in places]
    for found in zip(*places, strict=True):
        assert len(set(found)) > 10
        assert MIN_RANGE / 2 < max(found) - min(found) <= MAX_RANGE
        assert not any(place % ALIGNMENT for place in found)
    assert trial.check() <= trial.limit


@pytest.mark.parametrize("caches", [None, {"L1d": 32 << 10}], ids=["here", "no second cache"])
def test_the_reference_is_of_known_length(caches: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if caches is not None:
        known = replace(fingerprint(), caches=tuple(caches.items()))
        monkeypatch.setattr(speed_probe, "fingerprint", lambda: known)
    monkeypatch.setattr(speed_probe, "_seconds", lambda run: speed_probe._FIRST_TURNS * 1e-6 / 2)
    run = speed_probe.speed_probe.__wrapped__(1)
    blocks = [block for _, block, _ in run.__self__._kept[0]]
    assert len(blocks) == (1 if caches else 2) or not dict(fingerprint().caches).get("L2")
    turns = [block[kernel.fields.index("turns")] for kernel, block in zip((fma_peak, write_all), blocks, strict=False)]
    assert sum(turns) * 1e-6 / 2 == pytest.approx(speed_probe.SECONDS)
    run()


def test_the_reference_writes_to_a_quarter_of_the_second_cache() -> None:
    """Which a shared core slows, as it does not the arithmetic."""
    part = speed_probe._write(1)
    size = dict(fingerprint().caches).get("L2")
    if part is None or size is None:
        assert part is size is None
        return
    buffer, seed = part.arrays
    assert 0.2 * size < buffer.nbytes <= 0.25 * size
    buffer[:], seed[:] = 0, 3
    Program([part.row(buffer.nbytes // part.tile.step)], 1).run()
    assert (buffer == 3).all()
