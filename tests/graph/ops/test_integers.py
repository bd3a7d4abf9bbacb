"""Quantised networks: products of bytes computed by kernels, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx import numpy_helper  # noqa: E402

import cpuconv  # noqa: E402
from support import saturation  # noqa: E402
from support.graphs import close, parse, runtime_session  # noqa: E402

RNG = np.random.default_rng(0)
WEIGHTS = pytest.mark.parametrize(("w_type", "bits"), [(np.uint8, 8), (np.int8, 7), (np.int8, 8)])

# As ONNX Runtime's dynamic quantiser writes convolutions and products.
DYNAMIC = """g (float[N,5,9,8] x) => (float[] y, float[] z) {
    q, scale, zero = DynamicQuantizeLinear(x)
    p = ConvInteger<pads = [1, 1, 1, 1]>(q, w, zero, w_zero)
    b = Add(p, bias)
    f = Cast<to = 1>(b)
    factor = Mul(scale, w_scale)
    c = Mul(f, factor)
    y = Relu(c)
    m = ReduceMean<axes = [2, 3], keepdims = 0>(y)
    r, r_scale, r_zero = DynamicQuantizeLinear(m)
    k = MatMulInteger(r, v, r_zero, v_zero)
    g = Cast<to = 1>(k)
    z = Mul(g, r_scale)
}"""
STATIC = """g (float[N,5,9,8] x) => (float[] y) {
    q = QuantizeLinear(x, x_scale, x_zero)
    p = QLinearConv<pads = [1, 1, 1, 1]>(q, x_scale, x_zero, w, w_scale, w_zero, y_scale, x_zero, wide)
    y = DequantizeLinear(p, y_scale, x_zero)
}"""


def _model(text: str, w_type: type, bits: int, per_channel: bool = False) -> onnx.ModelProto:
    if w_type is np.int8:
        saturation.need(bits)
    parts = (17,) if per_channel else ()
    low, high = (each >> (8 - bits) for each in (np.iinfo(w_type).min, np.iinfo(w_type).max))
    arrays = {
        "w": RNG.integers(low, high, (17, 5, 3, 3), w_type),
        "w_zero": np.full(parts, 0 if low else 128, w_type),
        "w_scale": np.full(parts, 0.01, np.float32) if text is STATIC else np.float32(0.01),
        "bias": RNG.integers(-2000, 2000, (17, 1, 1), np.int32),
        "wide": RNG.integers(-2000, 2000, 17, np.int32),
        "v": RNG.integers(low, high, (17, 6), w_type),
        "v_zero": np.full((), low + 100, w_type),
        "x_scale": np.float32(0.03),
        "x_zero": np.uint8(120),
        "y_scale": np.float32(0.1),
    }
    model = parse(text)
    read = {name for node in model.graph.node for name in node.input}
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items() if name in read]
    model.graph.initializer.extend(tensors)
    return model


@pytest.mark.parametrize("skipped", [(), ("integers",)])
@WEIGHTS
def test_dynamically_quantised(w_type, bits, skipped):
    model = _model(DYNAMIC, w_type, bits)
    made = cpuconv.compile(model, strategy="heuristic", skip_passes=skipped)
    theirs = runtime_session(runtime, model)
    for batch in (1, 3):
        x = RNG.standard_normal((batch, 5, 9, 8)).astype(np.float32)
        for got, expected in zip(made.run({"x": x}).values(), theirs.run(None, {"x": x}), strict=True):
            close(got, expected, 1e-5 if got.ndim == 4 else 1e-2)  # a mean on the edge between two bytes
    said = [line for line in str(made.explain()).splitlines() if "NumPy" in line]  # what references compute
    assert len(said) == bool(skipped)
    assert all(op in line for line in said for op in ("ConvInteger", "DynamicQuantizeLinear", "MatMulInteger"))


def test_an_image_of_zeros():
    model = _model(DYNAMIC, np.int8, 7)
    x = np.zeros((1, 5, 9, 8), np.float32)
    got = cpuconv.compile(model, strategy="heuristic").run({"x": x})["y"]
    close(got, runtime_session(runtime, model).run(["y"], {"x": x})[0], 1e-5)


@pytest.mark.parametrize("per_channel", [False, True])
@WEIGHTS
def test_statically_quantised(w_type, bits, per_channel):
    model = _model(STATIC, w_type, bits, per_channel)
    x = RNG.standard_normal((2, 5, 9, 8)).astype(np.float32)
    (got,) = cpuconv.compile(model, strategy="heuristic").run({"x": x}).values()
    (expected,) = runtime_session(runtime, model).run(None, {"x": x})
    assert got.shape == expected.shape and np.abs(got - expected).max() <= 0.1001  # a byte
    assert (got == expected).mean() > 0.99
