"""Apache TVM without tuning: its wheel's tuner ends with a segmentation fault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.base import Form, OnnxPeer
from cpuconv.runtime.target import target


class TvmPeer(OnnxPeer):
    """tvm.relax from ONNX, compiled for this CPU by the pipeline "zero"."""

    name = "TVM (untuned)"
    package = "apache-tvm"
    needs = ("tvm", "onnx")

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import onnx
        import tvm
        from tvm import relax
        from tvm.relax.frontend import onnx as frontend

        shapes = {name: list(array.shape) for name, array in feed.items()}
        module = frontend.from_onnx(onnx.load(path), shape_dict=shapes, keep_params_in_input=False)
        cpu = tvm.target.Target({"kind": "llvm", "mcpu": target()[1], "num-cores": threads})
        with cpu, tvm.transform.PassContext(opt_level=3):
            compiled = tvm.compile(relax.get_pipeline("zero")(module), target=cpu)
        machine = relax.VirtualMachine(compiled, tvm.cpu())
        inputs = [tvm.runtime.tensor(array) for array in feed.values()]
        given: list[Any] = []

        def run() -> None:
            given[:] = [machine["main"](*inputs)]

        def outputs() -> list[np.ndarray]:
            (found,) = given
            return [found.numpy()] if hasattr(found, "numpy") else [each.numpy() for each in found]

        return [Form("plain", run, outputs)]
