"""Biases of files: other engines multiply integers behind which they are added."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import cpuconv  # noqa: E402
from support.graphs import normal, parse  # noqa: E402

TEXT = """g (float[1,6,32] x) => (float[1,6,32] y, float[1,6,32] z, float[6,32] v)
    <float[32,32] w1, float[32] b, float[32,32] w2, float[32] zero> {
    m = MatMul(x, w1)
    a = Add(m, b)
    r = Gelu(a)
    n = MatMul(r, w2)
    y = Add(b, n)
    z = Add(n, zero)
    f = Squeeze(r, first)
    k = MatMul(f, w2)
    v = Add(k, b)
}"""


@pytest.fixture(scope="module")
def model():
    drawn = normal(np.random.default_rng(0), {"w1": (32, 32), "w2": (32, 32), "b": (32,)})
    weights = {name: array / 5 for name, array in drawn.items()}
    return parse(TEXT, opset=20, **weights, zero=np.ones(32, np.float32), first=np.zeros(1, np.int64))


def test_onnx_runtime_multiplies_integers_where_a_bias_is_added(model, tmp_path):
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.standard_normal((1, 6, 32)).astype(np.float32)} for _ in range(4)]
    file = tmp_path / "q.onnx"
    made = cpuconv.quantize(model, feeds, output=file, threads=1, refuse_slower=False)
    assert not made.kept
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(file).graph.initializer}
    ranks = {name: arrays[name].shape for node in onnx.load(file).graph.node for name in node.input if "wide" in name}
    assert ranks == {"b.wide3": (1, 1, 32), "zero.wide3": (1, 1, 32)}  # what is added to a matrix stays a vector
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds.count("MatMulIntegerToFloat") >= 2 and "MatMul" not in kinds
    ours, exact = cpuconv.compile(file, threads=1).run(feeds[0]), cpuconv.compile(model, threads=1).run(feeds[0])
    for name, array in zip(exact, session.run(None, feeds[0]), strict=True):
        np.testing.assert_allclose(ours[name], array, atol=0.05 * np.abs(array).max())
        np.testing.assert_allclose(ours[name], exact[name], atol=0.1 * np.abs(array).max())
