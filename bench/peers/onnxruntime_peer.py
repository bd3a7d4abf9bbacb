"""ONNX Runtime: inputs and outputs bound once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.peers.base import Form, missing
from bench.typed import Data
from cpuconv.problem.problem import ConvProblem


class OnnxRuntimePeer:
    """onnxruntime.InferenceSession on the CPU provider."""

    name = "ONNX Runtime"
    package = "onnxruntime"

    def available(self) -> str | None:
        return missing("onnxruntime") or missing("onnx")

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        from bench.peers.onnx_model import convolution

        return convolution(self, problem, x, w, bias, threads)

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        from bench.peers import onnxruntime_typed

        return onnxruntime_typed.forms(problem, given, lambda model, feed: self._session(model, feed, threads))

    def converted(self, path: Path, folder: Path) -> Path:
        return path

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        return [self._session(str(path), feed, threads)]

    def _session(self, model: str | bytes, feed: Mapping[str, np.ndarray], threads: int) -> Form:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        targets = {}
        for port, array in zip(session.get_outputs(), session.run(None, dict(feed)), strict=True):
            targets[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(array))
            binding.bind_ortvalue_output(port.name, targets[port.name])

        def outputs() -> list[np.ndarray]:
            return [target.numpy() for target in targets.values()]

        return Form("plain", lambda: session.run_with_iobinding(binding), outputs)
