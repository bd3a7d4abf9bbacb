"""Geometry of a picture in an input of a network: how it is resized and placed, and coordinates back to the picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from baselib.data_classes import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Geometry:
    """Place of a picture in an input.

    Attributes
    ----------
    picture, resized, shape : (int, int)
        Height and width of the picture, of the resized picture, and of the input.
    top, left : int
        Place of the resized picture's corner in the input; negative where it is cropped.
    """

    picture: tuple[int, int]
    resized: tuple[int, int]
    shape: tuple[int, int]
    top: int
    left: int

    @property
    def scale(self) -> tuple[float, float]:
        """Factors of the resize along height and width."""
        return self.resized[0] / self.picture[0], self.resized[1] / self.picture[1]

    def covers(self, other: Geometry) -> bool:
        """Whether both resized pictures cover the same part of the input."""
        return (self.resized, self.top, self.left) == (other.resized, other.top, other.left)

    def points(self, points: Any) -> NDArray[np.float32]:
        """Map points (..., 2), x and y in pixels of the input, to pixels of the picture."""
        (high, wide), given = self.scale, np.asarray(points, np.float32)
        return ((given - np.array([self.left, self.top], np.float32)) / np.array([wide, high], np.float32)).astype(
            np.float32
        )

    def boxes(self, boxes: Any, clip: bool = True) -> NDArray[np.float32]:
        """Map boxes (..., 4), their corners x0, y0, x1, y1 in pixels of the input, to pixels of the picture.

        `clip` cuts off what is outside of the picture.
        """
        given = np.asarray(boxes, np.float32)
        made = self.points(given.reshape(*given.shape[:-1], 2, 2))
        if clip:
            made = np.clip(made, 0, np.array(self.picture[::-1], np.float32))
        return made.reshape(given.shape)


def stretched(picture: tuple[int, int], shape: tuple[int, int]) -> Geometry:
    """The picture resized to the input's size, whatever its ratio of sides."""
    return Geometry(picture, shape, shape, 0, 0)


def letterboxed(picture: tuple[int, int], shape: tuple[int, int], center: bool, enlarge: bool) -> Geometry:
    """The picture resized to fit into the input, its ratio of sides kept, as Ultralytics' LetterBox does."""
    ratio = min(shape[0] / picture[0], shape[1] / picture[1])
    ratio = ratio if enlarge else min(ratio, 1.0)
    resized = max(1, round(picture[0] * ratio)), max(1, round(picture[1] * ratio))
    top, left = (round((size - own) / 2 - 0.1) if center else 0 for size, own in zip(shape, resized, strict=True))
    return Geometry(picture, resized, shape, top, left)


def cropped(picture: tuple[int, int], shape: tuple[int, int], shorter: int | None) -> Geometry:
    """The centre of a picture that is resized to cover the input, or more of it, as torchvision and timm do.

    `shorter` is the length of the shorter side of a picture that covers a square input; None: the input's.
    """
    factor = 1.0 if shorter is None else shorter / min(shape)
    target = round(shape[0] * factor), round(shape[1] * factor)
    if target[0] * picture[1] >= target[1] * picture[0]:
        resized = target[0], max(target[1], int(target[0] * picture[1] / picture[0]))
    else:
        resized = max(target[0], int(target[1] * picture[0] / picture[1])), target[1]
    top, left = (-round((own - size) / 2.0) for own, size in zip(resized, shape, strict=True))
    return Geometry(picture, resized, shape, top, left)


def lined(picture: tuple[int, int], shape: tuple[int, int]) -> Geometry:
    """The picture at the input's height, at its left, and as wide as its ratio of sides says, as PaddleOCR does."""
    width = math.ceil(shape[0] * (picture[1] / picture[0]))
    return Geometry(picture, (shape[0], min(width, shape[1])), shape, 0, 0)


def placed(picture: tuple[int, int], shape: tuple[int, int]) -> Geometry:
    """The picture as it is, its centre that of the input; cropped or filled up where sizes differ."""
    top, left = ((size - own) // 2 for size, own in zip(shape, picture, strict=True))
    return Geometry(picture, picture, shape, top, left)
