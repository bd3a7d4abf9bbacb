"""Attention as an int8 layer: recognised, calibrated, written for other engines, and left out where it errs."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.quantizing.errors import RelativeError  # noqa: E402
from cpuconv.quantizing.graphs.attention import quantizable  # noqa: E402
from cpuconv.quantizing.graphs.preparing import prepared  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graph.floats import run_all  # noqa: E402
from support.graphs import parse  # noqa: E402

pytest.importorskip("onnxruntime")
WINDOWS = """
    e = Reshape(d, apart)
    f = Add(e, shift)
    g = Reshape(f, together)
    p = Softmax<axis=-1>(g)"""
TAILS = {
    "plain": ("d = Identity(c)", "p = Softmax<axis=-1>(d)"),
    "mask": ("d = Add(bias, c)", "p = Softmax<axis=3>(d)"),
    "windows": ("d = Add(c, bias)", WINDOWS),
}
HEADS, TOKENS, DEPTH = 2, 10, 16


def network(scores="c = Mul(s, third)", biased="d = Add(c, bias)", weights="p = Softmax<axis=-1>(d)", values="v"):
    """Self-attention of two heads; N windows, of four an image."""
    model = parse(
        f"""g (float[N,{TOKENS},32] x) => (float[N,{TOKENS},32] y) {{
    m = MatMul(x, w1)
    b = Add(m, b1)
    r = Reshape(b, split)
    t = Transpose<perm=[2,0,3,1,4]>(r)
    h0, h1, h2 = Split<axis=0, num_outputs=3>(t)
    q0 = Squeeze(h0, first)
    q = Mul(q0, half)
    k0 = Squeeze(h1, first)
    v = Squeeze(h2, first)
    k = Transpose<perm=[0,1,3,2]>(k0)
    s = MatMul(q, k)
    {scores}
    {biased}
    {weights}
    o = MatMul(p, {values})
    u = Transpose<perm=[0,2,1,3]>(o)
    z = Reshape(u, heads)
    y = MatMul(z, w2)
}}""",
        18,
    )
    rng = np.random.default_rng(0)
    shift = np.where(rng.random((1, 4, 1, TOKENS, TOKENS)) > 0.6, -100, 0)
    arrays = {
        "w1": rng.standard_normal((32, 96)) / 4, "b1": rng.standard_normal(96), "w2": rng.standard_normal((32, 32)) / 4,
        "half": 0.5, "third": 0.3, "minus": -0.5, "bias": rng.standard_normal((HEADS, TOKENS, TOKENS)), "shift": shift,
        "own": rng.standard_normal((HEADS, TOKENS, DEPTH)), "biases": rng.standard_normal((4, HEADS, TOKENS, TOKENS)),
    }  # fmt: skip
    arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    arrays |= {
        "split": [0, TOKENS, 3, HEADS, DEPTH], "heads": [0, TOKENS, 32], "first": [0],
        "apart": [-1, 4, HEADS, TOKENS, TOKENS], "together": [-1, HEADS, TOKENS, TOKENS],
    }  # fmt: skip
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items() if name in used
    )
    return model


def feeds(count, seed=1):
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((4, TOKENS, 32)).astype(np.float32)} for _ in range(count)]


def quantized(model, path, **options):
    return cpuconv.quantize(model, feeds(8), output=path, threads=1, refuse_slower=False, **options)


@pytest.mark.parametrize("tail", TAILS)
def test_attention_is_one_int8_operator(tail, tmp_path):
    model, file = network("c = Mul(third, s)", *TAILS[tail]), tmp_path / "q.onnx"
    made = quantized(model, file, activations="int8" if tail == "mask" else "uint8")
    layer = next(layer for layer in made.layers if layer.op == "Attention")
    assert [layer.op for layer in made.layers] == ["MatMul", "Attention", "MatMul"] and not made.kept
    assert 0 < layer.error < 0.05 and 0 < made.error < 0.05
    compiled = cpuconv.compile(file, threads=1, input_shapes={"x": (4, TOKENS, 32)})
    kinds = [row["op"] for row in compiled.explain().to_dict()["operators"]]
    assert kinds.count("QuantizedAttention") == 1 and not {"MatMul", "Softmax", "Mul"} & {*kinds}, kinds
    error = RelativeError()
    for feed in feeds(3, seed=9):
        ours = compiled.run(feed)
        error.add(run_all(model, feed), ours)
        theirs = run_all(onnx.load(file), feed)["y"]
        np.testing.assert_allclose(ours["y"], theirs, atol=0.02 * np.abs(theirs).max())
    assert error.value < 1.5 * made.error


def test_named_attention_stays_float32_and_a_tolerance_holds(tmp_path):
    model, file = network(), tmp_path / "q.onnx"
    model.graph.node[-4].name = "attention"
    whole = quantized(model, file)
    kept = quantized(model, file, keep=["attention"])
    assert kept.kept == ("attention",) and kept.error < whole.error
    alone = {layer.name: layer.error_alone for layer in quantized(model, file, layers=1).layers}
    made = quantized(model, file, tolerance=1.2 * max(error for name, error in alone.items() if name != "attention"))
    assert made.kept and made.reached.error <= made.reached.tolerance


def test_a_bias_per_window_stays_apart_from_the_mask(tmp_path):
    file = tmp_path / "q.onnx"
    assert quantized(network(biased="d = Add(c, biases)", weights=WINDOWS), file).error < 0.05
    (feed,) = feeds(1, seed=9)
    theirs = run_all(onnx.load(file), feed)["y"]
    np.testing.assert_allclose(
        cpuconv.compile(file, threads=1).run(feed)["y"], theirs, atol=0.02 * np.abs(theirs).max()
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"scores": "c = Mul(s, minus)"},
        {"weights": "p = Softmax<axis=2>(d)"},
        {"weights": "n = Softmax<axis=-1>(d)\n p = Relu(n)"},
        {"values": "own"},
    ],
    ids=str,
)
def test_what_is_no_attention_stays_float32(changed):
    graph, known = prepared(read(network(**changed)), {"x": (4, TOKENS, 32)})
    assert [layer.op for layer in quantizable(graph, known)] == ["MatMul", "MatMul"]
