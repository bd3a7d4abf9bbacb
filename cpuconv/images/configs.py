"""Attributes of `Image` from configurations of timm, transformers and Ultralytics."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any

from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvError, kind_of, must

_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Image.Resampling
_OTHER_STEPS = (
    "do_pad", "keep_aspect_ratio", "crop_to_patches", "do_image_splitting", "do_pan_and_scan", "do_split_image",
    "do_thumbnail", "do_align_long_axis", "rescale_offset", "include_top", "limit_side_len",
)  # fmt: skip
"""Settings of transformers' processors that change pixels in ways that `Image` has not."""
_OTHER_RESIZES = ("PP", "Levit")  # beginnings of processors' names
_CONVNEXT_WHOLE = 384  # smallest input of ConvNext that has no crop
_KNOWN = "a configuration of timm (input_size), transformers (image_mean) or Ultralytics (task, imgsz)"


def attributes(config: Any) -> dict[str, Any]:
    """Attributes of `Image` that a configuration states.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is none of these, or states what `Image` cannot do.
    """
    if not isinstance(config, Mapping):
        to_dict = getattr(config, "to_dict", None)
        if to_dict is None:
            raise ArgumentTypeError(must("config", _KNOWN, kind_of(config)))
        unset = {"do_normalize": False} if getattr(config, "do_normalize", True) is None else {}  # absent in to_dict
        config = {**to_dict(), **unset}
    for key, read in _READERS.items():
        if key in config:
            try:
                return read(config)
            except CpuconvError:
                raise
            except (LookupError, TypeError, ValueError, SyntaxError) as error:
                stated = f"one that states its values otherwise ({type(error).__name__}: {error})"
                raise ArgumentError(must("config", _KNOWN, stated)) from error
    raise ArgumentError(must("config", _KNOWN, f"one of {', '.join(map(str, config)) or 'nothing'}"))


def _timm(config: Mapping[str, Any]) -> dict[str, Any]:
    _, height, width = config["input_size"]
    mode, named = config.get("crop_mode", "center"), config.get("interpolation", "bilinear")
    shorter = math.floor(min(height, width) / (config.get("crop_pct") or 0.875))
    if mode not in ("center", "squash") or mode == "squash" and shorter != min(height, width):
        raise ArgumentError(
            must("config", "of crop_mode center, or squash of all", f"{mode}, {config.get('crop_pct')}")
        )
    if named not in _PILLOW.values():
        raise ArgumentError(must("config", f"of an interpolation among {', '.join(_PILLOW.values())}", repr(named)))
    size = {"size": "stretch"} if mode == "squash" else {"size": "crop", "shorter": shorter}
    return {**size, "shape": (height, width), "resize": f"pillow_{named}", **_standard(config["mean"], config["std"])}


def _transformers(config: Mapping[str, Any]) -> dict[str, Any]:
    other = [name for name in _OTHER_STEPS if config.get(name)]
    if config.get("crop_pct") and config.get("do_center_crop"):
        other.append("crop_pct")
    if other:
        raise ArgumentError(must("config", f"without {other[0]}", f"{other[0]}={config[other[0]]!r}"))
    if str(config.get("image_processor_type", "")).startswith(_OTHER_RESIZES):
        raise ArgumentError(must("config", "of a processor that resizes as Pillow", config["image_processor_type"]))
    made: dict[str, Any] = {"size": "keep"}
    resampling = config.get("resample", 2)
    if config.get("do_resize", True):
        size = config.get("size") or {}
        size = {"shortest_edge": size} if isinstance(size, int) else size
        crops = config.get("do_center_crop", False)
        if "shortest_edge" in size and crops:
            made = {"size": "crop", "shorter": size["shortest_edge"]}
        elif "shortest_edge" in size and "crop_pct" in config:
            edge = size["shortest_edge"]
            made = {"size": "stretch", "shape": (edge, edge)}
            if edge < _CONVNEXT_WHOLE:
                made |= {"size": "crop", "shorter": int(edge / config["crop_pct"])}
        elif "height" in size and not crops:
            made = {"size": "stretch", "shape": (size["height"], size["width"])}
        else:
            raise ArgumentError(
                must("config", "of a size of height and width, or of a shortest_edge and a crop", f"{size}")
            )
        made["resize"] = f"pillow_{_PILLOW[int(resampling)]}"
    if config.get("do_center_crop", False):
        crop = config["crop_size"]
        made["shape"] = (crop, crop) if isinstance(crop, int) else (crop["height"], crop["width"])
    if config.get("do_flip_channel_order", False):
        made["network_color"] = "BGR"
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    if not config.get("do_normalize", True):
        return {**made, "mean": 0.0, "scale": factor}
    return {**made, **_standard(config["image_mean"], config["image_std"], factor)}


def _ultralytics(config: Mapping[str, Any]) -> dict[str, Any]:
    size = config["imgsz"]
    size = ast.literal_eval(size) if isinstance(size, str) else size
    shape = (size, size) if isinstance(size, int) else tuple(size)
    if config.get("task") == "classify":
        return {"size": "crop", "color": "BGR", "shape": shape, "resize": "pillow_bilinear"}
    return {"size": "letterbox", "color": "BGR", "fill": 114, "shape": shape}


def _standard(mean: Any, std: Any, factor: float = 1 / 255) -> dict[str, Any]:
    """`mean` and `scale` for (pixel · factor - mean) / std."""
    return {"mean": tuple(each / factor for each in mean), "scale": tuple(factor / each for each in std)}


_READERS = {"input_size": _timm, "image_mean": _transformers, "do_rescale": _transformers, "imgsz": _ultralytics}
"""Readers of configurations, by a key that only one package uses."""
