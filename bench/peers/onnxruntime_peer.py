"""ONNX Runtime: inputs and outputs bound once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.peers.base import Form, OnnxPeer
from bench.typed import Data
from cpuconv.problem.problem import ConvProblem


class OnnxRuntimePeer(OnnxPeer):
    """onnxruntime.InferenceSession on the CPU provider."""

    name = "ONNX Runtime"
    package = "onnxruntime"
    needs = ("onnxruntime", "onnx")

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        """Prepare QLinearConv in NCHW, and its own NHWC variant as within a network; none for float types."""
        from bench.peers.onnx_model import CHANNELS_FIRST, CHANNELS_LAST, qlinear

        if given.scales is None or not problem.types.y.integer or problem.types.y.bytes > 1:
            return []
        plain = self._session(qlinear(problem, given, False), {"x": given.x}, threads)
        x = np.ascontiguousarray(given.x.transpose(CHANNELS_LAST))
        last = self._session(qlinear(problem, given, True), {"x": x}, threads)
        return [
            Form("nchw", plain.run, lambda: plain.output()[0]),
            Form("nhwc", last.run, lambda: last.output()[0].transpose(CHANNELS_FIRST), plain=False),
        ]

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
