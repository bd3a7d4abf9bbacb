"""Networks of float16 and bfloat16: kernels compute them in float32, or as `precision` says, and their ends stay."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import cpuconv  # noqa: E402
from support.graphs import programs_of  # noqa: E402

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
TYPES = {F16: TensorProto.FLOAT16, BF16: TensorProto.BFLOAT16, np.dtype(np.float32): TensorProto.FLOAT}
SHAPES = {"w": (20, 40, 3, 3), "b": (20,), "v": (20, 9), "k": (3,)}


def network(dtype: np.dtype) -> onnx.ModelProto:
    """The same numbers, which every type holds, in one of them."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(-8, 9, shape).astype(np.float32) / 64 for name, shape in SHAPES.items()}
    kept = [numpy_helper.from_array(array.astype(dtype), name) for name, array in arrays.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["c"]),
        helper.make_node("Cast", ["c"], ["d"], to=TYPES[dtype]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
        helper.make_node("Shape", ["c"], ["s"]),
        helper.make_node("Identity", ["x"], ["z"]),
    ]
    x = helper.make_tensor_value_info("x", TYPES[dtype], (1, 40, 9, 7))
    outputs = [helper.make_tensor_value_info(name, TYPES[dtype], None) for name in ("y", "c", "z", "k")]
    outputs.append(helper.make_tensor_value_info("s", TensorProto.INT64, None))
    made = helper.make_graph(nodes, "g", [x], outputs, kept)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_ends_stay_and_kernels_compute_all(dtype, precision, tmp_path):
    x = (np.random.default_rng(1).integers(-99, 99, (1, 40, 9, 7)) / 32).astype(dtype)
    right = cpuconv.compile(network(np.dtype(np.float32)), strategy="heuristic").run({"x": x.astype(np.float32)})
    model = cpuconv.compile(network(dtype), precision=precision, threads=1, strategy="heuristic")
    got = model.run({"x": x})
    assert {name: array.dtype for name, array in got.items()} == dict.fromkeys("yczk", dtype) | {"s": np.dtype("i8")}
    step = 2.0**-8 if dtype == BF16 or precision == "bfloat16" else 2.0**-11  # of the last rounding
    for name in "yczk":
        largest = np.abs(right[name]).max()
        np.testing.assert_allclose(got[name].astype(np.float32), right[name], rtol=0, atol=1.01 * step * largest)
    np.testing.assert_array_equal(got["z"], x)
    assert all(operation.node_plan.offer is not None for operation in programs_of(model).last.executable.operations)
    model.save(tmp_path / "net.cpuconv")
    for name, array in cpuconv.load(tmp_path / "net.cpuconv", threads=1).run({"x": x}).items():
        np.testing.assert_array_equal(array, got[name])


def test_what_is_too_large_for_float16_inside_is_finite():
    node = [helper.make_node("Mul", ["x", "x"], ["a"]), helper.make_node("Sqrt", ["a"], ["y"])]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT16, (5,))] for name in "xy"]
    model = helper.make_model(helper.make_graph(node, "g", *ends), opset_imports=[helper.make_opsetid("", 17)])
    x = np.array([1, 300, 60000, -2, np.inf], np.float16)
    np.testing.assert_array_equal(cpuconv.compile(model)(x), np.abs(x))
