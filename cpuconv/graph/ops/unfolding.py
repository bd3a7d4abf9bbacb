"""Windows of successive images as views; the pass `volumes` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Offer
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Op
from cpuconv.graph.ops.traits import Int8, Sign
from cpuconv.graph.ops.views import blockable, view_offers
from cpuconv.kernels.binding.tensor_view import DENSE, TensorView, contiguous_strides, stored_as


def _infer_unfold(node: Node, inputs: Inputs) -> list[Value]:
    n, c, *plane = inputs[0].shape
    if not 1 <= node["kernel"] <= n or node["stride"] < 1:
        raise ValueError(f"windows of {node['kernel']} of {n} images, by steps of {node['stride']}")
    return [Value(((n - node["kernel"]) // node["stride"] + 1, c * node["kernel"], *plane), inputs[0].dtype)]


def unfold_images(node: Node, arrays: Arrays) -> np.ndarray:
    """Concatenate the channels of the images of each window: `kernel` successive images."""
    (x,), last = arrays, len(arrays[0]) - node["kernel"]
    return np.concatenate([x[tap : last + tap + 1 : node["stride"]] for tap in range(node["kernel"])], 1)


def _offer_unfold(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer views with overlapping images, where channels of successive images are equidistant."""
    (x,) = inputs
    whole = (form for form in target.blocks(x.dtype) if x.shape[1] % target.block(stored_as(form, x.dtype)) == 0)
    forms = [*target.forms(DENSE, x.dtype), *(whole if blockable(x) else ())]
    return view_offers(inputs, zip(forms, forms, strict=True))


def _view_unfolded(node: Node, places: Sequence[Any], values: Sequence[Any]) -> list[TensorView]:
    (x,) = places
    if x.strides != contiguous_strides(x.physical, x.dtype.itemsize):
        raise ValueError("the images are apart")
    return [x.at(0, values[0].shape, (x.strides[0] * node["stride"], *x.strides[1:]))]


_UNFOLDED: dict[str, Any] = {"offers": _offer_unfold, "view": _view_unfolded, "own": True, "widened": False}
_UNFOLDED |= {"signature": "x: any (N C H W) -> y: =x (M D H W)", "int8": Int8.MOVED, "sign": Sign.KEPT}
OPS = (Op("UnfoldImages", _infer_unfold, unfold_images, {"kernel": REQUIRED, "stride": 1}, **_UNFOLDED),)
