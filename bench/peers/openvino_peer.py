"""OpenVINO: the model of one node, compiled for latency and held to float32."""

from __future__ import annotations

import numpy as np

from bench.peers.base import Form, missing
from cpuconv.problem.problem import ConvProblem


class OpenVinoPeer:
    """openvino.Core().compile_model on the CPU plugin."""

    name = "OpenVINO"
    package = "openvino"

    def available(self) -> str | None:
        return missing("openvino") or missing("onnx")

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        import openvino

        from bench.peers.onnx_model import conv_model

        core = openvino.Core()
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
        }
        compiled = core.compile_model(core.read_model(conv_model(problem, w, bias)), "CPU", settings)
        request = compiled.create_infer_request()
        y = np.empty(problem.out_shape, np.float32)
        request.set_input_tensor(openvino.Tensor(x, shared_memory=True))
        request.set_output_tensor(openvino.Tensor(y, shared_memory=True))

        def run() -> None:
            request.start_async()
            request.wait()

        return [Form("plain", run, lambda: y, keep=(x, compiled))]
