"""Pictures as callers pass them: arrays, tensors, planes and Pillow's images, checked and described for the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.errors import ArgumentError, ArgumentTypeError, kind_of, must
from cpuconv.kernels.images.emitters import ROWS

CHANNELS = {"RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4, "GRAY": 1, "NV12": 1, "YUYV": 2}
"""Bytes of a pixel, by colour."""
YUV = ("NV12", "YUYV")
_PILLOW_MODES = {"L": "GRAY", "RGB": "RGB", "RGBA": "RGBA"}
_TO_RGB = ("1", "P", "LA", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX", "RGBa", "La")
_TO_PIXELS = ": (p * 255).round().astype(np.uint8), if pixels are from 0 to 1"
_HINTS = {"float32": _TO_PIXELS, "float64": _TO_PIXELS, "uint16": ": (p >> 8).astype(np.uint8)"}


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture of uint8.

    Attributes
    ----------
    array : numpy.ndarray
        Its pixels (H, W, bytes of a pixel), which are adjacent along a row of at least 16 bytes; any stride of rows.
    color : str
    size : (int, int)
        Height and width.
    chroma : numpy.ndarray or None
        U and V of NV12, (ceil(H / 2), W).
    """

    array: np.ndarray
    color: str
    size: tuple[int, int]
    chroma: np.ndarray | None = None

    @property
    def form(self) -> tuple[Any, ...]:
        """Size, colour and strides: pictures that agree in them can be resized by one program."""
        return self.size, self.color, self.array.strides[0], None if self.chroma is None else self.chroma.strides[0]


def picture_of(given: Any, color: str, label: str) -> Picture:
    """Check a picture, `label` in errors, of a colour unless it is Pillow's.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is no picture of 8 bits, is empty, or has another number of channels.
    """
    if hasattr(given, "getbands"):
        array, color = _of_pillow(given, label)
    elif color == "NV12" and isinstance(given, (tuple, list)):
        return _of_planes(given, label)
    else:
        array = _array(given, label)
    wanted = CHANNELS[color]
    if array.ndim == 2 and wanted == 1:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] != wanted:
        shape = "(H, W)" if wanted == 1 else f"(H, W, {wanted})"
        shape = "(H · 3/2, W), or two arrays, Y (H, W) and UV (H/2, W)" if color == "NV12" else shape
        chw = " (channels come last)" if array.ndim == 3 and array.shape[0] == wanted != array.shape[2] else ""
        raise ArgumentError(must(label, f"a picture {shape} as color={color!r} states", f"{array.shape}{chw}"))
    if 0 in array.shape:
        raise ArgumentError(must(label, "a picture of 1 pixel or more", f"an empty one, {array.shape}"))
    if color == "NV12":
        height = array.shape[0] * 2 // 3
        if array.shape[0] != height + height // 2 or height % 2:
            raise ArgumentError(must(label, "of H · 3/2 rows, as NV12 has", f"of {array.shape[0]} rows"))
        return _of_planes((array[:height, :, 0], array[height:, :, 0]), label)
    if color == "YUYV" and array.shape[1] % 2:
        raise ArgumentError(must(label, "of an even width, as YUYV has", f"{array.shape[1]} pixels wide"))
    array, color = _adjacent(array, color)
    return Picture(_wide(array), color, (array.shape[0], array.shape[1]))


def _array(given: Any, label: str) -> np.ndarray:
    """The array of a picture, of uint8."""
    if isinstance(given, np.ndarray):
        array = given
    elif hasattr(given, "detach") or hasattr(given, "__array__") or hasattr(given, "__array_interface__"):
        array = np.asarray(given.detach() if hasattr(given, "detach") else given)
    else:
        raise ArgumentTypeError(must(label, "a picture: an array (H, W, channels) of uint8", kind_of(given)))
    if array.dtype != np.uint8:
        hint = _HINTS.get(array.dtype.name, "")
        raise ArgumentTypeError(must(label, f"a picture of uint8{hint}", f"of {array.dtype}"))
    return array


def _of_pillow(image: Any, label: str) -> tuple[np.ndarray, str]:
    if 0 in image.size:
        raise ArgumentError(must(label, "a picture of 1 pixel or more", f"an empty one, {image.size}"))
    if image.mode not in _PILLOW_MODES:
        if image.mode not in _TO_RGB:
            raise ArgumentTypeError(must(label, "a picture of 8 bits", f"one of Pillow's mode {image.mode!r}"))
        image = image.convert("RGB")
    return np.asarray(image), _PILLOW_MODES[image.mode]


def _adjacent(array: np.ndarray, color: str) -> tuple[np.ndarray, str]:
    """Pixels adjacent along rows: reversed channels are another colour, other strides are copied."""
    height, width, channels = array.shape
    if channels == 3 and array.strides[2] == -1 and (array.strides[1] == 3 or width == 1):
        array, color = array[:, :, ::-1], color[::-1]
    if (array.strides[2] == 1 or channels == 1) and (array.strides[1] == channels or width == 1):
        return array, color
    return np.ascontiguousarray(array), color


def _wide(array: np.ndarray) -> np.ndarray:
    """The array, or a copy whose rows have 16 bytes; those behind the last pixel are not used."""
    height, width, channels = array.shape
    if width * channels >= ROWS:
        return array
    made = np.zeros((height, -(-ROWS // channels), channels), np.uint8)
    made[:, :width] = array
    return made


def _of_planes(given: Sequence[Any], label: str) -> Picture:
    """NV12 of a plane Y (H, W), and of U and V in turn (H/2, W)."""
    if len(given) != 2:
        raise ArgumentError(must(label, "two planes, Y (H, W) and UV (H/2, W)", f"{len(given)}"))
    luma, chroma = (_array(each, label) for each in given)
    if chroma.ndim == 3:
        chroma = chroma.reshape(chroma.shape[0], -1)
    if luma.ndim != 2 or chroma.shape != (luma.shape[0] // 2, luma.shape[1]) or luma.shape[0] % 2 or luma.shape[1] % 2:
        shapes = f"{luma.shape} and {chroma.shape}"
        raise ArgumentError(must(label, "planes Y (H, W) and UV (H/2, W) of even sizes", shapes))
    if 0 in luma.shape:
        raise ArgumentError(must(label, "a picture of 1 pixel or more", f"an empty one, {luma.shape}"))
    luma, chroma = (each if each.strides[1] == 1 else np.ascontiguousarray(each) for each in (luma, chroma))
    return Picture(_wide(luma[:, :, None]), "NV12", (luma.shape[0], luma.shape[1]), chroma)
