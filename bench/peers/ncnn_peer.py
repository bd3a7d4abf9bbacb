"""ncnn: a network of one layer, as text and raw weights; float32, with Winograd and packed layouts enabled."""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path

import numpy as np

from bench.peers.base import Form, missing
from cpuconv.problem.problem import ConvProblem

HALF_PRECISION = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed", "use_bf16_storage")
WIDTHS = (4, 1) if platform.machine() in ("aarch64", "arm64") else (16, 8, 4, 1)  # channels per block of float32
FAST_PATHS = ("use_winograd_convolution", "use_sgemm_convolution", "use_packing_layout")


class NcnnPeer:
    """ncnn.Net with one Convolution or ConvolutionDepthWise layer; a batch is a loop over images."""

    name = "ncnn"
    package = "ncnn"

    def available(self) -> str | None:
        return missing("ncnn")

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        import ncnn

        net = ncnn.Net()
        for option in HALF_PRECISION:
            setattr(net.opt, option, False)
        for option in FAST_PATHS:
            setattr(net.opt, option, True)
        net.opt.num_threads = threads
        with tempfile.TemporaryDirectory() as folder:
            param, weights = Path(folder) / "conv.param", Path(folder) / "conv.bin"
            param.write_text(param_text(problem))
            # Four zero bytes mark float32 weights.
            weights.write_bytes(b"\0\0\0\0" + w.tobytes() + bias.tobytes())
            if net.load_param(str(param)) or net.load_model(str(weights)):
                raise RuntimeError("ncnn did not load the layer")
        images = [ncnn.Mat(np.ascontiguousarray(image)).clone() for image in x]
        lanes = next(n for n in WIDTHS if problem.c % n == 0)
        forms = [_form(net, "nchw", images, keep_packing=0)]
        if lanes > 1:
            blocked = [ncnn.convert_packing(image, lanes, net.opt) for image in images]
            forms.append(_form(net, f"packed {lanes}", blocked, keep_packing=1))
        return forms


def param_text(problem: ConvProblem) -> str:
    """Return the layer in ncnn's param format."""
    p = problem
    top, bottom, left, right = p.pads
    values = {
        0: p.k,
        1: p.s,
        11: p.r,
        2: p.dilation[1],
        12: p.dilation[0],
        3: p.stride[1],
        13: p.stride[0],
        4: left,
        14: top,
        15: right,
        16: bottom,
        5: 1,
        6: int(np.prod(p.weight_shape)),
    }
    kind = "Convolution"
    if p.groups > 1:
        kind, values[7] = "ConvolutionDepthWise", p.groups
    settings = " ".join(f"{key}={value}" for key, value in values.items())
    return f"7767517\n2 2\nInput x 0 1 x\n{kind} conv 1 1 x y {settings}\n"


def _form(net, name: str, images: list, keep_packing: int) -> Form:
    """Make a form; with `keep_packing` 1 the result stays in ncnn's blocked layout, with 0 it is unpacked."""
    import ncnn

    last = [None] * len(images)

    def run() -> None:
        for index, image in enumerate(images):
            extractor = net.create_extractor()
            extractor.input("x", image)
            status, last[index] = extractor.extract("y", keep_packing)
            if status:
                raise RuntimeError(f"ncnn's extract returned {status}")

    def output() -> np.ndarray:
        return np.stack([np.array(ncnn.convert_packing(y, 1, net.opt)) for y in last])

    return Form(name, run, output, plain=not keep_packing)
