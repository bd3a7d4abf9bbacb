"""MNN: converted from the ONNX model of one node, precision high, on host NCHW arrays or in MNN's own layout."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from bench.peers.base import Form, missing
from cpuconv.problem.problem import ConvProblem


class MnnPeer:
    """MNN.Interpreter sessions on the CPU backend."""

    name = "MNN"
    package = "MNN"

    def available(self) -> str | None:
        return missing("MNN") or missing("_tools") or missing("onnx")

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        import MNN

        from bench.peers.onnx_model import conv_model

        interpreter = _interpreter(conv_model(problem, w, bias))
        session = interpreter.createSession({"backend": "CPU", "precision": "high", "numThread": threads})
        source, target = interpreter.getSessionInput(session), interpreter.getSessionOutput(session)
        interpreter.resizeSession(session)
        host_x, host_y = (
            MNN.Tensor(array.shape, MNN.Halide_Type_Float, array, MNN.Tensor_DimensionType_Caffe)
            for array in (x, np.empty(problem.out_shape, np.float32))
        )

        def run() -> None:
            # The session may write over its input, and a run after that computes on what it left: as much work.
            interpreter.runSession(session)

        def run_plain() -> None:  # a session's own tensors are in channel blocks: NCHW goes in and out by copies
            source.copyFrom(host_x)
            run()
            target.copyToHostTensor(host_y)

        def output() -> np.ndarray:
            run_plain()
            return np.array(host_y.getNumpyData()).reshape(problem.out_shape)

        return [Form("nchw", run_plain, output), Form("blocked", run, output, plain=False)]


def _interpreter(model: bytes):
    import _tools  # the converter's extension module; MNN.tools around it reports each use to its makers
    import MNN

    with tempfile.TemporaryDirectory() as folder:
        onnx_file, mnn_file = Path(folder) / "conv.onnx", Path(folder) / "conv.mnn"
        onnx_file.write_bytes(model)
        arguments = ["-f", "ONNX", "--modelFile", str(onnx_file), "--MNNModel", str(mnn_file), "--bizCode", "bench"]
        _tools.mnnconvert(["mnnconvert", *arguments, "--keepInputFormat", "1"])  # left out, the model is slower
        return MNN.Interpreter(str(mnn_file))
