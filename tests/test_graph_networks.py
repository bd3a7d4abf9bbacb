"""Whole networks by the references, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from graphs import close, made, runtime_session  # noqa: E402

from cpuconv.graph.interpret import interpret  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def _with_random_weights(path: Path) -> onnx.ModelProto:
    """The model, whose weights nodes make of one number, with random ones of He's variance."""
    model, rng = onnx.load(path), np.random.default_rng(0)
    sizes = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "ConstantOfShape"]
    for node in nodes:
        model.graph.node.remove(node)
        weight = onnx.numpy_helper.from_array(_weight(rng, tuple(sizes[node.input[0]])), node.output[0])
        model.graph.initializer.append(weight)
    assert nodes
    return model


def _weight(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Kernels and matrices are normal, vectors positive, so that they serve as variances too."""
    if len(shape) < 2:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return rng.standard_normal(shape, np.float32) * np.float32((2 / np.prod(shape[1:])) ** 0.5)


@pytest.mark.parametrize("name", ["shufflenet", "squeezenet"])
def test_network(name):
    model = _with_random_weights(LIGHT / f"light_{name}.onnx")
    graph = made(model, strict=True)
    assert not {"Constant", "ConstantOfShape", "Dropout", "Shape"} & {node.op for node in graph.nodes}
    (value,) = map(graph.value, graph.inputs)
    feed = {graph.inputs[0]: np.random.default_rng(1).normal(size=value.shape).astype(value.dtype)}
    expected = runtime_session(runtime, model).run(None, feed)
    (got,) = interpret(graph, feed).values()
    close(got, expected[0], 1e-4)
    assert np.ptp(got) > 1e-4 * np.abs(got).max()  # weights tell classes apart
