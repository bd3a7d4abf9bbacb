"""PyTorch in low precision: bfloat16 by oneDNN with prepacked weights, float16, and quantized tensors."""

from __future__ import annotations

import warnings

import numpy as np

from bench.peers.base import Form, symmetric_pads
from bench.peers.torch_peer import functional, output
from bench.typed import Data, Scales
from cpuconv.elements import BF16, F16, U8
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types

ENGINES = ("x86", "fbgemm")  # engines of quantized tensors; x86 selects oneDNN or FBGEMM itself
BFLOAT16, FLOAT16 = Types(BF16, BF16, y=BF16), Types(F16, F16, y=F16)


def forms(problem: ConvProblem, given: Data) -> list[Form]:
    """Return the forms of a problem; empty if PyTorch does not support its types."""
    if problem.types == BFLOAT16:
        return _bfloat16(problem, given)
    if problem.types == FLOAT16:
        return _float16(problem, given)
    if problem.types.x == U8 and problem.types.y == U8 and given.scales is not None:
        return _quantized(problem, given, given.scales)
    return []


def _bfloat16(problem: ConvProblem, given: Data) -> list[Form]:
    """Form in channels_last with weights packed by oneDNN; unpacked, like float16, without oneDNN bfloat16 here."""
    import torch

    p, pads = problem, symmetric_pads(problem)
    x, w = (torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in (given.x, given.w))
    bias = torch.from_numpy(given.bias).to(torch.bfloat16)
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return functional(p, x, w, bias)
    x, w = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, w))
    top, bottom, left, right = p.pads
    padding = list(pads or (0, 0))
    shape = [p.n, p.c, p.h, p.w] if pads else [p.n, p.c, p.h + top + bottom, p.w + left + right]
    steps = padding, list(p.stride), list(p.dilation), p.groups
    packed = torch.ops.mkldnn._reorder_convolution_weight(w, *steps, shape)
    conv, last = torch.ops.mkldnn._convolution_pointwise.default, {}

    def run() -> None:
        source = x if pads else torch.nn.functional.pad(x, (left, right, top, bottom))
        last["y"] = conv(source, packed, bias, *steps, "none", [], "")

    return [Form("channels_last", run, lambda: output(last["y"]), plain=False)]


def _float16(problem: ConvProblem, given: Data) -> list[Form]:
    """Forms with unpacked weights: oneDNN packs none if the CPU has no float16 instructions."""
    import torch

    x, w, bias = (torch.from_numpy(array).to(torch.float16) for array in (given.x, given.w, given.bias))
    return functional(problem, x, w, bias)


def _quantized(problem: ConvProblem, given: Data, scales: Scales) -> list[Form]:
    """Forms of `torch.ops.quantized.conv2d` with prepacked weights, for each supported engine."""
    import torch

    p, pads = problem, symmetric_pads(problem)
    x, bottom_right = given.x, (0, 0)
    if pads is None:  # quantized tensors are padded in NumPy, with the zero point
        top, bottom, left, right = p.pads
        wide = ((0, 0), (0, 0), (top, bottom), (left, right))
        x, pads = np.pad(x, wide, constant_values=scales.x_zero), bottom_right
    sums = torch.from_numpy((given.bias * scales.sums).astype(np.float32))
    weights = (torch.from_numpy(given.w), torch.from_numpy(scales.w_scale), torch.zeros(p.k, dtype=torch.long))
    found = []
    for engine in ENGINES:
        if engine not in torch.backends.quantized.supported_engines:
            continue
        torch.backends.quantized.engine = engine
        with warnings.catch_warnings():  # deprecation warnings of quantized tensors
            warnings.simplefilter("ignore")
            source = torch._make_per_tensor_quantized_tensor(torch.from_numpy(x), float(scales.x_scale), scales.x_zero)
            kernel = torch._make_per_channel_quantized_tensor(*weights, 0)
        source = source.contiguous(memory_format=torch.channels_last)
        packed = torch.ops.quantized.conv2d_prepack(kernel, sums, p.stride, pads, p.dilation, p.groups)
        found.append(_quantized_form(engine, source, packed, scales))
    return found


def _quantized_form(engine, source, packed, scales) -> Form:
    import torch

    last = {}

    def run() -> None:
        last["y"] = torch.ops.quantized.conv2d(source, packed, float(scales.y_scale), scales.y_zero)

    return Form(engine, run, lambda: last["y"].int_repr().contiguous().numpy(), plain=False)
