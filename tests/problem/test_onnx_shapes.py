"""Axes that models leave open: batches and stated shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.workload import Reading
from autotune.workload import SourceError as Unloadable
from cpuconv.errors import SourceError
from cpuconv.problem.reading.sources import load
from cpuconv.tuning.workload import workload
from support.models import conv

OPEN = {"image": ("batch", 3, "height", "width")}
WEIGHTS = {"w": (4, 3, 3, 3), "v": (2, 4, 1, 1)}


@pytest.fixture
def model(save) -> str:
    return save([conv("image", "w", "t"), conv("t", "v", "y")], OPEN, WEIGHTS)


def test_batches_are_networks_of_their_own(save) -> None:
    path = save([conv("image")], {"image": ("batch", 3, 8, 8)}, {"w": WEIGHTS["w"]})
    assert [(entry.problem.n, entry.network) for entry in load(path)] == [(1, "net")]
    entries = load(path, batches=(1, 8, 32))
    assert [(entry.problem.n, entry.network) for entry in entries] == [
        (1, "net, batch 1"),
        (8, "net, batch 8"),
        (32, "net, batch 32"),
    ]


def test_stated_shapes_fill_open_axes(model: str) -> None:
    with pytest.raises(SourceError, match=r"\(--input NAME=1x3x224x224\)"):
        load(model)
    first, second = load(model, inputs={"image": (2, 3, 10, 12)})
    assert (first.problem.in_shape, second.problem.in_shape) == ((2, 3, 10, 12), (2, 4, 8, 10))


def test_axes_of_one_name_are_of_one_size(save) -> None:
    inputs = {"a": ("n", 3, "h", "w"), "b": ("n", 3, "h", "w")}
    path = save([conv("a", y="s"), conv("b", y="t")], inputs, {"w": WEIGHTS["w"]})
    entries = load(path, inputs={"a": (4, 3, 6, 7)})
    assert [(entry.problem.in_shape, entry.count) for entry in entries] == [((4, 3, 6, 7), 2)]
    with pytest.raises(SourceError, match="a shape that fits b=4x3x6x7, not b=4x3x6x8"):
        load(path, inputs={"a": (4, 3, 6, 7), "b": (4, 3, 6, 8)})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": {"picture": (1, 3, 8, 8)}}, r"'input' must be one of the model's \(image\), not 'picture'"),
        ({"inputs": {"image": (1, 3, 8)}}, "a shape that fits image=batchx3xheightxwidth, not image=1x3x8"),
        ({"inputs": {"image": (1, 4, 8, 8)}}, "a shape that fits image=batchx3xheightxwidth, not image=1x4x8x8"),
        ({"inputs": {"image": (1, 3, 8, 8)}, "batches": (2,)}, "'batches' must be left out: the model fixes its batch"),
    ],
)
def test_what_does_not_fit_is_refused(model: str, options: dict, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        load(model, **options)
    with pytest.raises(Unloadable, match=said):
        workload.load(model, Reading(("NCHW", "NCHW"), **options))


def test_models_are_timed_with_cold_weights_and_problems_with_warm_ones(model: str, tmp_path: Path) -> None:
    inputs = {"image": (1, 3, 8, 8)}
    assert {each.weights for each in workload.load(model, Reading(inputs=inputs))} == {"cold"}
    lines = tmp_path / "lines.txt"
    lines.write_text("mb1ic3ih8oc4oh6kh3 threads=2\nmb1ic3ih8oc4oh8kh1")
    loaded = workload.load(str(lines))
    assert [(each.weights, each.threads) for each in loaded] == [("warm", 2), ("warm", 1)]
    (single,) = workload.load("mb1ic3ih8oc4oh8kh1", Reading(inputs=inputs, batches=(4,)))
    assert single.key == loaded[1].key
