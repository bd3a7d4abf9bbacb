"""Rewrites before the dequantisation of constants is folded: what stands between hides no integer operator."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


import cpuconv  # noqa: E402
from support.graphs import parse, runtime_session  # noqa: E402


@pytest.mark.parametrize("after", "xfvc")
def test_an_identity_between_a_layer_and_conversions_changes_nothing(after):
    names = {name: f"{name}_same" if name == after else name for name in "xfvc"}
    lines = ["f = DequantizeLinear({x}, s, z)", "v = DequantizeLinear(w, t, n)", "c = Conv({f}, {v})"]
    lines.insert("xfvc".index(after), f"{names[after]} = Identity({after})")
    text = "\n".join([*lines, "y = QuantizeLinear({c}, u, z)"]).format(**names)
    arrays = {"w": np.random.default_rng(1).integers(-9, 10, (4, 8, 1, 1), np.int8), "n": np.int8(0), "z": np.uint8(99)}
    arrays |= {"s": np.float32(0.1), "t": np.float32(0.02), "u": np.float32(0.3)}
    model = parse(f"g (uint8[1,8,5,6] x) => (uint8[1,4,5,6] y) {{\n{text}\n}}", **arrays)
    compiled = cpuconv.compile(model, strategy="heuristic", threads=1)
    assert {each["op"] for each in compiled.explain().to_dict()["operators"]} - {"Copy"} == {"QuantizedConv"}
    x = np.random.default_rng(0).integers(0, 256, (1, 8, 5, 6), np.uint8)
    (wanted,) = runtime_session(runtime, model).run(None, {"x": x})
    assert np.abs(compiled.run({"x": x})["y"].astype(int) - wanted).max() <= 1
