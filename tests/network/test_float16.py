"""Networks compiled with `precision="float16"`, on CPUs that add float16; on others it is refused."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.conv.choice.target import has_float16_sums, narrow_precision  # noqa: E402
from cpuconv.errors import ArgumentError  # noqa: E402
from support.graph.random_networks import networks  # noqa: E402
from support.graphs import normal, parse, run  # noqa: E402

TEXT = """g (float[N,40,H,9] x) => (float[N,48,H,9] y, float[N,48,1,1] z) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    b = Relu(a)
    c = Conv(b, v)
    y = Add(c, b)
    d = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(y)
    e = Sigmoid(d)
    f = Conv(e, v)
    z = GlobalAveragePool(f)
}"""
SHAPE = 1, 40, 16, 9
NARROW = {"precision": "float16", "strategy": "heuristic", "threads": 1}


WEIGHTS = normal(np.random.default_rng(1), {"w": (48, 40, 3, 3), "v": (48, 48, 1, 1)})
MODEL = parse(TEXT, w=np.float32(0.05) * WEIGHTS["w"], v=np.float32(0.14) * WEIGHTS["v"])
needed = pytest.mark.skipif(not has_float16_sums(), reason="this CPU does not add float16")


def x_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def near(got: dict[str, np.ndarray], right: dict[str, np.ndarray], limit: float) -> None:
    """Relative RMS errors are within a limit, and not zero."""
    for name, array in got.items():
        assert array.dtype == right[name].dtype and array.shape == right[name].shape
        assert 0 < np.sqrt(np.mean((array - right[name]) ** 2) / np.mean(right[name] ** 2)) <= limit


@pytest.mark.skipif(has_float16_sums(), reason="this CPU adds float16")
def test_other_cpus_refuse_it():
    with pytest.raises(ArgumentError, match="16-bit arithmetic is bfloat16, not 'float16'"):
        cpuconv.compile(MODEL, **NARROW)
    assert narrow_precision() == "bfloat16"


@needed
def test_a_small_network(tmp_path):
    wide = cpuconv.compile(MODEL, strategy="heuristic")
    other = {"x": x_of(2, 40, 33, 9)}
    any_size = cpuconv.compile(MODEL, **NARROW)
    near(any_size.run(other), wide.run(other), 0.005)
    assert "_f16(" in str(any_size.explain())
    narrow = cpuconv.compile(MODEL, input_shapes={"x": SHAPE}, **NARROW)
    near(narrow.run({"x": x_of(*SHAPE)}), wide.run({"x": x_of(*SHAPE)}), 0.005)
    report = str(narrow.explain())
    assert "_f16(" in report and "blocked f16" in report
    exact = cpuconv.compile(MODEL, input_shapes={"x": SHAPE}, accuracy="exact", **NARROW)
    assert "_f16(" not in str(exact.explain())
    near(exact.run({"x": x_of(*SHAPE)}), wide.run({"x": x_of(*SHAPE)}), 0.002)
    narrow.save(tmp_path / "m.cpuconv")
    loaded = cpuconv.load(tmp_path / "m.cpuconv").run({"x": x_of(*SHAPE)})
    for name, array in narrow.run({"x": x_of(*SHAPE)}).items():
        np.testing.assert_array_equal(array, loaded[name])


@needed
def test_one_network_has_one_16_bit_type():
    name = MODEL.graph.node[2].output[0]
    with pytest.raises(ArgumentError, match="node_precisions"):
        cpuconv.compile(MODEL, node_precisions={name: "bfloat16"}, **NARROW)


@needed
@settings(max_examples=12, deadline=None)
@given(networks())
def test_a_random_network(drawn):
    model, feed = drawn
    made = cpuconv.compile(model.SerializeToString(), **NARROW)
    for got, right in zip(made.run(feed).values(), run(model, feed, wide=True), strict=True):
        assert got.shape == right.shape
        if right.dtype.kind == "f":
            finite = np.isfinite(right)
            scale = np.abs(right[finite]).max(initial=1.0)
            if scale < 1e4:  # else float16 may have overflowed
                np.testing.assert_array_equal(np.isfinite(got), finite)
                assert np.abs(got[finite] - right[finite]).max(initial=0) <= 0.03 * scale


@needed
def test_automatic_precision():
    samples = [{"x": x_of(*SHAPE) + seed} for seed in range(8)]
    made = cpuconv.compile(MODEL, precision="auto", tolerance=0.05, samples=samples, threads=1)
    told = made.precision_table()
    assert narrow_precision() in {**told.seconds, **told.left_out}
    assert made.precision_table().error <= 0.05
