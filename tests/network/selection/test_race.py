"""Races of a network's plans: who wins is stored and followed, and nobody who is not clearly faster."""

from __future__ import annotations

import time

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from autotune.cli.main import main  # noqa: E402
from autotune.cli.options import INTERRUPTED, OK  # noqa: E402
from autotune.machine.device import fingerprint  # noqa: E402
from autotune.tuning.effort import EFFORTS  # noqa: E402
from cpuconv.network.selection.planning import PLANS  # noqa: E402
from cpuconv.tuning import network_race  # noqa: E402
from cpuconv.tuning.network_race import Race, Run, race_networks  # noqa: E402
from support.graphs import parse  # noqa: E402

PLAIN = "g (float[N,20,9,9] x) => (float[N,20,9,9] y) { y = Sigmoid(x) }"  # or in blocks, with copies around it
ALONE = "g (float[1,16,9,9] x) => (float[1,16,9,9] y) { y = Softmax<axis = 3>(x) }"
TUNED = "g (float[2,20,3,3] x) => (float[2,4] y) { a = Sigmoid(x) b = Flatten(a) y = MatMul(b, w) }"


@pytest.fixture
def source(tmp_path) -> str:
    path = tmp_path / "net.onnx"
    onnx.save(parse(PLAIN), path)
    return str(path)


@pytest.fixture
def slow(monkeypatch):
    """Makes some plans slow."""
    programs: dict[int, str] = {}
    prepare, run = Race.prepare, Run.run

    def named(self: Race, key: str, name: str, weights: str = "warm") -> Run:
        programs[id(self._program(name))] = name
        return prepare(self, key, name, weights)

    def slow(*names: str) -> None:
        def delayed(self: Run) -> None:
            run(self)
            if programs.get(id(self._program)) in names:
                time.sleep(5e-3)

        monkeypatch.setattr(Run, "run", delayed)

    monkeypatch.setattr(Race, "prepare", named)
    return slow


def test_the_winner_is_stored_and_followed(source, our_store, slow):
    slow(*(name for name in PLANS if name != "blocked"))
    (told,) = race_networks(source, 1, our_store)
    assert (told.threads, told.plan) == (1, "blocked") and told.plans > 1 and told.gain > 2
    made = cpuconv.compile(source, threads=1, input_shapes={"x": (1, 20, 9, 9)}).explain()
    assert (made.plan, made.plan_decided_by) == ("blocked", "raced")
    assert list(race_networks(source, 1, our_store, again=False)) == []
    assert len(list(race_networks(source, 1, our_store, batches=(1, 3), again=False))) == 1  # of the other size


def test_ties_go_to_the_models_plan(source, our_store, monkeypatch):
    monkeypatch.setattr(Run, "run", lambda self: time.sleep(2e-3))
    monkeypatch.setattr(Run, "check", lambda self: 0.0)  # nothing is computed
    (told,) = race_networks(source, 1, our_store)
    assert told.plan == "cheapest" and told.gain == 1


def test_a_plan_whose_results_are_wrong_does_not_win(source, our_store, slow, monkeypatch):
    slow(*(name for name in PLANS if name != "blocked"))
    monkeypatch.setattr(Run, "check", lambda self: 1.0)
    assert list(race_networks(source, 1, our_store)) == []
    assert cpuconv.compile(source, threads=1, input_shapes={"x": (1, 20, 9, 9)}).explain().plan_decided_by == "model"


@pytest.mark.parametrize("afforded, plans", [(1, []), (2, [2])])
def test_a_race_of_slow_programs_ends(source, our_store, monkeypatch, afforded, plans):
    """As many plans run as the patience lets; one alone is no race."""
    seconds = network_race.MAX_DURATION * EFFORTS["quick"].seconds / network_race._RUNS / (afforded + 0.5)
    monkeypatch.setattr(network_race, "clock", lambda run: seconds)
    assert [told.plans for told in race_networks(source, 1, our_store)] == plans


def test_a_network_of_one_plan_is_not_raced(tmp_path, our_store):
    onnx.save(parse(ALONE), tmp_path / "alone.onnx")
    assert list(race_networks(str(tmp_path / "alone.onnx"), 1, our_store)) == []
    assert our_store.tuned(fingerprint().key) == []


def warm(path: str, monkeypatch, capsys) -> tuple[int, str]:
    monkeypatch.setenv("AUTOTUNE_WORKLOAD", "cpuconv.tuning.workload:workload")
    code = main(["warmup", path, "--threads", "1", "--no-roofs", "--json"])
    return code, capsys.readouterr().err


def test_warmup_races_what_it_has_tuned(tmp_path, our_store, monkeypatch, capsys):
    """An interrupted race leaves what was tuned, and the same command goes on; where nothing is new, there is none."""
    model = parse(TUNED, w=np.ones((180, 4), np.float32))
    onnx.save(model, tmp_path / "net.onnx")

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(network_race.search, "profile", interrupted)
        code, said = warm(str(tmp_path / "net.onnx"), patch, capsys)
    assert code == INTERRUPTED and "interrupted" in said
    tuned = our_store.tuned(fingerprint().key)
    assert len(tuned) == 1 and not tuned[0][0].startswith("network")
    code, said = warm(str(tmp_path / "net.onnx"), monkeypatch, capsys)
    assert code == OK and "net, 1 thread: plan " in said and " is the fastest" in said
    code, said = warm(str(tmp_path / "net.onnx"), monkeypatch, capsys)
    assert code == OK and "is the fastest" not in said
