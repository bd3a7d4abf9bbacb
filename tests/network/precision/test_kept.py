"""What one try of precisions leaves to the next: packed weights, errors and times of operators."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import TABLE
from cpuconv.isa import current
from cpuconv.network.definition import Definition
from cpuconv.network.precision.errors import relative_rms
from cpuconv.network.precision.sample_groups import SampleGroup
from cpuconv.network.precision.search import Rounding
from cpuconv.network.precision.trials import Measured
from cpuconv.network.running.packed import Packed
from cpuconv.network.saved.program import Settings
from cpuconv.network.sizes.prepared import Rewriting
from cpuconv.quantizing.errors import RelativeError

CHANNELS, FLOAT = 128, np.dtype(np.float32)
SHAPE = (1, CHANNELS, 28, 28)


def graph(last: str) -> Graph:
    """Two convolutions, and another end."""
    rng = np.random.default_rng(0)
    weights = {f"w{at}": rng.standard_normal((CHANNELS, CHANNELS, 1, 1)).astype(np.float32) / 11 for at in range(2)}
    nodes = (
        TABLE["Conv"].node(("x", "w0"), ("a",)),
        TABLE["Relu"].node(("a",), ("b",)),
        TABLE["Conv"].node(("b", "w1"), ("c",)),
        TABLE[last].node(("c",), ("y",)),
    )
    return Graph(("x",), ("y",), nodes, weights, {"x": Value(SHAPE, FLOAT)})


def measured(last: str, other: Measured | None = None, count: int = 1, **more: float) -> Measured:
    target = Target(current(), 1, "heuristic")
    definition = Definition(graph(last), {}, Settings.of(target, Rewriting()), None, None)
    samples = [{"x": np.random.default_rng(1 + at).standard_normal(SHAPE).astype(np.float32)} for at in range(count)]
    return Measured(definition, target, samples, relative_rms, lambda *state: None, other, **more)


def test_operators_that_two_forms_share_are_measured_once(monkeypatch):
    first = measured("Relu")
    if not first.count:
        pytest.skip("bfloat16 is not faster on this CPU, by the models")
    first.correct()
    errors, programs = first.errors(), []
    results, timed = SampleGroup.results, SampleGroup.beyond_models
    monkeypatch.setattr(SampleGroup, "results", lambda *given: programs.append("run") or results(*given))
    monkeypatch.setattr(SampleGroup, "beyond_models", lambda *given: programs.append("timed") or timed(*given))
    same = measured("Relu", first)
    assert programs == ["run"]  # of the network itself
    same.correct()
    assert same.errors() == errors and programs == ["run"]
    assert same.operators.solved([0.0] * same.count) == first.operators.solved([0.0] * first.count)
    other = measured("Tanh", first)
    names = {other.operators.named(number) for number in range(other.count)}
    new = len(names - {first.operators.named(number) for number in range(first.count)})
    programs.clear()
    assert len(other.errors()) == other.count and new <= programs.count("run") <= 2 * new


def test_no_sample_runs_after_one_whose_error_is_above_the_tolerance(monkeypatch):
    exact, runs = measured("Relu", count=5), []
    if not exact.count:
        pytest.skip("bfloat16 is not faster on this CPU, by the models")
    run, every = SampleGroup._run, Rounding(range(exact.count))
    monkeypatch.setattr(SampleGroup, "_run", lambda *given: runs.append(given) or run(*given))
    errors, whole = exact.errors(), exact.error(every)
    assert len(runs) == 4 * exact.count + 5  # single operators are compared on four samples
    limited = measured("Relu", count=5, tolerance=0.1 * min(errors))
    runs.clear()
    assert all(0.1 * min(errors) < got <= wanted for got, wanted in zip(limited.errors(), errors, strict=True))
    assert 0.1 * whole < limited.error(every) <= whole
    assert len(runs) == exact.count + 1
    # An operator above the tolerance does not round while later ones are measured.
    alone = [exact._judged(exact.right[:4], exact._prefix(Rounding([at])))[0][0] for at in range(exact.count)]
    assert limited.errors() == alone


def test_constants_stay_as_far_as_they_fit():
    made = []

    def pack(array):
        def make():
            made.append(array)
            return array.copy()

        return make

    arrays = [np.full(100, at, np.float32) for at in range(3)]
    packed = Packed(keeps=2 * arrays[0].nbytes)
    for _ in range(2):
        for array in arrays:
            packed.get(array, "form", pack(array))
        gc.collect()
    assert [int(array[0]) for array in made] == [0, 1, 2, 2]
    assert len(packed) == 2
    alone = Packed()
    alone.get(arrays[0], "another form", pack(arrays[0]))
    gc.collect()
    assert len(alone) == 0


@pytest.mark.parametrize("last", (False, True))
def test_columns_of_very_different_size_are_judged_separately(last):
    """An error of a tenth of the scores counts, next to coordinates that are a thousand times as large."""
    rng = np.random.default_rng(0)
    boxes = np.concatenate([rng.uniform(100, 640, (1, 50, 4)), rng.uniform(0.1, 1, (1, 50, 3))], 2)
    boxes[..., 6] = 0
    wrong = boxes * np.array([1, 1, 1, 1, 1.1, 1.1, 1])
    right, got = ({"y": each if last else each.swapaxes(1, 2)} for each in (boxes, wrong))
    assert relative_rms(right, got) == pytest.approx(0.1)
    assert relative_rms(right, right) == 0 and relative_rms(right, {"y": got["y"][:, :3]}) == np.inf
    assert relative_rms({"y": boxes[0]}, {"y": wrong[0]}) < 1e-3  # a matrix has no columns of its own
    error = RelativeError()
    for _ in range(2):
        error.add(right, got)
    assert error.value == pytest.approx(0.1)
    error.add({"y": np.ones((1, 3, 4))}, {"y": np.ones((1, 3, 4))})  # another number of columns
    assert error.value < 1e-3
    empty = {"y": np.zeros((1, 0, 6))}
    assert relative_rms(empty, empty) == 0
