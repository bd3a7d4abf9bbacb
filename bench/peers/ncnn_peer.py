"""ncnn: a network of one layer, as text and raw weights, or one that pnnx converts; float32, with Winograd enabled."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.base import Form, missing
from cpuconv.problem.problem import ConvProblem

HALF_PRECISION = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed", "use_bf16_storage")
WIDTHS = (4, 1) if platform.machine() in ("aarch64", "arm64") else (16, 8, 4, 1)  # channels per block of float32
FAST_PATHS = ("use_winograd_convolution", "use_sgemm_convolution", "use_packing_layout")


class NcnnPeer:
    """ncnn.Net: one Convolution or ConvolutionDepthWise layer, or a network; a batch is a loop over images."""

    name = "ncnn"
    package = "ncnn"

    def available(self) -> str | None:
        return missing("ncnn")

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        import ncnn

        net = _net(threads)
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

    def converted(self, path: Path, folder: Path) -> Path:
        """Return the text of the network, with its weights next to it; made by pnnx, unless it is next to `path`."""
        made = path.with_suffix(".ncnn.param")
        if not made.is_file():
            copy = shutil.copy(path, folder)
            subprocess.run(["pnnx", copy, "fp16=0"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            made = folder / made.name
        return made

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        """Load a network whose inputs are those of `feed`, in its order, each with a batch of one."""
        import ncnn

        net = _net(threads)
        if net.load_param(str(path)) or net.load_model(str(path.with_suffix(".bin"))):
            raise RuntimeError("ncnn did not load the network")
        mats = [ncnn.Mat(array[0]).clone() for array in feed.values()]
        inputs = list(zip(net.input_names(), mats, strict=True))
        given: list[Any] = []

        def run() -> None:
            extractor = net.create_extractor()
            for name, mat in inputs:
                extractor.input(name, mat)
            results = [extractor.extract(name) for name in net.output_names()]
            if any(status for status, _ in results):
                raise RuntimeError("ncnn's extract failed")
            given[:] = [np.array(mat)[None] for _, mat in results]

        return [Form("plain", run, lambda: given)]


def _net(threads: int) -> Any:
    """Make an empty network for float32."""
    import ncnn

    net = ncnn.Net()
    for option in HALF_PRECISION:
        setattr(net.opt, option, False)
    for option in FAST_PATHS:
        setattr(net.opt, option, True)
    net.opt.num_threads = threads
    return net


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
