"""torchvision's detection models, compared stage by stage.

Their choice of boxes is not continuous: with other rounding errors, boxes of nearly equal scores change places, and two
boxes that overlap by nearly the threshold may both stay. So eager execution continues at the end of each stage with the
compiled model's results, once they were compared: then both choose among the same boxes. The resized image is such a
result, too: eager execution computes the coordinates of its pixels in float32, with errors that a network may enlarge.

Weights are random; those of layers that compute scores, boxes, masks or key points are scaled so that their results
differ, as after training. Otherwise few boxes would have scores over a threshold.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

_STAGES = ("transform", "backbone", "head", "rpn.head", "roi_heads.box_predictor", "roi_heads.mask_predictor",
           "roi_heads.keypoint_predictor")  # fmt: skip

_SPREADS = {
    r"cls_logits|cls_score|bbox_ctrness|mask_fcn_logits|kps_score_lowres": 2,
    r"classification_head\.module_list\.\d+(\.1)?": 2,
    r"bbox_pred|bbox_reg|regression_head\.module_list\.\d+(\.1)?": 1,
}
"""Standard deviations of the results of last layers, by the ends of their names."""

_OPTIONS = {
    "ssd": {},
    "rcnn": {"min_size": 96, "max_size": 128, "rpn_pre_nms_top_n_test": 300, "rpn_post_nms_top_n_test": 100,
             "box_detections_per_img": 20},
    "": {"min_size": 96, "max_size": 128},
}  # fmt: skip
"""Options of models whose names have a part: small images and few boxes."""


def cases(models: Any) -> Iterator[tuple[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]]]:
    """Names and makers of the detection models of `torchvision.models`, with arguments."""
    for name in models.list_models(module=models.detection):
        yield f"detection.{name}", lambda name=name: (_detector(models, name), ([torch.rand(3, 96, 128)],))


def fill_zeros(model: nn.Module) -> None:
    """Draw parameters that begin with zeros, which would hide errors before them."""
    with torch.no_grad():
        for weights in model.parameters():
            if not weights.any():
                weights.normal_(std=0.02)


def _detector(models: Any, name: str) -> nn.Module:
    """Make a detection model, with last layers scaled for a random image."""
    options = next(found for part, found in _OPTIONS.items() if part in name)
    model: nn.Module = models.get_model(name, weights=None, weights_backbone=None, **options).eval()
    fill_zeros(model)
    for label, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d) and "mobilenet" in name:  # its features would vanish
            module.momentum = 1.0
            module.train()
        for ends, spread in _SPREADS.items():
            if re.search(f"({ends})$", label) and hasattr(module, "weight"):
                module.register_forward_hook(_spread(spread))
    with torch.no_grad():
        model([torch.rand(3, 96, 128) for _ in range(2)])
    return model.eval()


def _spread(deviation: float) -> Callable[..., Any]:
    """Make a hook that gives results a deviation and the mean 0 at the first call, and removes itself."""

    def scale(layer: Any, args: Any, result: torch.Tensor) -> Any:
        layer._forward_hooks.clear()
        layer.weight.mul_(deviation / result.std())
        layer.bias.sub_(layer.forward(*args).mean())
        return layer.forward(*args)

    return scale


def _comparable(result: Any) -> Any:
    """The result of a stage, with tensors in place of lists of images."""
    return pytree.tree_map(lambda leaf: getattr(leaf, "tensors", leaf), result)


def stages(model: nn.Module) -> list[nn.Module]:
    """The stages of a detection model; none for another model."""
    if not type(model).__module__.startswith("torchvision.models.detection"):
        return []
    return [module for name, module in model.named_modules() if name in _STAGES]


@contextlib.contextmanager
def recorded(model: nn.Module) -> Iterator[list[Any]]:
    """A list to which the result of each stage is added."""
    found: list[Any] = []
    handles = [each.register_forward_hook(lambda *call: found.append(call[-1])) for each in stages(model)]
    yield found
    for handle in handles:
        handle.remove()


@contextlib.contextmanager
def continued(model: nn.Module, found: list[Any], error_of: Callable[[Any, Any], float]) -> Iterator[list[float]]:
    """A list of the errors of each stage, which then has the results that were found elsewhere."""
    errors: list[float] = []

    def compare(_layer: Any, _args: Any, result: Any) -> Any:
        other = found[len(errors)]
        errors.append(error_of(_comparable(other), _comparable(result)))
        return other

    handles = [each.register_forward_hook(compare) for each in stages(model)]
    yield errors
    for handle in handles:
        handle.remove()
