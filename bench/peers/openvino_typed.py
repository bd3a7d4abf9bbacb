"""OpenVINO in low precision: a model of one layer, and the layer alone by OpenVINO's own counters.

A single layer is surrounded by reorders, which it does not have within a network. So the time that counts is that of
the convolution's node in OpenVINO's profiling. The counter is the mean of all runs of a compiled model, in whole
microseconds. A sample is therefore taken from a newly compiled model over a few runs, less its warm-up runs.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.peers.base import Form
from bench.peers.onnx_model import CHANNELS_FIRST, CHANNELS_LAST, conv_model, dequantized
from bench.peers.openvino_peer import latency, run_of
from bench.typed import Data, numbers
from cpuconv.elements import BF16, U8
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types

BFLOAT16 = Types(BF16, BF16, y=BF16)
WARMUP_RUNS, MIN_RUNS, MAX_RUNS = 10, 10, 100  # runs of a newly compiled model: warm-up, and bounds of the counted ones
KINDS = ("Convolution", "GroupConvolution")
HALF = 0.5e-6  # seconds; average error of a mean that is truncated to microseconds


def forms(problem: ConvProblem, given: Data, threads: int) -> list[Form]:
    """Return the forms of a problem; empty if OpenVINO does not support its types."""
    if problem.types == BFLOAT16:
        return _Layer(_bfloat16(problem, given), "bf16", given.x, threads, channels_last=True).forms()
    if problem.types.x == U8 and problem.types.y == U8:
        return _Layer(_model(dequantized(problem, given)), "f32", given.x, threads).forms()
    return []


def _model(onnx: bytes) -> Any:
    import io

    import openvino

    return openvino.Core().read_model(io.BytesIO(onnx))


def _bfloat16(problem: ConvProblem, given: Data) -> Any:
    """A float32 convolution with bfloat16 input and output in NHWC, so that no reorders surround the layer."""
    import openvino
    from openvino.preprocess import PrePostProcessor

    weights = numbers(given.w).astype(np.float32)
    around = PrePostProcessor(_model(conv_model(problem, weights, given.bias)))
    for end in (around.input(), around.output()):
        end.tensor().set_element_type(openvino.Type.bf16).set_layout(openvino.Layout("NHWC"))
        end.model().set_layout(openvino.Layout("NCHW"))
    return around.build()


class _Layer:
    """A model of one layer that is compiled again for every sample."""

    def __init__(self, model: Any, precision: str, x: np.ndarray, threads: int, channels_last: bool = False) -> None:
        self.model, self.channels_last = model, channels_last
        self.settings = latency(threads, precision)
        self.x = np.ascontiguousarray(x.transpose(CHANNELS_LAST)) if channels_last else x
        self.whole = self.request(profiled=False)
        self.run = run_of(self.whole)
        self.run()
        _, self.kind = counted(self.request(profiled=True), 1)

    def forms(self) -> list[Form]:
        whole = "nhwc" if self.channels_last else "nchw"
        return [
            Form("layer", self.run, self.output, plain=False, detail=self.kind, sample=self.sample),
            Form(whole, self.run, self.output, plain=not self.channels_last, detail=self.kind),
        ]

    def request(self, profiled: bool) -> Any:
        import openvino

        compiled = openvino.Core().compile_model(self.model, "CPU", {**self.settings, "PERF_COUNT": profiled})
        request = compiled.create_infer_request()
        port = compiled.inputs[0]
        request.set_input_tensor(openvino.Tensor(self.x, openvino.Shape(self.x.shape), port.get_element_type()))
        return request

    def output(self) -> np.ndarray:
        tensor = self.whole.get_output_tensor(0)
        data = np.array(tensor.data)
        data = data.view(np.uint16) if data.dtype.itemsize == 2 else data
        return data.transpose(CHANNELS_FIRST) if self.channels_last else data

    def sample(self, seconds: float) -> list[float]:
        """Return mean times of the layer, each from a newly compiled model; at least one."""
        found: list[float] = []
        clock = time.perf_counter
        end = clock() + seconds
        while not found or clock() < end:
            request = self.request(profiled=True)
            before, _ = counted(request, WARMUP_RUNS)
            runs = int(min(MAX_RUNS, max(MIN_RUNS, seconds / 2 / max(before / WARMUP_RUNS, 1e-6))))
            after, _ = counted(request, runs, WARMUP_RUNS)
            found.append(max(after - before, 1e-7 * runs) / runs)
        return found


def counted(request: Any, runs: int, earlier: int = 0) -> tuple[float, str]:
    """Run `runs` times; return the layer's seconds in all runs, `earlier` ones included, and the kernel type."""
    run = run_of(request)
    for _ in range(runs):
        run()
    told = [node for node in request.get_profiling_info() if node.node_type in KINDS]
    if len(told) != 1:
        raise RuntimeError(f"OpenVINO runs {len(told)} convolutions in place of one")
    return (told[0].real_time.total_seconds() + HALF) * (runs + earlier), told[0].exec_type
