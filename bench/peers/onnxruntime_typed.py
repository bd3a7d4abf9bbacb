"""ONNX Runtime in int8: QLinearConv in NCHW, and its own NHWC variant as used within a network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bench.peers.base import Form
from bench.peers.onnx_quantized import CHANNELS_LAST, qlinear
from bench.typed import Data
from cpuconv.problem.problem import ConvProblem

CHANNELS_FIRST = (0, 3, 1, 2)


def forms(problem: ConvProblem, given: Data, network: Callable[[bytes, dict[str, np.ndarray]], Form]) -> list[Form]:
    """Return the forms; `network` makes one from a model's bytes and inputs. Empty for float types (no bfloat16)."""
    if given.scales is None or not problem.types.y.integer or problem.types.y.bytes > 1:
        return []
    plain = network(qlinear(problem, given, False), {"x": given.x})
    last = network(qlinear(problem, given, True), {"x": np.ascontiguousarray(given.x.transpose(CHANNELS_LAST))})
    return [
        Form("nchw", plain.run, lambda: plain.output()[0]),
        Form("nhwc", last.run, lambda: last.output()[0].transpose(CHANNELS_FIRST), plain=False),
    ]
