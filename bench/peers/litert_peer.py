"""LiteRT with XNNPACK: ONNX files converted by way of PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.peers.base import Form, OnnxPeer


class LiteRtPeer(OnnxPeer):
    """ai_edge_litert's interpreter for the module that onnx2torch makes."""

    name = "LiteRT"
    package = "ai-edge-litert"
    needs = ("ai_edge_litert", "litert_torch", "onnx2torch", "torch")

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        import litert_torch
        import onnx2torch
        import torch
        from ai_edge_litert.interpreter import Interpreter

        module = onnx2torch.convert(str(path)).eval()
        converted = litert_torch.convert(module, tuple(torch.from_numpy(array) for array in feed.values()))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "network.tflite"
            converted.export(str(file))
            interpreter = Interpreter(model_content=file.read_bytes(), num_threads=threads)
        interpreter.allocate_tensors()
        for place, array in zip(interpreter.get_input_details(), feed.values(), strict=True):
            interpreter.set_tensor(place["index"], array)
        places = [place["index"] for place in interpreter.get_output_details()]
        return [Form("plain", interpreter.invoke, lambda: [interpreter.get_tensor(place) for place in places])]
