"""Images as network inputs: files read by Pillow, and resized and normalised as an `Image` states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.errors import ArgumentError, must
from cpuconv.images.files import picture_in
from cpuconv.images.image import Image
from cpuconv.images.preprocessing import Converter, image_port
from cpuconv.network.ports import Port

IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
_MARGIN = 256 / 224  # ratio of the resized shorter side to the window, before the centre crop


@dataclass(frozen=True)
class ImageForm:
    """Normalisation of pixels from 0 to 1: subtract `mean`, divide by `std`; one number, or one per channel.

    uint8 inputs get the pixels unchanged. `image` replaces all of it.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    image: Image | None = None

    def image_for(self, channels: int, shorter: int, pixels: bool) -> Image:
        """How images become an input of `channels` channels, or of `pixels` as they are."""
        if self.image is not None:
            return self.image
        mean, std = (np.array(part, np.float64) for part in (self.mean, self.std))
        for name, part in (("image_mean", mean), ("image_std", std)):
            if len(part) not in (1, channels) and (channels != 1 or self != ImageForm()):
                raise ArgumentError(must(name, f"1 or {channels} numbers", len(part)))
        mean, std = (np.broadcast_to(part.mean() if channels == 1 else part, channels) for part in (mean, std))
        scale, shift = (1.0, 0.0) if pixels else (tuple(1 / (255 * std)), tuple(255 * mean))
        return Image.imagenet(mean=shift, scale=scale, shorter=shorter)


def image_reader(ports: Sequence[Port], form: ImageForm) -> Callable[[Path], np.ndarray]:
    """Make a reader of image files for a network's only input, (N, C, H, W) or (N, H, W, C).

    Raises
    ------
    ArgumentError
        Pillow is missing, the network has no image input, or the numbers of `form` do not match its channels.
    """
    port = ports[0] if len(ports) == 1 else Port("", None, None)
    shape = port.shape if port.shape is not None and len(port.shape) == 4 else (None,) * 4
    last = shape[1] not in (1, 3)
    channels, height, width = (shape[axis] for axis in ((3, 1, 2) if last else (1, 2, 3)))
    if channels not in (1, 3) or not (isinstance(height, int) and isinstance(width, int)):
        wanted = (
            "a folder of .npz files where the network has not one input (N, 1 or 3, H, W) or (N, H, W, 1 or 3), sizes"
            " stated (input_shapes)"
        )
        raise ArgumentError(must("data", wanted, f"of images for {', '.join(map(str, ports))}"))
    image = form.image_for(int(channels), round(_MARGIN * min(height, width)), port.dtype == np.uint8)
    convert = Converter(image_port(port.name, (None, *shape[1:]), port.dtype, image), image, 1)

    def read(path: Path) -> np.ndarray:
        return convert(picture_in(path, "data")).array

    return read
