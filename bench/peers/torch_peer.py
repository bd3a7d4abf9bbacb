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

        _begin(threads)
        tensors: Any = [torch.from_numpy(array) for array in (x, w, bias)]
        forms = functional(problem, *tensors)
        # oneDNN's tensors cannot be padded, so a problem with asymmetric padding has no such form.
        if torch.backends.mkldnn.is_available() and (pads := symmetric_pads(problem)):
            forms += _mkldnn(problem, pads, *tensors)
        return forms

    def converted(self, path: Path, folder: Path) -> Path:
        return path

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        from bench.peers import torch_network

        _begin(threads)
        return torch_network.forms(path, feed, self.precision)

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        from bench.peers import torch_typed

        _begin(threads)
        return torch_typed.forms(problem, given)


def _begin(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)


def functional(problem: ConvProblem, x, w, bias) -> list[Form]:
    """Forms of `conv2d` in NCHW and channels_last, with unpacked weights."""
    import torch

    p, pads = problem, symmetric_pads(problem)
    (top, bottom, left, right), found = p.pads, []
    for name, memory in (("nchw", torch.contiguous_format), ("channels_last", torch.channels_last)):
        x, w = (tensor.contiguous(memory_format=memory) for tensor in (x, w))
        last: dict[str, Any] = {}

        def run(x: Any = x, w: Any = w, last: dict[str, Any] = last) -> None:
            source = torch.nn.functional.pad(x, (left, right, top, bottom)) if pads is None else x
            last["y"] = torch.nn.functional.conv2d(source, w, bias, p.stride, pads or 0, p.dilation, p.groups)

        def result(last: dict[str, Any] = last) -> np.ndarray:
            return output(last["y"])

        found.append(Form(name, run, result, plain=name == "nchw"))
    return found


def output(y) -> np.ndarray:
    """Return a NumPy array; bfloat16 becomes uint16, as NumPy has no such dtype."""
    import torch

    y = y.contiguous()
    return y.view(torch.int16).numpy().view(np.uint16) if y.dtype == torch.bfloat16 else y.numpy()


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
