"""Pictures for tests, and the resize of a picture in exact numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cpuconv.elements import F32, Element
from cpuconv.images.image import Image
from cpuconv.images.preprocessing import Converter, ImagePort

SIZES = [
    (720, 1280, 360, 640), (375, 500, 256, 341), (100, 77, 33, 150), (50, 50, 640, 640), (7, 5, 64, 64), (1, 1, 8, 8),
    (333, 517, 640, 413), (1000, 37, 5, 3), (97, 203, 97, 100), (16, 16, 16, 16), (200, 300, 100, 100), (3, 700, 1, 1),
    (1, 40, 31, 17), (40, 1, 17, 31), (200, 30, 40, 29), (15, 15, 33, 65), (100, 60, 50, 40), (100, 60, 60, 40),
]  # fmt: skip
"""Heights and widths of pictures, and of the resized ones."""


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """A picture of noise."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def converter(
    shape: tuple[int, int],
    image: Image,
    *,
    channels: int = 3,
    last: bool = False,
    element: Element = F32,
    threads: int = 1,
    batch: int | None = None,
) -> Converter:
    """A converter to an input of some size."""
    return Converter(ImagePort("x", batch, channels, shape, last, element), image, threads)


def resized(picture: np.ndarray, shape: tuple[int, int], method: str, threads: int = 1) -> np.ndarray:
    """Pixels (H, W, C) of a picture that is stretched by a method."""
    channels = 1 if picture.ndim == 2 else picture.shape[2]
    color = "GRAY" if channels == 1 else "RGB"
    image = Image(scale=1.0, color=color, resize=method)
    return converter(shape, image, channels=channels, threads=threads)(picture).array[0].transpose(1, 2, 0)


def _keys(a: float) -> Callable[[float], float]:
    def value(x: float) -> float:
        x = abs(x)
        if x < 1:
            return ((a + 2) * x - (a + 3)) * x * x + 1
        return a * (((x - 5) * x + 8) * x - 4) if x < 2 else 0.0

    return value


def _lanczos(x: float) -> float:
    return float(np.sinc(x) * np.sinc(x / 3)) if abs(x) < 3 else 0.0


def _hamming(x: float) -> float:
    return float(np.sinc(x) * (0.54 + 0.46 * math.cos(math.pi * x))) if abs(x) < 1 else 0.0


_FILTERS: dict[str, tuple[Callable[[float], float], float]] = {
    "box": (lambda x: float(-0.5 < x <= 0.5), 0.5),
    "bilinear": (lambda x: max(0.0, 1 - abs(x)), 1.0),
    "hamming": (_hamming, 1.0),
    "bicubic": (_keys(-0.5), 2.0),
    "lanczos": (_lanczos, 3.0),
}


def weights(method: str, size: int, outputs: int) -> np.ndarray:
    """Weights (outputs, size) of a resize along an axis, in float64, by the definition of the filters."""
    library, _, name = method.partition("_")
    step, made = size / outputs, np.zeros((outputs, size))
    for at in range(outputs):
        center = (at + 0.5) * step
        if name == "nearest":
            made[at, min(size - 1, int((at if library == "cv2" else at + 0.5) * step))] = 1
        elif name == "area":
            covered = np.minimum(np.arange(size) + 1, (at + 1) * step) - np.maximum(np.arange(size), at * step)
            made[at] = np.clip(covered, 0, None) / step
        elif library == "cv2":
            kernel = _keys(-0.75) if name == "cubic" else _FILTERS["bilinear"][0]
            first = math.floor(center - 0.5)
            for place in range(first - 1, first + 3):
                made[at, min(max(place, 0), size - 1)] += kernel(center - 0.5 - place)
        else:
            kernel, reach = _FILTERS[name]
            stretch = max(1.0, step)
            places = range(max(0, int(center - reach * stretch + 0.5)), min(size, int(center + reach * stretch + 0.5)))
            for place in places:
                made[at, place] = kernel((place + 0.5 - center) / stretch)
            made[at] /= made[at].sum()
    return made


def exact(picture: np.ndarray, shape: tuple[int, int], method: str) -> np.ndarray:
    """The resized picture in float64, not rounded, pixels from 0 to 255."""
    down, across = (weights(method, size, to) for size, to in zip(picture.shape, shape, strict=False))
    made: Any = np.einsum("yh,hwc,xw->yxc", down, picture.astype(np.float64), across, optimize=True)
    return np.clip(made, 0, 255)
