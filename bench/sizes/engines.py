"""Engines that run a network at any size: loading an ONNX file with open sizes, and running it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Loaded(NamedTuple):
    """A network, ready to run.

    Attributes
    ----------
    run : callable
        Runs once; the timed call.
    outputs : callable
        Converts the result of `run` to a list of arrays, in order.
    """

    run: Callable[[Mapping[str, np.ndarray]], Any]
    outputs: Callable[[Any], list[np.ndarray]]


def load_cpuconv(path: str, threads: int) -> Loaded:
    """Load a network in cpuconv at its default settings."""
    import cpuconv

    model = cpuconv.compile(path, threads=threads)
    return Loaded(model.run, lambda results: list(results.values()))


def load_onnxruntime(path: str, threads: int) -> Loaded:
    """Load a network in ONNX Runtime on its CPU provider."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Loaded(lambda feed: session.run(None, dict(feed)), list)


def load_openvino(path: str, threads: int) -> Loaded:
    """Load a network in OpenVINO's CPU plugin, for latency, in float32."""
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    request, count = compiled.create_infer_request(), len(compiled.outputs)
    return Loaded(
        lambda feed: request.infer(dict(feed), share_inputs=True, share_outputs=True),
        lambda results: [np.array(results[at]) for at in range(count)],
    )


class Engine(NamedTuple):
    """An engine: its name in tables, its module, and its function to load a network."""

    name: str
    module: str
    load: Callable[[str, int], Loaded]

    def begin(self) -> None:
        """Import the engine."""
        importlib.import_module(self.module)

    @property
    def missing(self) -> bool:
        """Whether the engine is not installed."""
        return importlib.util.find_spec(self.module) is None


CPUCONV = "cpuconv"
ENGINES = {
    CPUCONV: Engine("cpuconv", "cpuconv", load_cpuconv),
    "onnxruntime": Engine("ONNX Runtime", "onnxruntime", load_onnxruntime),
    "openvino": Engine("OpenVINO float32", "openvino", load_openvino),
}
