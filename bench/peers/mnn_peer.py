"""MNN: converted from the ONNX model of one node, precision high, input kept NCHW or in MNN's own NC4HW4."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from bench.peers.base import Form, missing
from cpuconv.problem import ConvProblem


class MnnPeer:
    """MNN.Interpreter sessions on the CPU backend."""

    name = "MNN"
    package = "MNN"

    def available(self) -> str | None:
        return missing("MNN") or missing("_tools") or missing("onnx")

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        from bench.peers.onnx_model import conv_model

        model = conv_model(problem, w, bias)
        return [_form(problem, name, model, x, threads, keep) for name, keep in (("nchw", 1), ("nc4hw4", 0))]


def _form(problem: ConvProblem, name: str, model: bytes, x: np.ndarray, threads: int, keep_input_format: int) -> Form:
    import _tools  # the converter's extension module; MNN.tools around it reports each use to its makers
    import MNN

    with tempfile.TemporaryDirectory() as folder:
        onnx_file, mnn_file = Path(folder) / "conv.onnx", Path(folder) / "conv.mnn"
        onnx_file.write_bytes(model)
        arguments = ["-f", "ONNX", "--modelFile", str(onnx_file), "--MNNModel", str(mnn_file), "--bizCode", "bench"]
        _tools.mnnconvert(["mnnconvert", *arguments, "--keepInputFormat", str(keep_input_format)])
        interpreter = MNN.Interpreter(str(mnn_file))
    session = interpreter.createSession({"backend": "CPU", "precision": "high", "numThread": threads})
    source, target = interpreter.getSessionInput(session), interpreter.getSessionOutput(session)
    interpreter.resizeSession(session)
    source.copyFrom(MNN.Tensor(x.shape, MNN.Halide_Type_Float, x, MNN.Tensor_DimensionType_Caffe))

    def output() -> np.ndarray:
        y = np.empty(problem.out_shape, np.float32)
        host = MNN.Tensor(y.shape, MNN.Halide_Type_Float, y, MNN.Tensor_DimensionType_Caffe)
        target.copyToHostTensor(host)
        return np.array(host.getNumpyData()).reshape(problem.out_shape)

    return Form(name, lambda: interpreter.runSession(session), output)
