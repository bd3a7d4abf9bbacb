"""GridSample: interpolation of the input at the coordinates of a grid.

Source: the ONNX operator of this name, for any number of axes; kernels compute that of float32 images. Each output is a
weighted mean of the inputs around its coordinate. The weights are products of the weights per axis.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.elements import F32
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import Arrays, Inputs, Op
from cpuconv.graph.ops.planes import blocked_size
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import DENSE, FLOAT32, STRIDED
from cpuconv.kernels.sampling.grid_sample import MAX_IMAGE, grid_sample_steps, seconds
from cpuconv.kernels.sampling.taps import TapsTile
from cpuconv.kernels.windows.coordinates import KERNELS

_CUBIC = -0.75  # coefficient of Keys' kernel


def _infer(node: Node, inputs: Inputs) -> list[Value]:
    x, grid = inputs
    if len(grid.shape) != len(x.shape) or (grid.shape[0], grid.shape[-1]) != (x.shape[0], len(x.shape) - 2):
        raise ValueError("the grid must have coordinates for each output of each image")
    if 0 in x.shape[2:] and 0 not in (*x.shape[:2], *grid.shape) and node["padding_mode"] != "zeros":
        raise ValueError("planes without pixels have no border")
    return [Value((*x.shape[:2], *grid.shape[1:-1]), x.dtype)]


def _places(node: Node, at: np.ndarray, size: int) -> np.ndarray:
    """Coordinates in units of elements; -1 and 1 are the centres of the first and the last element, or their edges."""
    return (at + 1) / 2 * (size - 1) if node["align_corners"] else ((at + 1) * size - 1) / 2


def _inside(node: Node, at: np.ndarray, size: int) -> np.ndarray:
    """Move coordinates out of range inside: to the border, or reflected. In mode "zeros" they do not change."""
    low = 0.0 if node["align_corners"] else -0.5
    span = size - 1 - 2 * low
    if node["padding_mode"] == "border":
        return np.where((at < low) | (at > low + span), np.clip(at, 0, size - 1), at)
    if node["padding_mode"] == "reflection":
        reflected = np.mod(at - low, 2 * span) if span else 0 * at
        return np.minimum(reflected, 2 * span - reflected) + low
    return at


def _taps(node: Node, at: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs around coordinates along an axis, and their weights."""
    if node["mode"] == "nearest":
        at = np.rint(_places(node, at.astype(np.float32), size))
        pairs = [(_inside(node, at, size), np.ones(at.shape))]
    else:
        kernel, half = KERNELS[node["mode"]]
        at = _places(node, at, size)
        if node["mode"] == "linear":  # for cubic, each tap is moved inside separately
            at = _inside(node, at, size)
        around = [np.floor(at) + step for step in range(1 - half, 1 + half)]
        pairs = [(tap, kernel(at - tap, _CUBIC)) for tap in around]
    if node["padding_mode"] == "zeros":
        pairs = [(tap, np.where((tap < 0) | (tap >= size), 0, weight)) for tap, weight in pairs]
    elif node["padding_mode"] == "reflection":
        pairs = [(_inside(node, tap, size), weight) for tap, weight in pairs]
    return [(np.clip(np.nan_to_num(tap), 0, size - 1).astype(int), weight) for tap, weight in pairs]


def grid_sample(node: Node, arrays: Arrays) -> np.ndarray:
    """Compute weighted means of inputs around the grid's coordinates, the last axis first."""
    x, grid = arrays
    sizes = x.shape[2:]
    images = np.arange(len(x)).reshape(-1, *[1] * len(sizes))
    y = np.zeros((*grid.shape[:-1], x.shape[1]))
    if 0 in sizes:
        return np.moveaxis(y, -1, 1)
    for choice in product(*(_taps(node, grid[..., -1 - axis], size) for axis, size in enumerate(sizes))):
        weight = math.prod(weight for _, weight in choice)
        taken = (images, slice(None), *(tap for tap, _ in choice))
        y += x[taken] * np.asarray(weight)[..., None]
    return np.moveaxis(y, -1, 1)


def _offers(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer for images, with channels contiguous or not."""
    x, grid = inputs
    if len(x.shape) != 4 or x.dtype != FLOAT32 or grid.dtype != FLOAT32 or 0 in x.shape + grid.shape:
        return []
    if blocked_size(x, target) * F32.bytes >= MAX_IMAGE:
        return []
    points = grid.shape[1] * grid.shape[2]
    return [Offer((STRIDED, DENSE), (DENSE,), seconds(target, node["mode"], x.shape, points, copied=True))]


def _lower(call: Call) -> list[Step]:
    x, grid = call.inputs
    assert x is not None and grid is not None
    node = call.node
    tile = TapsTile(call.target.isa.lanes, node["mode"], node["padding_mode"], bool(node["align_corners"]))
    return grid_sample_steps(call.target, call.space, tile, x, grid, call.y)


_ATTRIBUTES = {"align_corners": 0, "mode": "linear", "padding_mode": "zeros"}
_SIGNATURE = "x: float32 (N C H W), grid: float32 (N P Q 2) -> y: float32 (N C P Q)"
OPS = (
    Op(
        "GridSample",
        _infer,
        grid_sample,
        _ATTRIBUTES,
        mixed=True,
        window=True,
        offers=_offers,
        lower=_lower,
        signature=_SIGNATURE,
    ),
)
