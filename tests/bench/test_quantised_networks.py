"""Networks of bytes that packs are built for have the form that quantisation writes."""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import onnx
import pytest

from bench.packs.quantised_networks import quantised
from bench.packs.random_networks import drawn

quantization = pytest.importorskip("onnxruntime.quantization")


class _Noise(quantization.CalibrationDataReader):
    def __init__(self, model: onnx.ModelProto) -> None:
        given = model.graph.input[0]
        shape = [each.dim_value for each in given.type.tensor_type.shape.dim]
        self._feeds = iter([{given.name: np.random.default_rng(0).standard_normal(shape, np.float32)}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


@pytest.mark.parametrize("number", range(4))
def test_operators_are_those_of_quantize_static(number: int, tmp_path: Path) -> None:
    model = drawn(number, 1)
    onnx.save(model, tmp_path / "model.onnx")
    quantization.quantize_static(
        tmp_path / "model.onnx",
        tmp_path / "quantised.onnx",
        _Noise(model),
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
    )
    ours, theirs = (_read(each) for each in (quantised(model), onnx.load(tmp_path / "quantised.onnx")))
    assert ours == theirs
    assert ("Conv", "DequantizeLinear", "DequantizeLinear", "DequantizeLinear") in ours


def _read(model: onnx.ModelProto) -> collections.Counter[tuple[str, ...]]:
    """Operators, each with those that give what it reads; constants by their dtypes."""
    given = {name: node.op_type for node in model.graph.node for name in node.output}
    given |= {each.name: onnx.TensorProto.DataType.Name(each.data_type) for each in model.graph.initializer}
    return collections.Counter(
        (node.op_type, *(given.get(name, "") for name in node.input)) for node in model.graph.node
    )
