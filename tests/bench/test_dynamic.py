"""The benchmarks of open sizes: what they compare, and what they draw."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from bench import dynamic  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402


def test_opened_networks_keep_channels(tmp_path):
    source = parse("g (float[2,3,8,8] x, float[3,1,1] c) => (float[2,3,8,8] y) { a = Relu(x) y = Mul(a, c) }")
    graph = dynamic.opened(read(source))
    assert [graph.value(name).shape for name in graph.inputs] == [("x.0", 3, "x.2", "x.3"), ("c.0", 1, "c.2")]
    assert graph.value("y").shape is None
    path = tmp_path / "network.onnx"
    onnx.save(source, path)
    rng = np.random.default_rng(0)
    feed = {
        name: rng.standard_normal(graph_shape, np.float32)
        for name, graph_shape in (("x", (2, 3, 8, 8)), ("c", (3, 1, 1)))
    }
    fixed, opened = dynamic.times(path, feed, threads=1, rounds=2, seconds=0.001)
    assert len(fixed) == len(opened) == 2 and min(*fixed, *opened) > 0
    model = cpuconv.compile(graph)
    np.testing.assert_allclose(model.run(feed)["y"], np.maximum(feed["x"], 0) * feed["c"], rtol=1e-6)
