"""Constants of ONNX models that lie in files of their own."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, numpy_helper  # noqa: E402

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import close, parse, run  # noqa: E402


@pytest.fixture
def external(tmp_path):
    """A model whose constant lies in another file, with the given entries of its place."""

    def save(**place):
        w = numpy_helper.from_array(np.arange(6, dtype=np.float32), "w")
        (tmp_path / "weights.bin").write_bytes(b"\0" * 4 + w.raw_data)
        w.ClearField("raw_data")
        w.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "weights.bin", "offset": "4", "length": "24", **place}.items():
            w.external_data.add(key=key, value=value)
        model = parse("g (float[6] x) => (float[6] y) { y = Add(x, w) }")
        model.graph.initializer.append(w)
        path = tmp_path / "net.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return save


def test_external_data(external):
    close(run(external(), {"x": np.ones(6, np.float32)})[0], np.arange(1, 7, dtype=np.float32))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"location": "../weights.bin"}, "must be in the model's folder"),
        ({"location": "/etc/hostname"}, "must be in the model's folder"),
        ({"location": "nowhere.bin"}, "cannot be read"),
        ({"offset": "8"}, "must have 24 bytes of it from offset 8 on"),
        ({"offset": "-4"}, "must have 24 bytes"),
        ({"length": "20"}, "must have 24 bytes"),
        ({"length": "many"}, "cannot be read"),
    ],
)
def test_external_data_elsewhere(external, place, message):
    with pytest.raises(SourceError, match=f"the constant 'w'.*{message}"):
        read(external(**place))


def test_external_data_needs_a_folder(external):
    with pytest.raises(SourceError, match="'w' is stored in the file 'weights.bin': give the model by its path"):
        read(external().read_bytes())
