"""Adapters of layers: convolutions, products, normalisations, pooling, attention and resampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from cpuconv.reading.aten.emitter import INT64, Emitter, Operand, Unsupported, batched

_SHORT = {0: "zeros", 1: "border", 2: "reflection"}
_GRID_MODES = {0: "linear", 1: "nearest", 2: "cubic"}


def _each(value: Any, count: int) -> list[int]:
    """One number per spatial axis; a single number is that of all."""
    values = [value] if isinstance(value, int) else [*value]
    return values * count if len(values) == 1 else values


# --- convolutions and products ---------------------------------------------------------------------------------------


@batched()
def _conv(b: Emitter, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> str:
    axes = w.rank - 2
    pads: dict[str, Any] = {}
    if padding == "same":
        pads["auto_pad"] = "SAME_UPPER"
    elif padding != "valid":
        pads["pads"] = _each(padding, axes) * 2
    return b.add("Conv", x, w, bias, strides=_each(stride, axes), dilations=_each(dilation, axes), group=groups, **pads)


@batched()
def _transposed(
    b: Emitter, x: Any, w: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> str:
    axes = x.rank - 2
    return b.add(
        "ConvTranspose", x, w, bias, strides=_each(stride, axes), pads=_each(padding, axes) * 2, group=groups,
        dilations=_each(dilation, axes), output_padding=_each(output_padding, axes),
    )  # fmt: skip


def _convolution(
    b: Emitter, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> str:  # fmt: skip
    if transposed:
        return _transposed(b, x, w, bias, stride, padding, output_padding, groups, dilation)
    return _conv(b, x, w, bias, stride, padding, dilation, groups)


def _linear(b: Emitter, x: Any, w: Any, bias: Any = None) -> str:
    y: str = b.add("MatMul", x, b.add("Transpose", w, perm=[1, 0]))
    return y if bias is None else b.add("Add", y, bias)


def _addmm(b: Emitter, c: Any, x: Any, y: Any, beta: float = 1, alpha: float = 1) -> str:
    product: str = b.add("MatMul", x, y)
    if alpha != 1:
        product = b.add("Mul", product, b.cast(alpha, b.out.dtype))
    if beta == 0:
        return product
    return b.add("Add", product, c if beta == 1 else b.add("Mul", c, b.cast(beta, b.out.dtype)))


def _einsum(b: Emitter, equation: str, operands: Sequence[Any], path: Any = None) -> str:
    return b.add("Einsum", *operands, equation=equation)


# --- normalisations --------------------------------------------------------------------------------------------------


def _batch_norm(
    b: Emitter, x: Any, w: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float,
    cudnn: bool = False,
) -> str:  # fmt: skip
    if training or mean is None:
        raise Unsupported("in training mode")
    return b.add("BatchNormalization", x, *_scales(b, w, bias, x.size(1)), mean, variance, epsilon=eps)


def _scales(b: Emitter, w: Any, bias: Any, *sizes: int) -> list[str]:
    """Scale and bias; 1 and 0 of these sizes where they are absent."""
    dtype = b.dtype(_first(b.out).dtype)
    absent = [b.array(np.full(sizes, value, dtype)) if each is None else each for each, value in ((w, 1), (bias, 0))]
    return [b.operand(each) for each in absent]


def _first(meta: Any) -> torch.Tensor:
    made: torch.Tensor = meta[0] if isinstance(meta, (tuple, list)) else meta
    return made


def _layer_norm(b: Emitter, x: Any, shape: Sequence[int], w: Any, bias: Any, eps: float, cudnn: bool = False) -> str:
    scale, shift = _scales(b, w, bias, *shape)
    return b.add("LayerNormalization", x, scale, shift, axis=-len(shape), epsilon=eps)


def _group_norm(b: Emitter, x: Any, groups: int, w: Any, bias: Any, eps: float, cudnn: bool = False) -> str:
    return b.add("GroupNormalization", x, *_scales(b, w, bias, x.size(1)), num_groups=groups, epsilon=eps)


def _instance_norm(
    b: Emitter, x: Any, w: Any, bias: Any, mean: Any, variance: Any, use_input_stats: bool, momentum: float,
    eps: float, cudnn: bool = False,
) -> str:  # fmt: skip
    if not use_input_stats:
        return _batch_norm(b, x, w, bias, mean, variance, False, momentum, eps)
    return b.add("InstanceNormalization", x, *_scales(b, w, bias, x.size(1)), epsilon=eps)


def _rms_norm(b: Emitter, x: Any, shape: Sequence[int], w: Any = None, eps: float | None = None) -> str:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    square = b.add("ReduceMean", b.add("Mul", x, x), b.integers(*range(-len(shape), 0)), keepdims=1)
    y: str = b.add("Div", x, b.add("Sqrt", b.add("Add", square, b.cast(float(eps), x.dtype))))
    return y if w is None else b.add("Mul", y, w)


def _response_norm(b: Emitter, x: Any, size: int, alpha: float, beta: float, k: float) -> str:
    return b.add("LRN", x, size=size, alpha=alpha, beta=beta, bias=k)


# --- pooling ---------------------------------------------------------------------------------------------------------


def _max_pool(axes: int) -> Callable[..., Any]:
    @batched(axes + 2)
    def apply(
        b: Emitter, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, count: int = 1
    ) -> Any:
        kernel, padding, dilation = (_each(each, axes) for each in (kernel, padding, dilation))
        strides = _each(stride, axes) if stride else kernel
        return b.add(
            "MaxPool", x, kernel_shape=kernel, strides=strides, pads=padding * 2, dilations=dilation,
            ceil_mode=int(ceil_mode), count=count,
        )  # fmt: skip

    return apply


def _max_pool_with_indices(axes: int) -> Callable[..., list[str]]:
    """Make an adapter of maxima and their positions in each plane, which are a node of their own: few read them."""

    @batched(axes + 2)
    def places(b: Emitter, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> str:
        _, index = _max_pool(axes)(b, x, kernel, stride, padding, dilation, ceil_mode, count=2)
        plane: Any = b.number(1, INT64)
        for size in b.shape(x)[2:]:
            plane = b.add("Mul", plane, b.operand(size))
        return b.add("Mod", index, plane)

    return lambda b, *args: [_max_pool(axes)(b, *args), places(b, *args)]


def _first_of(adapter: Callable[..., Any]) -> Callable[..., Any]:
    """Adapter of an operator with more outputs, which nothing may read."""
    return lambda b, *args: [adapter(b, *args), ""]


def _average_pool(axes: int) -> Callable[..., str]:
    @batched(axes + 2)
    def apply(
        b: Emitter, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, include_pad: bool,
        divisor: int | None = None,
    ) -> str:  # fmt: skip
        kernel, padding = _each(kernel, axes), _each(padding, axes)
        if divisor and ceil_mode:
            raise Unsupported("with a divisor and ceil_mode")
        y: str = b.add(
            "AveragePool", x, kernel_shape=kernel, strides=_each(stride, axes) if stride else kernel, pads=padding * 2,
            ceil_mode=int(ceil_mode), count_include_pad=int(include_pad or bool(divisor)),
        )  # fmt: skip
        return b.add("Mul", y, b.cast(math.prod(kernel) / divisor, b.out.dtype)) if divisor else y

    return apply


def _adaptive(axes: int, average: bool) -> Callable[..., str]:
    """Pooling to given sizes: of whole planes, by windows of equal sizes, or by a product with weights of windows."""

    @batched(axes + 2)
    def apply(b: Emitter, x: Any, wanted: Any) -> str:
        wanted = _each(wanted, axes)
        if all(size == 1 for size in wanted):
            return b.add("GlobalAveragePool" if average else "GlobalMaxPool", x)
        sizes = [x.size(axis) for axis in range(2, x.rank)]
        pairs = [*zip(sizes, wanted, strict=True)]
        if all(size % to == 0 for size, to in pairs):
            kernel = [size // to for size, to in pairs]
            return b.add("AveragePool" if average else "MaxPool", x, kernel_shape=kernel, strides=kernel)
        y: str = x
        for axis, (size, to) in enumerate(pairs, 2):
            y = _windows(b, y, axis, size, to, average) if size != to else y
        return y

    return apply


def _windows(b: Emitter, x: str, axis: int, size: int, to: int, average: bool) -> str:
    """Pool an axis by windows of unequal sizes, from ⌊i·size/to⌋ to ⌈(i+1)·size/to⌉."""
    parts = []
    for at in range(to):
        part = b.add("Slice", x, *map(b.integers, (at * size // to, -(-(at + 1) * size // to), axis)))
        parts.append(b.add("ReduceMean" if average else "ReduceMax", part, b.integers(axis), keepdims=1))
    return b.add("Concat", *parts, axis=axis)


# --- attention -------------------------------------------------------------------------------------------------------


def _attention(
    b: Emitter, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False,
    scale: float | None = None, grouped: bool = False,
) -> str:  # fmt: skip
    """softmax(q kᵀ · scale + mask) v; rows whose keys are all masked are zero, as in PyTorch."""
    if dropout:
        raise Unsupported("with dropout")
    dtype, width = q.dtype, q.size(-1)
    if grouped and k.size(-3) != q.size(-3):
        k, v = (_repeated(b, each, q.size(-3) // k.size(-3)) for each in (k, v))
    perm = [*range(q.rank - 2), q.rank - 1, q.rank - 2]
    scores = b.add("MatMul", q, b.add("Transpose", k, perm=perm))
    scores = b.add("Mul", scores, b.cast(1 / math.sqrt(width) if scale is None else float(scale), dtype))
    if causal:
        mask = b.tensor(torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril())
    known = mask and mask.known
    if known is not None and known.dtype == torch.bool:
        known = torch.zeros(known.shape, dtype=dtype).masked_fill(~known, -math.inf)
        mask = b.tensor(known)
    elif mask and mask.dtype == torch.bool:
        mask = b.add("Where", mask, b.cast(0.0, dtype), b.cast(-math.inf, dtype))
    checked = bool(mask) if known is None else bool(known.isneginf().all(-1).any())
    masked = b.add("Add", scores, mask) if mask else scores
    y: str = b.add("MatMul", b.add("Softmax", masked, axis=-1), v)
    if checked:
        seen = b.add("Greater", b.add("ReduceMax", mask, b.integers(-1), keepdims=1), b.cast(-math.inf, dtype))
        y = b.add("Where", seen, y, b.cast(0.0, dtype))
    return y


def _repeated(b: Emitter, x: Operand, count: int) -> Operand:
    """Repeat each head of keys or values."""
    apart = b.add("Unsqueeze", x, b.integers(-3))
    tiled = b.add("Tile", apart, b.integers(*[1] * (x.rank - 2), count, 1, 1))
    meta = x.meta.repeat_interleave(count, -3)
    return Operand.of(b.add("Reshape", tiled, b.sizes(b.shape(Operand.of(x, meta)))), meta)


def _flash_attention(
    b: Emitter, q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False, mask: Any = None,
    scale: float | None = None,
) -> list[str]:  # fmt: skip
    return [_attention(b, q, k, v, mask, dropout, causal, scale), ""]


# --- resampling ------------------------------------------------------------------------------------------------------


def _upsample(mode: str, exact: bool = False, **attributes: Any) -> Callable[..., str]:
    """Make an adapter of interpolation of a mode, with sizes or factors."""

    def apply(b: Emitter, x: Any, sizes: Any, *args: Any) -> str:
        *aligned, factors = args
        transform = "align_corners" if any(aligned) else "half_pixel" if mode != "nearest" or exact else "asymmetric"
        rounding = {"nearest_mode": "round_prefer_ceil" if exact else "floor"} if mode == "nearest" else {}
        stated = {"mode": mode, "coordinate_transformation_mode": transform, **rounding, **attributes}
        if factors:
            return b.add("Resize", x, None, b.array(np.array([1, 1, *factors], np.float64)), **stated)
        ends = b.add("Slice", b.add("Shape", x), b.integers(0), b.integers(2))
        sizes = b.integers(*sizes) if all(type(size) is int for size in sizes) else b.sizes(sizes)
        return b.add("Resize", x, None, None, b.add("Concat", ends, sizes, axis=0), **stated)

    return apply


def _grid_sample(b: Emitter, x: Any, grid: Any, mode: int, padding: int, align: bool) -> str:
    return b.add("GridSample", x, grid, mode=_GRID_MODES[mode], padding_mode=_SHORT[padding], align_corners=int(align))


def _affine_grid(b: Emitter, theta: Any, size: Any, align: bool) -> str:
    return b.add("AffineGrid", theta, b.sizes(size), align_corners=int(align))


ADAPTERS: dict[str, Callable[..., Any] | None] = {
    **{f"conv{axes}d": _conv for axes in (1, 2, 3)},
    "conv_transpose1d": _transposed,
    "conv_transpose2d": _transposed,
    "conv_transpose3d": _transposed,
    "convolution": _convolution,
    "_convolution": lambda b, *args: _convolution(b, *args[:9]),
    "linear": _linear,
    "addmm": _addmm,
    "baddbmm": _addmm,
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), lambda b, x, y: b.add("MatMul", x, y)),
    "einsum": _einsum,
    **dict.fromkeys(("det", "linalg_det"), lambda b, x: b.add("Det", x)),
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": lambda b, x, w, bias, mean, variance, momentum, eps: [
        _batch_norm(b, x, w, bias, mean, variance, False, momentum, eps), "", ""],
    "layer_norm": _layer_norm,
    "native_layer_norm": lambda b, *args: [_layer_norm(b, *args), "", ""],
    "group_norm": _group_norm,
    "native_group_norm": lambda b, x, w, bias, n, c, size, groups, eps: [
        _group_norm(b, x, groups, w, bias, eps), "", ""],
    "instance_norm": _instance_norm,
    "rms_norm": _rms_norm,
    "local_response_norm": _response_norm,
    **{f"max_pool{axes}d": _max_pool(axes) for axes in (1, 2, 3)},
    **{f"max_pool{axes}d_with_indices": _max_pool_with_indices(axes) for axes in (1, 2, 3)},
    **{f"avg_pool{axes}d": _average_pool(axes) for axes in (1, 2, 3)},
    **{f"{prefix}adaptive_avg_pool{axes}d": _adaptive(axes, True) for prefix in ("", "_") for axes in (1, 2, 3)},
    **{f"adaptive_max_pool{axes}d": _first_of(_adaptive(axes, False)) for axes in (1, 2, 3)},
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    **{f"upsample_nearest{axes}d.vec": _upsample("nearest") for axes in (1, 2, 3)},
    **{f"_upsample_nearest_exact{axes}d.vec": _upsample("nearest", exact=True) for axes in (1, 2, 3)},
    **{f"upsample_{name}.vec": _upsample("linear") for name in ("linear1d", "bilinear2d", "trilinear3d")},
    "upsample_bicubic2d.vec": _upsample("cubic"),
    "_upsample_bilinear2d_aa.vec": _upsample("linear", antialias=1, exclude_outside=1),
    "_upsample_bicubic2d_aa.vec": _upsample("cubic", antialias=1, exclude_outside=1, cubic_coeff_a=-0.5),
    "grid_sampler": _grid_sample,
    "affine_grid_generator": _affine_grid,
    "softmax": lambda b, x, axis, *_: b.add("Softmax", b.cast(x, b.out.dtype), axis=axis),
    "_softmax": lambda b, x, axis, *_: b.add("Softmax", x, axis=axis),
    "log_softmax": lambda b, x, axis, *_: b.add("LogSoftmax", b.cast(x, b.out.dtype), axis=axis),
    "_log_softmax": lambda b, x, axis, *_: b.add("LogSoftmax", x, axis=axis),
}  # fmt: skip
