"""The ONNX package's backend tests, by its own runner: operators of the graph's table, and models from PyTorch."""

from __future__ import annotations

import os
import re
import unittest
import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper, numpy_helper  # noqa: E402
from onnx.backend.test import BackendTest  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

from cpuconv.errors import ArgumentError  # noqa: E402
from cpuconv.graph.control import BODIES  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402
from cpuconv.integrations import onnx_backend  # noqa: E402
from cpuconv.integrations.onnx_backend import CpuconvBackend  # noqa: E402

ALL = "CPUCONV_ALL_BACKEND_TESTS" in os.environ  # those of operators without a row in the table too
OPS = {*TABLE, *BODIES, "Dropout", "Upsample", "Constant"}
NUMBERS = {*map(np.dtype, ("?", *"bhiqBHIQ", "f4", "f8"))}
FOREIGN = "sequence|strnorm|gradient"  # models of sequences, of strings and of training
DRAWN = re.compile("bernoulli")  # whose results are those of one draw
LIGHT = ("test_squeezenet", "test_shufflenet")

# Tests that do not pass, each with its reason.
FAILING = {
    "test_resize_downsample_scales_linear_align_corners": "the length is a whole number, as in ONNX Runtime",
    "test_maxunpool_export_with_output_shape": "indices count in the stated shape, as in ONNX Runtime",
    "test_resize_downsample_scales_cubic_align_corners": "the length is a whole number, as in ONNX Runtime",
}


class Quick(CpuconvBackend):
    """The backend, which asks no store for what to run."""

    @classmethod
    def prepare(cls, model, device="CPU", **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super().prepare(model, device, strategy="heuristic", **options)


def _names() -> list[str]:
    """Tests that are run."""
    names = [case.name for case in load_model_tests(kind="node") if _ours(case)]
    names += [case.name for case in load_model_tests(kind="real") if ALL or case.name in LIGHT]
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        names += [case.name for case in load_model_tests(kind=kind) if not re.search(FOREIGN, case.name)]
    return names


def _ours(case) -> bool:
    """Whether a case is one operator of the table, on tensors of numbers."""
    nodes = case.model.graph.node
    if DRAWN.search(case.name):
        return False
    if not ALL and (len(nodes) != 1 or nodes[0].op_type not in OPS):
        return False
    return all(_plain(item) for part in case.data_sets[0] for item in part)


def _plain(item: object) -> bool:
    if isinstance(item, onnx.TensorProto):
        item = numpy_helper.to_array(item)
    return isinstance(item, (np.ndarray, np.generic)) and item.dtype in NUMBERS


def _classes() -> dict[str, type[unittest.TestCase]]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        made = BackendTest(Quick, __name__)
        made.include(f"^({'|'.join(_names())})_cpu$")
    made.xfail(f"^({'|'.join(FAILING)})_cpu$")
    classes = made.test_cases
    for case in classes.values():
        for name in [name for name in vars(case) if getattr(getattr(case, name), "__unittest_skip__", False)]:
            delattr(case, name)  # thousands, not to be listed
    return classes


CLASSES = _classes()
globals().update(CLASSES)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where the runner writes."""
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))


def test_most_pass():
    names = {name.removesuffix("_cpu") for case in CLASSES.values() for name in vars(case) if name.startswith("test_")}
    assert len(names) > 800
    assert FAILING.keys() <= names
    assert len(FAILING) <= 0.05 * len(names)


def test_one_node():
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    (y,) = onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    assert np.array_equal(y, np.maximum(x, 0))
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    outputs = onnx_backend.run_node(node, [x, np.array([3, -1])], opset_version=13)
    assert np.array_equal(outputs["y"], x.reshape(3, 2))


def test_a_model_for_each_value_that_steers():
    shape = helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [2])
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 6])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["A", "B"])
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Mul", ["shape", "shape"], ["squares"]),
        helper.make_node("Reshape", ["n", "squares"], ["y"]),
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", [x, shape], [y]))
    prepared = onnx_backend.prepare(model)
    array = np.arange(36, dtype=np.float32).reshape(6, 6)
    for sides in ([1, 6], [2, 3], [3, 2], [6, 1], [1, 6]):
        (got,) = prepared.run([array, np.array(sides)])
        assert np.array_equal(got, -array.reshape(np.square(sides)))
    with pytest.raises(ArgumentError, match=r"feed\['shape'\]"):
        prepared.run([array, np.array([1, 2, 3])])


def test_devices_and_what_can_be_read():
    assert onnx_backend.supports_device("CPU") and onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    text = helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [text], [text])
    graph.output[0].name = "y"
    assert not onnx_backend.is_compatible(helper.make_model(graph))
