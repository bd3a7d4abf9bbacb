"""Ranges with a margin for unseen samples, and a tolerance that holds for unseen feeds."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.network.precision.errors import relative_rms  # noqa: E402
from cpuconv.network.precision.prediction_bound import UNSEEN_FACTOR  # noqa: E402
from cpuconv.quantizing.choosing import FEW  # noqa: E402
from cpuconv.quantizing.observing import PARTS, counted, ends_of, ready  # noqa: E402
from cpuconv.quantizing.ranges import Histogram, least_error  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402

# Two convolutions, a block of squeeze and excitation between them; means of channels decide the classes.
TEXT = """g (float[1,3,56,56] x) => (float[1,12] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    b = Relu(a)
    m = GlobalAveragePool(b)
    s = Conv(m, w2, b2)
    t = Relu(s)
    u = Conv(t, w3, b3)
    v = Sigmoid(u)
    e = Mul(b, v)
    c = Conv<pads=[1,1,1,1], strides=[2,2]>(e, w4, b4)
    d = Relu(c)
    p = GlobalAveragePool(d)
    f = Flatten(p)
    y = Gemm<transB=1>(f, w5, b5)
}"""
SHAPES = {
    "w1": (16, 3, 3, 3), "b1": (16,), "w2": (4, 16, 1, 1), "b2": (4,), "w3": (16, 4, 1, 1), "b3": (16,),
    "w4": (24, 16, 3, 3), "b4": (24,), "w5": (12, 24), "b5": (12,),
}  # fmt: skip
ALL = 1e3  # a tolerance that all layers are within
STEM = """g (float[1,3,56,56] x) => (float[1,24,28,28] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    e = Relu(a)
    y = Conv<pads=[1,1,1,1], strides=[2,2]>(e, w4, b4)
}"""


def network(text: str, seed: int) -> onnx.ModelProto:
    rng, model = np.random.default_rng(seed), parse(text)
    for name, shape in SHAPES.items():
        array = rng.standard_normal(shape) * (0.1 if name.startswith("b") else np.sqrt(2 / np.prod(shape[1:])))
        if f" {name}" in text:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


def noise(count: int, seed: int, spread: float = 0.3) -> list[dict[str, np.ndarray]]:
    """Feeds that differ in contrast."""
    rng = np.random.default_rng(seed)
    contrasts = np.exp(spread * rng.standard_normal(count))
    return [{"x": (rng.standard_normal((1, 3, 56, 56)) * each).astype(np.float32)} for each in contrasts]


def errors(model, file, feeds) -> np.ndarray:
    exact, made = (cpuconv.compile(each, threads=1) for each in (model, file))
    return np.array([relative_rms(exact.run(feed), made.run(feed)) for feed in feeds])


def test_ends_of_samples_are_those_of_their_own_least_error():
    model, feeds = ready(read(network(STEM, 0)), 1, ["x", "e"]), noise(3, 1)
    seen = {name: ends.seen for name, ends in ends_of(model, feeds, lambda: None).items()}
    apart = counted(model, feeds, seen, lambda: None, apart=True)
    for name, (low, high) in seen.items():
        whole = np.zeros(PARTS, np.int64)
        for at, feed in enumerate(feeds):
            counts = np.histogram(model.run(feed)[name], PARTS, (low, high))[0]
            own = apart[name].best.lows[at], apart[name].best.highs[at]
            assert own == pytest.approx(least_error(Histogram(low, high, counts)), abs=3 * (high - low) / PARTS)
            whole += counts
        assert np.abs(np.cumsum(apart[name].histogram.counts - whole)).max() <= 3  # at edges of parts
    together = counted(model, feeds, seen, lambda: None, apart=False)
    assert not any(found.best.highs for found in together.values())


def test_a_tolerance_leaves_room_for_larger_samples_in_large_tensors(tmp_path):
    """All is of bytes with and without: the largest error of others falls, digits are lost in the mean."""
    file, found = tmp_path / "q.onnx", []
    for seed in range(5):
        model, samples, others = network(STEM, seed), noise(8, seed + 100), noise(48, seed + 200)
        for tolerance in (None, ALL):
            made = cpuconv.quantize(model, samples, output=file, threads=1, refuse_slower=False, tolerance=tolerance)
            assert not made.kept
            wrong = errors(model, file, others)
            found.append((np.median(wrong), wrong.max()))
    middle, largest = np.log(np.reshape(found, (5, 2, 2))).transpose(2, 1, 0)
    assert np.exp((largest[1] - largest[0]).mean()) < 0.8
    assert np.exp((middle[1] - middle[0]).max()) < 1.35


def test_a_tolerance_holds_for_others_behind_squeeze_and_excitation(tmp_path):
    """Vectors of few values stay floats, and what takes time, both convolutions, is of bytes."""
    file, beyond = tmp_path / "q.onnx", 0
    for seed in (0, 3, 5, 6):
        model, samples, others = network(TEXT, seed), noise(16, seed + 100, 0.2), noise(48, seed + 200, 0.2)
        cpuconv.quantize(model, samples, output=file, threads=1, refuse_slower=False)
        of_bytes = errors(model, file, samples).max()
        for tolerance in (0.7 * of_bytes, 1.1 * of_bytes):
            made = cpuconv.quantize(model, samples, output=file, threads=1, refuse_slower=False, tolerance=tolerance)
            assert [layer.why for layer in made.layers] == ["", FEW, FEW, "", FEW]
            beyond += int((errors(model, file, others) > UNSEEN_FACTOR * tolerance).sum())
    assert beyond <= 2  # of 384
