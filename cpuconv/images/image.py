"""Image: how pictures become an input of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.errors import ArgumentError, ArgumentTypeError, kind_of, must
from cpuconv.images.geometry import Geometry, cropped, letterboxed, lined, placed, stretched
from cpuconv.images.methods import METHODS
from cpuconv.images.picture import CHANNELS

PRESETS = ("imagenet", "yolo", "clip")
Numbers = float | tuple[float, ...]
_SIZES = ("stretch", "letterbox", "crop", "line", "keep")
_NETWORK_COLORS = ("RGB", "BGR")
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@dataclass(frozen=True)
class Image:
    """How pictures of uint8 become an input (N, C, H, W) or (N, H, W, C) of a network: ``(pixel - mean) · scale``.

    Attributes
    ----------
    size : "stretch", "letterbox", "crop", "line" or "keep"
        How a picture gets the input's size. "stretch": both sides are resized. "letterbox": it is resized to fit, its
        ratio of sides kept, and filled up with `fill`, as Ultralytics' LetterBox does. "crop": it is resized to cover
        the input, and its centre taken, as torchvision and timm do. "line": it gets the input's height, and a width in
        its ratio of sides, at most the input's; the rest on the right is filled up, as recognisers of text do. "keep":
        no resize; cropped or filled up at its borders where sizes differ.
    color : "RGB", "BGR", "RGBA", "BGRA", "GRAY", "NV12" or "YUYV"
        Colour of arrays, (H, W, channels) of uint8; an alpha channel is dropped. NV12 is one array (H · 3/2, W), or a
        tuple of Y (H, W) and UV (H/2, W); YUYV is (H, W, 2). Pillow's images state their colour themselves.
    mean, scale : float, or tuple of float
        One number, or one per channel of the network, in units of pixels from 0 to 255.
    fill : float, or tuple of float
        Pixel outside the picture, from 0 to 255; one per channel of the network, or one for all. Fractions are
        possible, such as 127.5 for zero in an input from -1 to 1.
    resize : str
        Method: "cv2_nearest", "cv2_linear", "cv2_cubic", "cv2_area", or "pillow_nearest", "pillow_box",
        "pillow_bilinear", "pillow_hamming", "pillow_bicubic", "pillow_lanczos". Pillow's methods are antialiased.
        Results equal those of the named library, except for "cv2_cubic" and "cv2_area": within one step of 255.
    network_color : "RGB" or "BGR"
        Order of the input's channels.
    shorter : int or None
        With "crop": length of the shorter side after the resize, such as 256 for a crop of 224. None: the input's.
    shape : (int, int) or None
        Height and width, where the network leaves them open.
    center, enlarge : bool
        With "letterbox": whether the picture is in the middle, or at the top left; whether small ones are enlarged.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An attribute has a wrong value; the message names it.
    """

    size: str = "stretch"
    color: str = "RGB"
    mean: Numbers = 0.0
    scale: Numbers = 1 / 255
    fill: Numbers = 0.0
    resize: str = "cv2_linear"
    network_color: str = "RGB"
    shorter: int | None = None
    shape: tuple[int, int] | None = None
    center: bool = True
    enlarge: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (
            ("size", _SIZES),
            ("color", (*CHANNELS,)),
            ("resize", (*METHODS,)),
            ("network_color", _NETWORK_COLORS),
        ):
            if getattr(self, name) not in allowed:
                raise ArgumentError(must(name, f"one of {', '.join(allowed)}", repr(getattr(self, name))))
        for name in ("mean", "scale", "fill"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), name == "fill"))
        if self.shape is not None:
            given = self.shape if isinstance(self.shape, (tuple, list)) else ()
            if len(given) != 2 or not all(_is_size(each) for each in given):
                raise ArgumentError(must("shape", "(height, width), integers of 1 or more", repr(self.shape)))
            object.__setattr__(self, "shape", (int(given[0]), int(given[1])))
        if self.shorter is not None and not _is_size(self.shorter):
            raise ArgumentError(must("shorter", "an integer of 1 or more, or None", repr(self.shorter)))

    # --- presets ------------------------------------------------------------------------------------------------------

    @classmethod
    def imagenet(cls, **changes: Any) -> Image:
        """As classifiers of torchvision and timm: shorter side 256, centre crop, Pillow's bilinear resize."""
        return cls(**{**_normalised(*_IMAGENET), "size": "crop", "shorter": 256, "resize": "pillow_bilinear"} | changes)

    @classmethod
    def yolo(cls, **changes: Any) -> Image:
        """As Ultralytics' detectors: letterbox with 114, pixels from 0 to 1; pictures of OpenCV, BGR."""
        stated: dict[str, Any] = {"size": "letterbox", "color": "BGR", "fill": 114}
        return cls(**stated | changes)

    @classmethod
    def clip(cls, **changes: Any) -> Image:
        """As image towers of CLIP: centre crop of the whole shorter side, Pillow's bicubic resize."""
        return cls(**{**_normalised(*_CLIP), "size": "crop", "resize": "pillow_bicubic"} | changes)

    @classmethod
    def from_config(cls, config: Any, **changes: Any) -> Image:
        """As a configuration states: timm's, a processor's of transformers, or the metadata of Ultralytics.

        Parameters
        ----------
        config : mapping or object
            timm: ``model.pretrained_cfg`` or ``timm.data.resolve_model_data_config(model)``. transformers: the content
            of ``preprocessor_config.json``, or the processor. Ultralytics: the model's metadata, with ``task`` and
            ``imgsz``.
        **changes
            Attributes that replace those of the configuration.
        """
        from cpuconv.images.configs import attributes  # deferred: few programs need it

        return cls(**attributes(config) | changes)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Image:
        """A preset by its name, one of `PRESETS`."""
        if name not in PRESETS:
            raise ArgumentError(must("preset", f"one of {', '.join(PRESETS)}", repr(name)))
        return getattr(cls, name)(**changes)

    # --- use ----------------------------------------------------------------------------------------------------------

    def placed(self, picture: tuple[int, int], shape: tuple[int, int]) -> Geometry:
        """The place of a picture (height, width) in an input (height, width)."""
        if self.size == "letterbox":
            return letterboxed(picture, shape, self.center, self.enlarge)
        if self.size == "crop":
            return cropped(picture, shape, self.shorter)
        if self.size == "line":
            return lined(picture, shape)
        return (stretched if self.size == "stretch" else placed)(picture, shape)

    def check_channels(self, channels: int, label: str) -> None:
        """Check that numbers per channel are those of a network's channels."""
        for name in ("mean", "scale", "fill"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != channels:
                raise ArgumentError(must(f"{label}.{name}", f"1 or {channels} numbers", len(value)))

    def numbers(self, channels: int) -> list[tuple[float, float, float]]:
        """Fill value, scale and shift of each channel: ``pixel · scale + shift``."""
        every = zip(*(_each(value, channels) for value in (self.fill, self.scale, self.mean)), strict=True)
        return [(fill, scale, -mean * scale) for fill, scale, mean in every]

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain values."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Image:
        """Undo `to_dict`; raises as the class does, and TypeError for unknown attributes."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
        }
        return cls(**given)


def _normalised(mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    """`mean` and `scale` for a mean and a standard deviation of pixels from 0 to 1."""
    return {"mean": tuple(255.0 * each for each in mean), "scale": tuple(1 / (255.0 * each) for each in std)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _each(value: Any, channels: int) -> Sequence[float]:
    return value if isinstance(value, tuple) else (value,) * channels


def _is_size(value: Any) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__") and int(value) >= 1


def _numbers(name: str, value: Any, pixels: bool) -> Any:
    """Check a number, or numbers per channel."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (tuple, list)):
        return tuple(_numbers(name, each, pixels) for each in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(must(name, "a number, or one per channel", kind_of(value)))
    if not (0 <= value <= 255 if pixels else abs(value) < float("inf")):
        raise ArgumentError(must(name, "numbers from 0 to 255" if pixels else "finite", repr(value)))
    return float(value)
