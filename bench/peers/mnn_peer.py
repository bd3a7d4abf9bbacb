"""MNN: models converted from ONNX, with host NCHW arrays or in MNN's own layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.peers.base import Form, OnnxPeer


class MnnPeer(OnnxPeer):
    """MNN.Interpreter sessions on the CPU backend; `precision` is MNN's option."""

    name = "MNN"
    package = "MNN"
    needs = ("MNN", "_tools", "onnx")

    def __init__(self, precision: str = "high") -> None:
        self.precision = precision

    def converted(self, path: Path, folder: Path) -> Path:
        import _tools  # the converter's extension module; its wrapper MNN.tools reports each use to the vendor

        made = folder / f"{path.stem}.mnn"
        arguments = ["-f", "ONNX", "--modelFile", str(path), "--MNNModel", str(made), "--bizCode", "bench"]
        _tools.mnnconvert(["mnnconvert", *arguments, "--keepInputFormat", "1"])  # slower without this option
        if not made.is_file():
            raise RuntimeError("MNN's converter made no model")
        return made

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import MNN

        def host(array: np.ndarray) -> MNN.Tensor:
            return MNN.Tensor(array.shape, MNN.Halide_Type_Float, array, MNN.Tensor_DimensionType_Caffe)

        interpreter = MNN.Interpreter(str(path))
        session = interpreter.createSession({"backend": "CPU", "precision": self.precision, "numThread": threads})
        interpreter.resizeSession(session)
        sources = [(interpreter.getSessionInput(session, name), host(array)) for name, array in feed.items()]
        targets = [
            (target, host(np.empty(target.getShape(), np.float32)))
            for target in interpreter.getSessionOutputAll(session).values()
        ]

        def run() -> None:
            # The session may overwrite its input; the next run then computes on other values, which takes as long.
            interpreter.runSession(session)

        def run_plain() -> None:  # a session's own tensors are in channel blocks: NCHW needs copies
            for source, array in sources:
                source.copyFrom(array)
            run()
            for target, array in targets:
                target.copyToHostTensor(array)

        def outputs() -> list[np.ndarray]:
            run_plain()
            return [np.array(array.getNumpyData()).reshape(target.getShape()) for target, array in targets]

        return [Form("nchw", run_plain, outputs), Form("blocked", run, outputs, plain=False)]
