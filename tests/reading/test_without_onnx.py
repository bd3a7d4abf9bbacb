"""Models where the package onnx is not installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("onnx")  # which writes the models

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.graph.ir import Value  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402
from support.running import processes  # noqa: E402

RELU = "g (float[2,3,4,5] x) => (float[2,3,4,5] y) { y = Relu(x) }"
RUN = """import sys
sys.modules["onnx"] = sys.modules["google.protobuf"] = None
import numpy as np, cpuconv
x = np.array([-1, 2, 3], np.float32)
model = cpuconv.compile(sys.argv[1])
model.save(sys.argv[2])
for each in (model, cpuconv.load(sys.argv[2])):
    print(each(x).tolist())"""


def test_without_onnx_a_model_is_read(monkeypatch):
    data = parse(RELU).SerializeToString()
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert [node.op for node in read(data).nodes] == ["Relu"]


def test_without_onnx_the_error_says_what_to_install(monkeypatch):
    data = parse("g (float[4] x) => (float[4] y) { y = Acos(x) }").SerializeToString()
    graph = read(data)
    for name in ("onnx", "onnx.shape_inference"):
        monkeypatch.setitem(sys.modules, name, None)
    (node,) = graph.nodes
    message = r"Acos.*has no kernel; the package onnx computes it.*pip install 'cpuconv\[onnx\]'"
    with pytest.raises(SourceError, match=message):
        node.semantics.infer(node, [Value((4,), np.dtype(np.float32))])
    with pytest.raises(SourceError, match=message):
        node.semantics.evaluate(node, [np.zeros(4, np.float32)], [None])


def test_a_process_without_it_compiles_runs_saves_and_loads(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(parse("g (float[3] x) => (float[3] y) { y = Relu(x) }").SerializeToString())
    done = processes.run("-c", RUN, str(path), str(tmp_path / "net.cpuconv"))
    assert done.stdout.splitlines() == ["[0.0, 2.0, 3.0]"] * 2
