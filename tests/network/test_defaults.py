"""Initializers that are inputs, which a feed may replace; and outputs that are listed twice, or are inputs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv import InferenceSession  # noqa: E402
from cpuconv.errors import ArgumentError  # noqa: E402
from cpuconv.integrations import onnx_backend  # noqa: E402
from support.graphs import parse  # noqa: E402

RNG = np.random.default_rng(0)


def listed(text: str, ir_version: int = 8, opset: int = 17, **arrays: np.ndarray) -> onnx.ModelProto:
    """A model whose initializers are among its inputs."""
    model = parse(text, opset, **arrays)
    model.ir_version = ir_version
    return model


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def same(model: onnx.ModelProto, feed, *others, rtol: float = 1e-4) -> None:
    """Results as ONNX Runtime has them, with the defaults and with each other feed, in turn."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = cpuconv.compile(model, strategy="heuristic")
    for more in ({}, *others, {}, *others):
        more = {name: np.asarray(array) for name, array in more.items()}
        expected = session.run(None, {**feed, **more})
        got = ours.run({**feed, **more})
        for name, array in zip([each.name for each in session.get_outputs()], expected, strict=True):
            np.testing.assert_allclose(got[name], array, rtol=rtol, atol=1e-5)


CONV = """g (float[{n},8,9,9] x, float[16,8,3,3] w, float[16] b, float[16] s) => (float[] y) {{
    c = Conv<pads = [1, 1, 1, 1]>(x, w, b) n = BatchNormalization(c, s, b, m, v) y = Relu(n) }}"""


def conv(n: object) -> onnx.ModelProto:
    fixed = {"m": drawn(16), "v": np.abs(drawn(16)) + 1}
    return listed(CONV.format(n=n), w=drawn(16, 8, 3, 3), b=drawn(16), s=drawn(16), **fixed)


@pytest.mark.parametrize("n", [2, "N"])
def test_weights_that_are_fed(n):
    others = {"w": drawn(16, 8, 3, 3)}, {"b": drawn(16), "s": drawn(16)}, {"w": drawn(16, 8, 3, 3)}
    same(conv(n), {"x": drawn(2, 8, 9, 9)}, *others)


def test_products_clips_and_normalisations():
    text = """g (float[5,8] x, float[8,6] w, float[6] b, float low, float high, float[6] scale) => (float[] y) {
        p = Gemm(x, w, b) c = Clip(p, low, high) y = LayerNormalization<axis = 1>(c, scale, b) }"""
    arrays = {"w": drawn(8, 6), "b": drawn(6), "low": np.float32(-1), "high": np.float32(1), "scale": drawn(6)}
    model = listed(text, **arrays)
    same(model, {"x": drawn(5, 8)}, {"w": drawn(8, 6)}, {"scale": drawn(6)}, {"b": drawn(6), "scale": drawn(6)})
    text = "g (float[5,8] x, float low, float high) => (float[] y) { y = Clip(x, low, high) }"
    model = listed(text, low=np.float32(-1), high=np.float32(1))
    same(model, {"x": drawn(5, 8)}, {"low": np.float32(0)}, {"low": np.float32(-3), "high": np.float32(0.5)})


def test_what_is_folded_of_defaults():
    text = """g (float[4] x, float[4] a, float[4] b) => (float[] y, float[] z) {
        s = Add(a, b) t = Sqrt(s) y = Mul(x, t) z = Neg(t) }"""
    model = listed(text, a=np.full(4, 4, np.float32), b=np.zeros(4, np.float32))
    same(model, {"x": drawn(4)}, {"a": np.full(4, 9, np.float32)}, {"b": np.full(4, 5, np.float32)})


def test_shapes_indices_and_choices():
    text = """g (float[4,6] x, int64[R] shape, int64[K] places, bool turn) => (float[] y, float[] z) {
        r = Reshape(x, shape) y = Gather<axis = 1>(r, places)
        z = If(turn) <then_branch = g1 () => (float[4,6] t) { t = Neg(x) },
                      else_branch = g2 () => (float[4,6] e) { e = Identity(x) }> }"""
    model = listed(text, shape=np.array([6, 4]), places=np.array([0, 2]), turn=np.array(False))
    others = {"shape": np.array([3, 8])}, {"places": np.array([1])}, {"turn": np.array(True)}
    same(model, {"x": drawn(4, 6)}, *others, {"shape": np.array([2, 3, 4]), "turn": np.array(True)})


def test_scales_and_zero_points():
    text = """g (float[1,4,8,8] x, float s, uint8 z, float[4,4,1,1] w) => (float[] y) {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Conv(d, w) }"""
    model = listed(text, s=np.float32(0.02), z=np.uint8(128), w=drawn(4, 4, 1, 1))
    same(model, {"x": drawn(1, 4, 8, 8)}, {"s": np.float32(0.1)}, {"z": np.uint8(3)}, {"w": drawn(4, 4, 1, 1)})


def test_training_that_has_a_default():
    text = "g (float[1000] x, float ratio, bool training) => (float[] y) { y = Dropout(x, ratio, training) }"
    made = cpuconv.compile(listed(text, ratio=np.float32(0.5), training=np.array(False)), strategy="heuristic")
    x = np.ones(1000, np.float32)
    assert (made.run({"x": x})["y"] == 1).all()
    assert 300 < (made.run({"x": x, "training": np.array(True)})["y"] == 0).sum() < 700


def test_a_saved_model_takes_other_arrays(tmp_path):
    for n in (2, "N"):
        source = conv(n)
        made = cpuconv.compile(source, strategy="heuristic")
        feed, more = {"x": drawn(2, 8, 9, 9)}, {"w": drawn(16, 8, 3, 3)}
        expected = made.run(feed)["y"], made.run({**feed, **more})["y"]
        made.save(tmp_path / "model")
        loaded = cpuconv.load(tmp_path / "model")
        assert [port.name for port in loaded.defaults] == ["w", "b", "s"]
        for arrays, array in zip((feed, {**feed, **more}, feed), (*expected, expected[0]), strict=True):
            np.testing.assert_array_equal(loaded.run(arrays)["y"], array)
        loaded.save(tmp_path / "again")
        np.testing.assert_array_equal(cpuconv.load(tmp_path / "again").run({**feed, **more})["y"], expected[1])


def test_a_model_of_a_file(tmp_path):
    onnx.save(conv(2), tmp_path / "model.onnx")
    made, feed = cpuconv.compile(tmp_path / "model.onnx", strategy="heuristic"), {"x": drawn(2, 8, 9, 9)}
    zeros = made.run({**feed, "w": np.zeros((16, 8, 3, 3), np.float32)})["y"]
    assert np.ptp(zeros, axis=(0, 2, 3)).max() == 0 and np.ptp(made.run(feed)["y"], axis=(0, 2, 3)).max() > 0


def test_out_profile_and_threads():
    made, feed = cpuconv.compile(conv(2), strategy="heuristic"), {"x": drawn(2, 8, 9, 9)}
    weights = [drawn(16, 8, 3, 3) for _ in range(4)]
    results: dict[int, np.ndarray] = {}

    def work(at: int) -> None:
        results[at] = made.run({**feed, "w": weights[at]})["y"]

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out = np.zeros_like(results[0])
    for at, array in enumerate(weights):
        assert made.run({**feed, "w": array}, {"y": out})["y"] is out
        np.testing.assert_array_equal(out, results[at])
    assert made.profile({**feed, "w": weights[0]}, 2)


def test_the_client_interface():
    runtime = pytest.importorskip("onnxruntime")
    source = conv("N")
    ours = InferenceSession(source.SerializeToString())
    theirs = runtime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    for asked in ("get_inputs", "get_overridable_initializers"):
        described = [[(a.name, a.shape, a.type) for a in getattr(each, asked)()] for each in (ours, theirs)]
        assert sorted(described[0]) == sorted(described[1])
    feed = {"x": drawn(2, 8, 9, 9), "w": drawn(16, 8, 3, 3), "s": [0.5] * 16}
    expected = theirs.run(None, {name: np.asarray(array, np.float32) for name, array in feed.items()})
    np.testing.assert_allclose(ours.run(None, feed)[0], expected[0], rtol=1e-4, atol=1e-5)
    binding = ours.io_binding()
    for name in ("x", "w"):
        binding.bind_cpu_input(name, feed[name])
    binding.bind_cpu_input("s", np.full(16, 0.5, np.float32))
    binding.bind_output("y")
    ours.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected[0], rtol=1e-4, atol=1e-5)


def test_what_may_not_be_fed():
    with pytest.raises(ArgumentError, match="feed"):
        cpuconv.compile(conv(2), strategy="heuristic").run({"x": drawn(2, 8, 9, 9), "m": drawn(16)})
    for wrong in (drawn(16, 8, 3, 1), drawn(16, 8, 9)):
        with pytest.raises(ArgumentError, match=r"feed\['w'\]"):
            cpuconv.compile(conv(2), strategy="heuristic").run({"x": drawn(2, 8, 9, 9), "w": wrong})
    old = conv(2)
    old.ir_version = 3  # where every initializer had to be listed
    made = cpuconv.compile(old, strategy="heuristic")
    assert not made.defaults
    with pytest.raises(ArgumentError, match="one for 'w'"):
        made.run({"x": drawn(2, 8, 9, 9), "w": drawn(16, 8, 3, 3)})


def test_elements_that_decide_how_a_node_is_read():
    """Upsample rounds by its scales, so that they are constant."""
    text = "g (float[1,1,2,2] x, float[4] scales) => (float[] y) { y = Upsample(x, scales) }"
    made = cpuconv.compile(listed(text, 8, 9, scales=np.array([1, 1, 2, 2], np.float32)), strategy="heuristic")
    assert not made.defaults


# --- outputs --------------------------------------------------------------------------------------------------------


def outputs_of(names: list[str], nodes: list, shape=(2, 3)) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ["x", *names]]
    weights = [numpy_helper.from_array(np.full((2, 3), 5, np.float32), "w")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


ENDS = {
    "twice": (["y", "y"], [("Neg", "x", "y")]),
    "among others": (["y", "z", "y"], [("Neg", "x", "y"), ("Abs", "y", "z")]),
    "the input": (["x"], []),
    "the input twice": (["x", "y", "x"], [("Neg", "x", "y")]),
    "an initializer": (["w", "y"], [("Neg", "x", "y")]),
    "an initializer twice": (["w", "w"], []),
    "two names": (["y", "z", "v"], [("Neg", "x", "y"), ("Identity", "y", "z"), ("Identity", "z", "v")]),
    "two names of the input": (["y", "z"], [("Identity", "x", "y"), ("Identity", "x", "z")]),
    "two names of an initializer": (["y", "z"], [("Identity", "w", "y"), ("Identity", "w", "z")]),
    "inner and outer": (["y", "z"], [("Neg", "x", "y"), ("Relu", "y", "z")]),
}


@pytest.mark.parametrize("shape", [(2, 3), ("N", 3)], ids=["fixed", "open"])
@pytest.mark.parametrize("case", ENDS)
def test_ends(case, shape, tmp_path):
    names, nodes = ENDS[case]
    source = outputs_of(names, [helper.make_node(op, [x], [y]) for op, x, y in nodes], shape)
    if case.endswith("initializer") or case.endswith("initializer twice"):
        del source.graph.output[0].type.tensor_type.shape.dim[:]
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    known = {"x": x, "w": np.full((2, 3), 5, np.float32)}
    for op, a, b in nodes:
        known[b] = {"Neg": np.negative, "Abs": np.abs, "Identity": np.copy, "Relu": lambda v: np.maximum(v, 0)}[op](
            known[a]
        )
    made = cpuconv.compile(source, strategy="heuristic")
    assert [port.name for port in made.outputs] == names
    results = made.run({"x": x})
    assert {*results} == {*names}
    made.save(tmp_path / "model")
    loaded = cpuconv.load(tmp_path / "model")
    assert [port.name for port in loaded.outputs] == names
    session = InferenceSession(source.SerializeToString())
    again = InferenceSession(tmp_path / "model")
    for arrays in ([results[name] for name in names], session.run(None, {"x": x}), again.run(None, {"x": x})):
        assert len(arrays) == len(names)
        for name, array in zip(names, arrays, strict=True):
            np.testing.assert_array_equal(array, known[name])
    separate = session.run(None, {"x": x})
    assert not any(np.may_share_memory(a, b) for at, a in enumerate(separate) for b in [*separate[:at], x])
    assert [each.name for each in session.get_outputs()] == names


def test_the_package_s_interface_gives_an_output_twice():
    source = outputs_of(["y", "z", "y"], [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])])
    x = np.ones((2, 3), np.float32)
    got = onnx_backend.Prepared(cpuconv.compile(source, strategy="heuristic")).run([x])
    assert len(got) == 3 and all(np.array_equal(a, b) for a, b in zip(got, (-x, x, -x), strict=True))


def test_a_default_that_is_an_output():
    source = listed(
        "g (float[2] x, float[2] w) => (float[2] y, float[2] w) { y = Add(x, w) }", w=np.ones(2, np.float32)
    )
    made, x, w = cpuconv.compile(source, strategy="heuristic"), np.zeros(2, np.float32), np.full(2, 7, np.float32)
    assert made.run({"x": x})["w"].tolist() == [1, 1]
    results = made.run({"x": x, "w": w})
    assert results["w"].tolist() == [7, 7] and results["y"].tolist() == [7, 7]
    assert not np.may_share_memory(results["w"], w)


def test_a_default_that_branches_read():
    text = """g (float[2] x, bool c, float[2] w) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { a = Add(x, w) },
                   else_branch = e () => (float[2] b) { b = Identity(w) }> }"""
    feed, others = {"x": drawn(2), "c": np.array(True)}, ({"w": drawn(2)}, {"c": np.array(False)})
    same(listed(text, w=drawn(2)), feed, *others, {"w": drawn(2), "c": np.array(False)})


def test_a_default_of_open_sizes():
    same(
        listed("g (float[N] x, float[N] w) => (float[N] y) { y = Add(x, w) }", w=drawn(4)),
        {"x": drawn(4)},
        {"w": drawn(4)},
    )
    made = cpuconv.compile(listed("g (float[N] x, float[N] w) => (float[N] y) { y = Add(x, w) }", w=drawn(4)))
    assert made.run({"x": np.zeros(6, np.float32), "w": np.ones(6, np.float32)})["y"].tolist() == [1] * 6
