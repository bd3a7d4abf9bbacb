"""Prediction of times on more cores: the simulated distribution, and the measured parts."""

import argparse

import numpy as np
import pytest

from bench import scaling
from cpuconv.runtime.threads import maximum_threads
from support.models import conv, save

EQUAL, HYBRID = [1.0] * 4, [1.0, 1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("parts", "speeds", "by_speed", "seconds"),
    [
        ([1.0] * 8, EQUAL, False, 2.0),
        ([3.0, *[1.0] * 7], EQUAL, False, 3.0),  # the second part of the long one's range is stolen
        ([1.0] * 3, EQUAL, False, 1.0),  # fewer parts than cores
        ([1.0] * 12, HYBRID, False, 4.0),
        ([1.0] * 12, HYBRID, True, 4.0),
        ([1.0] * 12, [1.0], True, 12.0),
    ],
)
def test_parts_are_distributed_by_work_stealing(parts, speeds, by_speed, seconds):
    assert scaling.shared_seconds(np.array(parts), speeds, by_speed=by_speed) == pytest.approx(seconds)


def test_a_part_that_is_not_shared_runs_without_a_join():
    assert scaling.predicted([np.array([1.0])], EQUAL) == 1.0
    assert scaling.predicted([np.ones(4)], EQUAL) > 1.0


def test_machines_are_parsed_and_named():
    assert scaling.machines("4,2+2") == [EQUAL, HYBRID]
    assert [scaling.label(speeds) for speeds in (EQUAL, HYBRID)] == ["4", "2 P + 2 E"]
    for text in ("", "0", "2+", "x"):
        with pytest.raises(argparse.ArgumentTypeError, match="numbers of cores, as 8 or 6\\+8"):
            scaling.machines(text)


def test_all_parts_of_more_threads_are_measured(tmp_path):
    before = maximum_threads()
    path = save(tmp_path / "conv.onnx", [conv(pads=[1] * 4)], {"x": (1, 32, 28, 28)}, {"w": (32, 32, 3, 3)})
    rows = scaling.part_seconds(path, {"x": np.zeros((1, 32, 28, 28), np.float32)}, 4)
    row = max(rows, key=len)
    assert len(row) in range(4, 33, 4) and row.sum() > 0 and (row >= 0).all()  # some parts may be empty
    assert maximum_threads() == before
