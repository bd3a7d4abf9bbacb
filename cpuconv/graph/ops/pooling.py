"""Pooling: maximum, mean or norm of a window or of a whole channel plane.

Source: ONNX operators MaxPool, AveragePool, LpPool and their global forms, and MaxUnpool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.graph.ops.base import EXACT, REQUIRED, Inputs, Op, defined, integers, known
from cpuconv.graph.ops.planes import (
    blocked_offer,
    blocked_size,
    dense_offers,
    is_image,
    lower_planes,
    plane_offers,
    rowwise_offers,
)
from cpuconv.graph.ops.quantised_variants import affine_map, quantised_variant
from cpuconv.graph.ops.traits import Int8, Sign
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.binding.tensor_view import FLOAT32, image_shape
from cpuconv.kernels.windows.pooling import Pooling, dense_operations, pool_step, pools_dense
from cpuconv.kernels.windows.spatial import windows_step
from cpuconv.problem import pooling as definition
from cpuconv.problem.window import Window
from cpuconv.symbolic.sizes import applied

_OPERATIONS = 2  # vector operations per element of a reduction of planes


def _window(node: Node, shape: tuple[int, ...]) -> Window:
    return definition.window_of(node.attributes, shape)


def _infer_pool(node: Node, inputs: Inputs) -> list[Value]:
    x = inputs[0]
    shape = (*x.shape[:2], *_window(node, x.shape).outputs)
    return [Value(shape, x.dtype), Value(shape, np.dtype(np.int64))][: len(node.outputs)]


def _infer_global(node: Node, inputs: Inputs) -> list[Value]:
    x = inputs[0]
    return [Value((*x.shape[:2], *[1] * (len(x.shape) - 2)), x.dtype)]


def _infer_unpool(node: Node, inputs: Inputs) -> list[Value]:
    x, places = inputs[:2]
    if places.shape != x.shape:
        raise ValueError("there must be an index for each element")
    stated = known(inputs, 2)
    shape = definition.unpooled_shape(node.attributes, x.shape, None if stated is None else integers(stated))
    if len(shape) != len(x.shape):
        raise ValueError(f"the stated shape has {len(shape)} axes where the input has {len(x.shape)}")
    return [Value(shape, x.dtype)]


# --- kernels --------------------------------------------------------------------------------------------------------


def _offers_pool(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer in channel blocks or dense, without indices of maxima and without means of empty windows."""
    x, whole = inputs[0], node.op == "MaxPool"
    if not is_image(x, whole) or len(node.outputs) > 1:
        return []
    window, (y,) = _window(node, x.shape), _infer_pool(node, inputs)
    if not is_image(y, whole) or (
        node.op == "AveragePool" and not applied(partial(_counts_are_positive, node), *x.shape)
    ):
        return []
    offers = blocked_offer(node, x, y, target, sum(window.kernel) * blocked_size(y, target), narrow=True)
    if applied(partial(_pools_dense, node), *x.shape):
        offers += dense_offers(
            node, x, y, target, dense_operations(target.isa, _pooling(node, x.shape), window.outputs[-1])
        )
    return offers


def _pools_dense(node: Node, *shape: int) -> bool:
    """Whether kernels pool dense planes of a shape."""
    outputs = (*shape[:2], *_window(node, shape).outputs)
    return pools_dense(_pooling(node, shape), image_shape(shape)[2:], image_shape(outputs)[2:])


def _pooling(node: Node, shape: tuple[int, ...]) -> Pooling:
    """Window over rows and columns, without factors; a 1-D plane is a row."""
    window = _window(node, shape)
    kernel, strides, dilations, near = (
        (fill if len(axes) == 1 else axes[0], axes[-1])
        for axes, fill in ((window.kernel, 1), (window.strides, 1), (window.dilations, 1), (window.near, 0))
    )
    return Pooling("max" if node.op == "MaxPool" else "sum", kernel, strides, dilations, near)


def _with_factors(node: Node, shape: tuple[int, ...]) -> Pooling:
    """The same with the factors of sums."""
    pooling = _pooling(node, shape)
    return pooling if pooling.fold == "max" else replace(pooling, factors=applied(partial(_factors, node), *shape))


def _factors(node: Node, *shape: int) -> np.ndarray:
    """Factor of the sum over each window."""
    window = _window(node, shape)
    return 1 / definition.counts(node.attributes, window).reshape(-1, window.outputs[-1])


def _counts_are_positive(node: Node, *shape: int) -> bool:
    """Whether no window has divisor 0."""
    return bool(definition.counts(node.attributes, _window(node, shape)).all())


def _lower_pool(call: Call) -> list[Step]:
    x, y, isa = call.x, call.y, call.target.isa
    pooling, parts = _with_factors(call.node, x.shape), call.target.parts(x.size + y.size)
    return [pool_step(isa, x, y, pooling, parts) or windows_step(isa, x, y, pooling, parts)]


def windows_overlap_input(node: Node, shape: tuple[int, ...]) -> bool:
    """Whether each window of an AveragePool has a tap inside the input, as int8 kernels require."""
    return len(shape) in (3, 4) and bool(_window(node, shape).counts().all())


def _offers_int8(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    """Offer in channel blocks."""
    x, (y,) = inputs[0], _infer_pool(node, inputs)
    if not (is_image(x, True) and is_image(y, True) and node["y"] == x.dtype and windows_overlap_input(node, x.shape)):
        return []
    return blocked_offer(node, x, y, target, sum(_window(node, x.shape).kernel) * blocked_size(y, target))


def _lower_int8(call: Call) -> list[Step]:
    """Compute integer sums times a factor, plus the contribution of the zero points; some taps may be padding."""
    x, y, isa, parts = call.x, call.y, call.target.isa, call.target.parts(call.x.size + call.y.size)
    pooling, (factor, _) = _with_factors(call.node, x.shape), affine_map(call.node)
    factors = factor * np.asarray(pooling.factors)
    inside = _window(call.node, x.shape).counts().reshape(factors.shape)
    added = call.node["y_zero_point"] - call.node["x_zero_point"] * inside * factors
    pooling = replace(pooling, factors=np.stack([factors, added], -1).astype(np.float32))
    return [pool_step(isa, x, y, pooling, parts) or windows_step(isa, x, y, pooling, parts)]


def _offers_global(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    rows = rowwise_offers(node, inputs, _OPERATIONS, target) if len(inputs[0].shape) > 2 else []
    return rows + plane_offers(node, inputs, _infer_global(node, inputs)[0], target)


def _infer_mean(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(_infer_global(node, inputs)[0].shape, FLOAT32)]


def _offers_mean(node: Node, inputs: Inputs, target: Target) -> list[Offer]:
    x = inputs[0]
    made = (
        blocked_offer(node, x, _infer_mean(node, inputs)[0], target, blocked_size(x, target))
        if is_image(x, True)
        else []
    )
    return made if x.dtype != FLOAT32 else []


_SHARED = {"kernel_shape": REQUIRED, "pads": None, "strides": None}
_WINDOW = {**_SHARED, "auto_pad": "NOTSET", "ceil_mode": 0, "dilations": None}


_PLANES = "x: uint8|int8|float32 (N C P...) -> y: =x (N C Q...)"
_INT8_PLANES = "x: uint8|int8 (N C P...) -> y: =x (N C Q...)"


def _windows(name: str, result: Callable[..., Any], int8: Int8, **attributes: object) -> Op:
    """Row of a reduction over windows with kernels."""
    kernels: dict[str, Any] = {"offers": _offers_pool, "lower": _lower_pool, "signature": _PLANES}
    traits: dict[str, Any] = {"window": True, "sign": Sign.KEPT, "int8": int8}
    return Op(name, _infer_pool, defined(result), {**_WINDOW, **attributes}, **kernels, **traits)


def _whole(name: str, result: Callable[..., Any], work: str, **traits: Any) -> Op:
    """Row of a reduction over whole planes with kernels."""
    lower = partial(lower_planes, work=work)
    signature = "x: float32 (N C P...) -> y: float32 (N C Q...)"
    return Op(name, _infer_global, defined(result), offers=_offers_global, lower=lower, signature=signature, **traits)


_AVERAGE = _windows("AveragePool", definition.average_pool, Int8.RESCALED, count_include_pad=0)

OPS = (
    _windows("MaxPool", definition.max_pool, Int8.MOVED, storage_order=0),
    _AVERAGE,
    quantised_variant(_AVERAGE, _offers_int8, _lower_int8, _INT8_PLANES),
    Op("LpPool", _infer_pool, defined(definition.lp_pool), {**_WINDOW, "p": 2}, window=True),
    _whole("GlobalMaxPool", definition.global_max_pool, "ReduceMax"),
    _whole("GlobalAveragePool", definition.global_average_pool, "ReduceMean", sign=Sign.KEPT, int8=Int8.RESCALED),
    Op(
        "QuantizedMean",
        _infer_mean,
        defined(definition.global_average_pool),
        offers=_offers_mean,
        lower=partial(lower_planes, work="ReduceMean"),
        signature="x: uint8|int8 (N C P...) -> y: float32 (N C Q...)",
        own=True,
    ),
    Op("GlobalLpPool", _infer_global, defined(definition.global_lp_pool), {"p": 2}),
    Op("MaxUnpool", _infer_unpool, defined(definition.max_unpool), _SHARED, parameters=(2,), **EXACT),
)
