"""Programs of one model share the memory of runs: whatever ran there before, in whatever order, bits are the same."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.memory.arenas import Arena, Arenas  # noqa: E402
from support import oracle  # noqa: E402
from support.graphs import normal, parse, programs_of  # noqa: E402
from support.running.callers import at_once  # noqa: E402

CONVOLUTIONAL = """g (float[N,3,H,W] x) => (float[N,K,P,Q] y, float[N,L,R,S] z) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    r = Relu(a)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
    y = Conv(p, v)
    z = Sigmoid(r)
}"""
# A kernel, a node that its reference computes, another kernel.
BY_REFERENCE = """g (float[N,H,W,4] x, int64[1] places) => (float[1,P,Q,4] y) {
    a = Relu(x)
    b = Gather(a, places)
    y = Sqrt(b)
}"""
FIRST = (1, 12, 16)
SIZES = [(1, 4, 4), (2, 9, 5), (1, 16, 12), (3, 31, 8), (1, 2, 40), (2, 64, 48), (1, 96, 80)]


def _model(text: str, threads: int) -> cpuconv.Model:
    weights = {"w": (20, 3, 3, 3), "v": (5, 20, 1, 1)} if "Conv" in text else {}
    return cpuconv.compile(
        parse(text, **normal(np.random.default_rng(7), weights)), threads=threads, strategy="heuristic"
    )


def _feed(text: str, size: tuple[int, int, int]) -> dict[str, np.ndarray]:
    n, h, w = size
    rng = np.random.default_rng(h * w)
    if "Conv" in text:
        return {"x": rng.standard_normal((n, 3, h, w), np.float32)}
    return {"x": rng.random((n, h, w, 4), np.float32), "places": np.array([n - 1])}


@pytest.fixture
def poisoned(monkeypatch) -> None:
    """Every run finds NaN in its memory, in floats of any width."""
    usual = Arenas.take

    def take(self: Arenas, size: int) -> Arena:
        arena = usual(self, size)
        arena.memory[:size] = 255
        return arena

    monkeypatch.setattr(Arenas, "take", take)


@pytest.mark.parametrize("threads", [1, oracle.THREADS])
@pytest.mark.parametrize("text", [CONVOLUTIONAL, BY_REFERENCE], ids=["kernels", "references"])
def test_sizes_in_any_order_from_many_threads_have_the_bits_of_a_fresh_model(text, threads, here, poisoned):
    expected = {}
    for size in SIZES:
        fresh = _model(text, threads)
        fresh.run(_feed(text, FIRST))  # which layouts of others follow
        expected[size] = fresh.run(_feed(text, size))
    shared = _model(text, threads)
    shared.run(_feed(text, FIRST))
    results = []

    def run(at: int) -> None:
        rng = np.random.default_rng(at)
        for pick in rng.integers(0, len(SIZES), 25):
            size = SIZES[pick]
            results.append((size, shared.run(_feed(text, size))))

    at_once(8, run)
    assert len(results) == 200 and len(programs_of(shared)) == 1 + len(SIZES)
    for size, outputs in results:  # none of which a later run has written to
        for name, array in outputs.items():
            np.testing.assert_array_equal(array, expected[size][name])
    assert len(programs_of(shared).builder.arenas) <= 8


def test_a_new_size_takes_the_memory_of_another_one(here):
    model = _model(CONVOLUTIONAL, 1)
    arenas = programs_of(model).builder.arenas
    for size in [*SIZES, *SIZES]:
        model.run(_feed(CONVOLUTIONAL, size))
        assert len(arenas) == 1
    most = max(programs_of(model).find((_feed(CONVOLUTIONAL, size)["x"].shape,)).executable.run_bytes for size in SIZES)
    assert arenas.nbytes == most
    for size in SIZES:
        assert programs_of(model).find((_feed(CONVOLUTIONAL, size)["x"].shape,)).executable.arenas is arenas


def test_what_is_reported_has_memory_of_its_own(here):
    model, feed = _model(CONVOLUTIONAL, 1), _feed(CONVOLUTIONAL, FIRST)
    before = model.run(feed)
    profile = model.profile(feed, runs=2, watch=True)
    assert profile.to_dict() and len(programs_of(model).builder.arenas) == 1
    np.testing.assert_array_equal(model.run(feed)["y"], before["y"])


def test_memory_goes_with_the_model(here):
    model = _model(BY_REFERENCE, 1)
    model.run(_feed(BY_REFERENCE, FIRST))
    arena = weakref.ref(programs_of(model).builder.arenas._free[0])
    del model
    gc.collect()
    assert arena() is None
