"""OpenVINO: compiled for latency, with inputs and outputs in NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.base import Form, OnnxPeer
from bench.typed import Data
from cpuconv.problem.problem import ConvProblem


class OpenVinoPeer(OnnxPeer):
    """openvino.Core().compile_model on the CPU plugin.

    Parameters
    ----------
    precision : str or None
        The inference precision hint; None: OpenVINO's default.
    """

    name = "OpenVINO"
    package = "openvino"
    needs = ("openvino", "onnx")

    def __init__(self, precision: str | None = "f32") -> None:
        self.precision = precision

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        from bench.peers import openvino_typed

        return openvino_typed.forms(problem, given, threads)

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import openvino

        core = openvino.Core()
        compiled = core.compile_model(core.read_model(path), "CPU", latency(threads, self.precision))
        request = compiled.create_infer_request()
        for name, array in feed.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))

        run = run_of(request)
        run()
        arrays = [np.array(request.get_output_tensor(at).data) for at in range(len(compiled.outputs))]
        for at, array in enumerate(arrays):
            request.set_output_tensor(at, openvino.Tensor(array, shared_memory=True))
        return [Form("plain", run, lambda: arrays, keep=(feed, compiled))]


def latency(threads: int, precision: str | None) -> dict[str, object]:
    """Return the settings of a model that is compiled for latency."""
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    return settings if precision is None else {**settings, "INFERENCE_PRECISION_HINT": precision}


def run_of(request: Any) -> Callable[[], None]:
    """Return a function that runs a prepared request."""

    def run() -> None:
        request.start_async()
        request.wait()

    return run
