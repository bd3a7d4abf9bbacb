"""ONNX Runtime: a model of one node, input and output bound once."""

from __future__ import annotations

import numpy as np

from bench.peers.base import Form, missing
from cpuconv.problem.problem import ConvProblem


class OnnxRuntimePeer:
    """onnxruntime.InferenceSession on the CPU provider."""

    name = "ONNX Runtime"
    package = "onnxruntime"

    def available(self) -> str | None:
        return missing("onnxruntime") or missing("onnx")

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        import onnxruntime

        from bench.peers.onnx_model import conv_model

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = onnxruntime.InferenceSession(
            conv_model(problem, w, bias), options, providers=["CPUExecutionProvider"]
        )
        source = onnxruntime.OrtValue.ortvalue_from_numpy(x)
        target = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty(problem.out_shape, np.float32))
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", source)
        binding.bind_ortvalue_output("y", target)
        return [Form("plain", lambda: session.run_with_iobinding(binding), target.numpy)]
