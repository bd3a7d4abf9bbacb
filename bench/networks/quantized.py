"""Quantised networks, made by onnxruntime.quantization.

`quantized`: QDQ, uint8 tensors, int8 weights per output channel. `dynamic`: int8 or uint8 weights; activations are
quantised at run time.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter

from bench.networks import Network

OPSET = 17  # scales per output channel need at least 13
FEEDS = 4  # random inputs for calibration


WEIGHTS = ("s8", "u8")  # weight types of dynamic quantisation


def quantized(network: Network, path: Path) -> Path:
    """Return the int8 file next to a network's own; make it if it is missing or older.

    Raises
    ------
    ModuleNotFoundError
        If it must be made, and ONNX Runtime is not installed.
    """
    made = path.with_suffix(".int8.onnx")
    if made.is_file() and made.stat().st_mtime_ns >= path.stat().st_mtime_ns:
        return made
    if importlib.util.find_spec("onnxruntime") is None:
        raise ModuleNotFoundError(f"{made} is not there, and onnxruntime, which makes it, is not installed")
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Feeds(CalibrationDataReader):
        """Random inputs."""

        def __init__(self) -> None:
            self.left: Iterator[dict[str, np.ndarray]] = (network.feed(network.inputs, 1 + at) for at in range(FEEDS))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    with tempfile.TemporaryDirectory(prefix="bench-quantized-", dir=path.parent) as folder:
        newer, folded, written = (Path(folder) / name for name in ("newer.onnx", "folded.onnx", "int8.onnx"))
        model = onnx.load(path)
        if max(each.version for each in model.opset_import if not each.domain) < OPSET:
            model = onnx.version_converter.convert_version(model, OPSET)
        onnx.save(model, newer)
        quant_pre_process(str(newer), str(folded), skip_symbolic_shape=True)
        quantize_static(
            str(folded),
            str(written),
            Feeds(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
        os.replace(written, made)
    made.with_suffix(".npz").unlink(missing_ok=True)
    return made


def dynamic(path: Path, weights: str) -> Path | None:
    """Make the file with dynamically quantised weights (`WEIGHTS`) next to a network's own; None without such weights.

    Raises
    ------
    ModuleNotFoundError
        If ONNX Runtime is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise ModuleNotFoundError("onnxruntime, which makes networks of integers, is not installed")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = path.with_suffix(f".{weights}.onnx")
    quantize_dynamic(str(path), str(made), weight_type=QuantType.QUInt8 if weights == "u8" else QuantType.QInt8)
    if any(node.op_type.startswith("Dynamic") for node in onnx.load(made).graph.node):
        return made
    made.unlink()
    return None
