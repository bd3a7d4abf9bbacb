"""PyTorch: plain NCHW, channels_last, and oneDNN's own tensors and prepacked weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.base import Form, missing, symmetric_pads
from bench.typed import Data
from cpuconv.problem.problem import ConvProblem


class TorchPeer:
    """torch.nn.functional.conv2d and torch.mkldnn_convolution; networks as modules made by onnx2torch.

    Parameters
    ----------
    precision : str
        Precision of networks: "float32" or "bf16".
    """

    name = "PyTorch"
    package = "torch"

    def __init__(self, precision: str = "float32") -> None:
        self.precision = precision

    def available(self) -> str | None:
        return missing("torch")

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        tensors: Any = [torch.from_numpy(array) for array in (x, w, bias)]
        forms = [
            _functional(problem, "nchw", *tensors),
            _functional(problem, "channels_last", *tensors, memory_format=torch.channels_last),
        ]
        # oneDNN's tensors cannot be padded, so a problem with asymmetric padding has no such form.
        if torch.backends.mkldnn.is_available() and (pads := symmetric_pads(problem)):
            forms += _mkldnn(problem, pads, *tensors)
        return forms

    def converted(self, path: Path, folder: Path) -> Path:
        return path

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import torch

        from bench.peers import torch_network

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        return torch_network.forms(path, feed, self.precision)

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        import torch

        from bench.peers import torch_typed

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        return torch_typed.forms(problem, given)


def _functional(problem: ConvProblem, name: str, x, w, bias, *, memory_format=None) -> Form:
    import torch

    if memory_format is not None:
        x, w = x.to(memory_format=memory_format), w.to(memory_format=memory_format)
    pads = symmetric_pads(problem)
    top, bottom, left, right = problem.pads
    conv, last = torch.nn.functional.conv2d, {}

    def run() -> None:
        last["y"] = conv(x, w, bias, problem.stride, pads, problem.dilation, problem.groups)

    def run_padded() -> None:
        padded = torch.nn.functional.pad(x, (left, right, top, bottom))
        last["y"] = conv(padded, w, bias, problem.stride, 0, problem.dilation, problem.groups)

    return Form(name, run if pads else run_padded, lambda: last["y"].contiguous().numpy(), plain=memory_format is None)


def _mkldnn(problem: ConvProblem, pads: tuple[int, int], x, w, bias) -> list[Form]:
    """Forms with prepacked weights: on a plain input, and on an input in oneDNN's blocked layout."""
    import torch

    p = problem
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(
        w.to_mkldnn(), pads, p.stride, p.dilation, p.groups, (p.n, p.c, p.h, p.w)
    )
    bias, plain = bias.to_mkldnn(), x.to_mkldnn()
    identity = torch.eye(p.c).reshape(p.c, p.c, 1, 1).to_mkldnn()
    inputs = {"mkldnn": plain}
    if p.c >= 8:  # with fewer channels it is a network's first layer, whose input is a plain image
        zeros = torch.zeros(p.c).to_mkldnn()
        inputs["mkldnn blocked"] = torch.mkldnn_convolution(plain, identity, zeros, (0, 0), (1, 1), (1, 1), 1)

    def form(name: str, source) -> Form:
        last = {}

        def run() -> None:
            last["y"] = torch.mkldnn_convolution(source, packed, bias, pads, p.stride, p.dilation, p.groups)

        return Form(name, run, lambda: last["y"].to_dense().contiguous().numpy(), plain=False)

    return [form(name, source) for name, source in inputs.items()]
