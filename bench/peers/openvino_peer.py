"""OpenVINO: compiled for latency, with inputs and outputs in NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.peers.base import Form, missing
from bench.typed import Data
from cpuconv.problem.problem import ConvProblem


class OpenVinoPeer:
    """openvino.Core().compile_model on the CPU plugin.

    Parameters
    ----------
    precision : str or None
        The inference precision hint; None: OpenVINO's default.
    """

    name = "OpenVINO"
    package = "openvino"

    def __init__(self, precision: str | None = "f32") -> None:
        self.precision = precision

    def available(self) -> str | None:
        return missing("openvino") or missing("onnx")

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        from bench.peers.onnx_model import convolution

        return convolution(self, problem, x, w, bias, threads)

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        from bench.peers import openvino_typed

        return openvino_typed.forms(problem, given, threads)

    def converted(self, path: Path, folder: Path) -> Path:
        return path

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import openvino

        core = openvino.Core()
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
        } | ({} if self.precision is None else {"INFERENCE_PRECISION_HINT": self.precision})
        compiled = core.compile_model(core.read_model(path), "CPU", settings)
        request = compiled.create_infer_request()
        for name, array in feed.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))

        def run() -> None:
            request.start_async()
            request.wait()

        run()
        arrays = [np.array(request.get_output_tensor(at).data) for at in range(len(compiled.outputs))]
        for at, array in enumerate(arrays):
            request.set_output_tensor(at, openvino.Tensor(array, shared_memory=True))
        return [Form("plain", run, lambda: arrays, keep=(feed, compiled))]
