"""Models of one process share packed weights of equal content, and free them with the last reader."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.network.running import packed  # noqa: E402
from support.graphs import parse  # noqa: E402

TEXT = """g (float[1,16,9,9] x) => (float[1,32,9,9] y) <float[32,16,3,3] w, float[32] b>
    { y = Conv<pads = [1, 1, 1, 1]>(x, w, b) }"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "a.onnx", 0)


def written(path: Path, seed: int) -> Path:
    """Write the file of a network with random weights."""
    from bench.networks.model import replace

    model, rng = parse(TEXT), np.random.default_rng(seed)
    replace(model, {"w": rng.standard_normal((32, 16, 3, 3), np.float32), "b": np.ones(32, np.float32)})
    onnx.save(model, path)
    return path


def large(before: set[int]) -> list[np.ndarray]:
    """Return packed arrays of the process as large as the weights that were not there before."""
    return [each for each in packed._of_process.values() if id(each) not in before and each.nbytes >= 4 * 32 * 16 * 9]


def test_two_models_of_a_file_have_one_copy_that_goes_with_the_last(file: Path):
    gc.collect()
    before = {id(each) for each in packed._of_process.values()}
    x = np.random.default_rng(1).standard_normal((1, 16, 9, 9), np.float32)
    first = cpuconv.compile(file, threads=1)
    wanted = first.run({"x": x})["y"]
    count = len(large(before))
    second = cpuconv.compile(file, threads=1)
    np.testing.assert_array_equal(second.run({"x": x})["y"], wanted)
    assert len(large(before)) == count >= 1
    del first
    gc.collect()
    np.testing.assert_array_equal(second.run({"x": x})["y"], wanted)
    del second
    gc.collect()
    assert not large(before)


def test_models_of_other_weights_share_nothing(file: Path, tmp_path: Path):
    x = np.random.default_rng(1).standard_normal((1, 16, 9, 9), np.float32)
    first = cpuconv.compile(file, threads=1)
    other = cpuconv.compile(written(tmp_path / "b.onnx", 1), threads=1)
    assert np.abs(first.run({"x": x})["y"] - other.run({"x": x})["y"]).max() > 0.1


def test_models_made_at_once_are_right(file: Path):
    x = np.random.default_rng(1).standard_normal((1, 16, 9, 9), np.float32)
    wanted = cpuconv.compile(file, threads=1).run({"x": x})["y"]
    found: list[np.ndarray] = []
    makers = [
        threading.Thread(target=lambda: found.append(cpuconv.compile(file, threads=1).run({"x": x})["y"]))
        for _ in range(4)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(found) == 4
    for each in found:
        np.testing.assert_array_equal(each, wanted)
