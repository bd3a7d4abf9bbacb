"""Images as network inputs: read by Pillow, cropped and scaled as in the training of ImageNet classifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.errors import ArgumentError, must
from cpuconv.network.ports import Port

IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
_MODES = {1: "L", 3: "RGB"}  # Pillow mode by number of channels
_MARGIN = 256 / 224  # ratio of the resized shorter side to the window, before the centre crop


@dataclass(frozen=True)
class ImageForm:
    """Normalisation of pixels from 0 to 1: subtract `mean`, divide by `std`; one number, or one per channel.

    uint8 inputs get the pixels unchanged.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)


class _Window(NamedTuple):
    """Crop of an image for an input; `last`: channels are the last axis."""

    channels: int
    height: int
    width: int
    last: bool


def _window(ports: Sequence[Port]) -> _Window:
    """Window of a network's only input, (N, C, H, W) or (N, H, W, C)."""
    shape = ports[0].shape or () if len(ports) == 1 else ()
    for last, axes in ((False, (1, 2, 3)), (True, (3, 1, 2))):
        channels, height, width = [shape[axis] for axis in axes] if len(shape) == 4 else (None,) * 3
        if channels in _MODES and isinstance(height, int) and isinstance(width, int):
            return _Window(int(channels), height, width, last)
    wanted = (
        "a folder of .npz files where the network has not one input (N, 1 or 3, H, W) or (N, H, W, 1 or 3), sizes"
        " stated (input_shapes)"
    )
    raise ArgumentError(must("data", wanted, f"of images for {', '.join(map(str, ports))}"))


def image_reader(ports: Sequence[Port], form: ImageForm) -> Callable[[Path], np.ndarray]:
    """Make a reader of image files: bilinear resize, shorter side 256/224 of the window's, centre crop.

    Raises
    ------
    ArgumentError
        Pillow is missing, the network has no image input, or the numbers of `form` do not match its channels.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ArgumentError(
            must("data", "a folder of .npz files where Pillow is missing (pip install pillow)", "of images")
        ) from error
    channels, height, width, last = _window(ports)
    dtype = ports[0].dtype
    numbers = [np.array(part, np.float32) for part in (form.mean, form.std)]
    for name, part in zip(("image_mean", "image_std"), numbers, strict=True):
        if len(part) not in (1, channels) and (channels != 1 or form != ImageForm()):
            raise ArgumentError(must(name, f"1 or {channels} numbers", len(part)))
    mean, std = (part.mean(0, keepdims=True) if channels == 1 else part for part in numbers)

    def read(path: Path) -> np.ndarray:
        try:
            with Image.open(path) as file:
                image = file.convert(_MODES[channels])
        except Exception as error:  # Pillow raises many types for files that are not images
            raise ArgumentError(must("data", "images that can be read", f"{path} ({error})")) from error
        ratio = _MARGIN * max(width / image.width, height / image.height)
        wide, high = (max(least, round(size * ratio)) for least, size in zip((width, height), image.size, strict=True))
        left, top = (wide - width) // 2, (high - height) // 2
        image = image.resize((wide, high), Image.Resampling.BILINEAR)
        pixels = np.asarray(image.crop((left, top, left + width, top + height))).reshape(1, height, width, channels)
        if dtype != np.uint8:
            pixels = ((pixels / np.float32(255) - mean) / std).astype(np.float16 if dtype == np.float16 else np.float32)
        return np.ascontiguousarray(pixels if last else pixels.transpose(0, 3, 1, 2))

    return read
