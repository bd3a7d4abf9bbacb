"""Other engines that `cpuconv benchmark --against` runs where they are installed: one function each."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from cpuconv.errors import ArgumentError, must

Feed = Mapping[str, np.ndarray]
Run = Callable[[], Mapping[str, np.ndarray]]


class Engine(NamedTuple):
    """An engine with a prepared model.

    Attributes
    ----------
    name : str
        Name and version.
    new_caller : Callable[[], Run]
        Function that returns a run of the model on the feed for one caller; runs of several callers may overlap.
    """

    name: str
    new_caller: Callable[[], Run]


def _onnxruntime(path: str, feed: Feed, threads: int, streams: int) -> Engine:
    ort: Any = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    run: Run = lambda: dict(zip(names, session.run(None, feed), strict=True))  # noqa: E731
    return Engine(f"ONNX Runtime {ort.__version__}", lambda: run)


def _openvino(path: str, feed: Feed, threads: int, streams: int, precision: str = "") -> Engine:
    ov: Any = importlib.import_module("openvino")
    model = ov.Core().read_model(path)
    model.reshape({name: list(array.shape) for name, array in feed.items()})
    hints: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads * streams, "PERFORMANCE_HINT": "LATENCY"}
    hints |= {"NUM_STREAMS": streams} if streams > 1 else {}
    hints |= {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    compiled = ov.Core().compile_model(model, "CPU", hints)
    names = [output.get_any_name() for output in compiled.outputs]
    computes_in = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()

    def new_caller() -> Run:
        request = compiled.create_infer_request()
        return lambda: dict(zip(names, request.infer(feed, share_inputs=True).values(), strict=True))

    return Engine(f"OpenVINO {ov.__version__.partition('-')[0]} ({computes_in})", new_caller)


def _openvino_float32(path: str, feed: Feed, threads: int, streams: int) -> Engine:
    return _openvino(path, feed, threads, streams, "f32")


ENGINES: dict[str, Callable[[str, Feed, int, int], Engine]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,  # computes in bfloat16 where the CPU multiplies it: its default
    "openvino-float32": _openvino_float32,
}


def prepared(name: str, path: str, feed: Feed, threads: int, streams: int = 1) -> Engine:
    """Return the engine of a name in `ENGINES` with the ONNX file at `path`, for streams of so many threads each.

    Raises
    ------
    ArgumentError
        The engine is not installed, or cannot read or compile the model.
    """
    try:
        return ENGINES[name](path, feed, threads, streams)
    except ImportError as error:
        package = name.partition("-")[0]
        raise ArgumentError(must("--against", f"an installed engine (pip install {package})", name)) from error
    except Exception as error:  # each engine raises its own types
        raise ArgumentError(must("--against", "an engine that can run the model", f"{name} ({error})")) from error
