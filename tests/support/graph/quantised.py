"""Strategies of cases for operators of whole numbers with scales."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from support.graph import draws
from support.graphs import Case

_BYTES = st.sampled_from((np.dtype(np.uint8), np.dtype(np.int8)))


def _some(rng, shape, dtype):
    """Any values of a type of bytes."""
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def _scale(rng, shape=()):
    return (rng.random(shape) * 0.1 + 0.01).astype(np.float32)


@st.composite
def quantize(draw):
    """Scales for all, or for each part along an axis; with a zero point or without."""
    rng, shape, dtype = draw(draws.GENERATORS), draw(draws.SHAPES), draw(_BYTES)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    parts = draw(st.sampled_from(((), (shape[axis],))))
    zero = [_some(rng, parts, dtype)] if draw(st.booleans()) else []
    return Case([draws.numbers(rng, shape), _scale(rng, parts), *zero], {"axis": axis})


@st.composite
def dequantize(draw):
    case, dtype = draw(quantize()), draw(_BYTES)
    x, scale, *zero = case.arrays
    dtype = zero[0].dtype if zero else dtype
    return Case([_some(np.random.default_rng(x.size), x.shape, dtype), scale, *zero], case.attributes)


@st.composite
def lookup(draw):
    """Any table."""
    rng, shape = draw(draws.GENERATORS), draw(draws.SHAPES)
    return Case([_some(rng, shape, draw(_BYTES)), _some(rng, (256,), draw(_BYTES))], {})


@st.composite
def mean(draw):
    """Planes of bytes."""
    case, rng = draw(draws.planes()), draw(draws.GENERATORS)
    return Case([_some(rng, case.arrays[0].shape, draw(_BYTES))], {})


@st.composite
def of_bytes(draw, cases):
    """Such cases on bytes, whose result is bytes of the same type and of another scale."""
    case = draw(cases)
    rng, dtype = draw(draws.GENERATORS), draw(_BYTES)
    scales = {f"{name}_scale": float(_scale(rng)) for name in "xy"}
    points = {f"{name}_zero_point": int(_some(rng, (), dtype)) for name in "xy"}
    x = _some(rng, case.arrays[0].shape, dtype)
    return Case([x, *case.arrays[1:]], {**case.attributes, **scales, **points, "y": dtype})


@st.composite
def dynamic(draw):
    return Case(draw(draws.unary()).arrays, {}, 3)


@st.composite
def span(draw):
    """Numbers of any signs; some are all zero."""
    case = draw(draws.unary())
    x, moved = case.arrays[0], draw(st.sampled_from((0.0, 9.0, -9.0)))
    return Case([(x + x.dtype.type(moved)) * draw(st.sampled_from((1, 1, 1, 0)))], {}, 2)


@st.composite
def conv_integer(draw):
    case, rng = draw(draws.conv()), draw(draws.GENERATORS)
    x, w = (_some(rng, array.shape, np.dtype(np.uint8)) for array in case.arrays[:2])
    zeros = [_some(rng, (), np.dtype(np.uint8)) for _ in range(draw(st.integers(0, 2)))]
    return Case([x, w, *zeros], case.attributes)


@st.composite
def matmul_integer(draw):
    case, rng = draw(draws.matmul()), draw(draws.GENERATORS)
    dtypes = draw(_BYTES), draw(_BYTES)
    a, b = (_some(rng, array.shape, dtype) for array, dtype in zip(case.arrays, dtypes, strict=True))
    zeros = [_some(rng, (), dtype) for dtype in dtypes[: draw(st.integers(0, 2))]]
    return Case([a, b, *zeros], {})


@st.composite
def quantized_conv(draw):
    """Bytes or floats as results; weights with one scale, or one for each output channel."""
    case, rng = draw(draws.conv()), draw(draws.GENERATORS)
    x, w = (
        _some(rng, array.shape, dtype)
        for array, dtype in zip(case.arrays[:2], (draw(_BYTES), np.dtype(np.int8)), strict=True)
    )
    bias = [rng.integers(-3000, 3000, len(w), np.int32)] if len(case.arrays) > 2 else []
    return Case([x, w, *bias], {**case.attributes, **_numbers(draw, rng, x.dtype, len(w))})


@st.composite
def quantized_linear(draw):
    """Rows of bytes times a matrix; also sums as they are."""
    case, rng = draw(draws.linear()), draw(draws.GENERATORS)
    x, w, bias, *_ = *case.arrays, None
    x, w = _some(rng, x.shape, draw(_BYTES)), _some(rng, w.shape, np.dtype(np.int8))
    bias = [] if bias is None else [rng.integers(-3000, 3000, bias.shape, np.int32)]
    attributes = _numbers(draw, rng, x.dtype, w.shape[1])
    if draw(st.booleans()):
        attributes = {
            "x_scale": 1.0,
            "w_scale": 1.0,
            "x_zero_point": attributes["x_zero_point"],
            "y": np.dtype(np.int32),
        }
    return Case([x, w, *bias], attributes)


@st.composite
def quantized_matmul(draw):
    """Stacks of matrices of bytes."""
    case, rng = draw(draws.matmul()), draw(draws.GENERATORS)
    dtypes, y = (draw(_BYTES), draw(_BYTES)), draw(st.sampled_from((*map(np.dtype, (np.uint8, np.int8, np.float32)),)))
    a, b = (_some(rng, array.shape, dtype) for array, dtype in zip(case.arrays, dtypes, strict=True))
    attributes = {f"{name}_scale": float(_scale(rng)) for name in "ab"} | {"y": y}
    attributes |= {f"{name}_zero_point": int(_some(rng, (), x.dtype)) for name, x in (("a", a), ("b", b))}
    if y != np.float32:
        attributes |= {"y_scale": float(_scale(rng)) * 100, "y_zero_point": int(_some(rng, (), y))}
    return Case([a, b], attributes)


@st.composite
def attention(draw):
    """Operands of any 8-bit types, masks that broadcast, scores of 8 bits or float32."""
    rng, stack = draw(draws.GENERATORS), draw(st.sampled_from(((), (2,), (2, 3))))
    rows, keys, depth, width = (draw(st.sampled_from((1, 5, 17, 33))) for _ in range(4))
    shapes = (*stack, rows, depth), (*stack, depth, keys), (*stack, keys, width)
    arrays = [_some(rng, shape, draw(_BYTES)) for shape in shapes]
    scores, y = (draw(st.sampled_from((*map(np.dtype, (np.uint8, np.int8, np.float32)),))) for _ in range(2))
    masks = st.lists(st.sampled_from(((keys,), (*stack[:1], *[1] * len(stack[1:]), 1, keys), (*stack, rows, keys))))
    masks = [rng.normal(0, 9, shape).astype(np.float32) for shape in draw(masks)[:2]]
    types = [*(array.dtype for array in arrays), draw(_BYTES), y, *[scores] * (1 + len(masks))]
    scales = [0.02, 0.02, *rng.uniform(0.002, 0.01, 2), 0.01, *rng.uniform(0.2, 1, 1 + len(masks))]
    whole = [kind != np.float32 for kind in types]
    points = [int(_some(rng, (), kind)) if is_whole else 0 for kind, is_whole in zip(types, whole, strict=True)]
    scales = [float(scale) if is_whole else 1.0 for scale, is_whole in zip(scales, whole, strict=True)]
    perm = draw(st.sampled_from((None, [*range(len(stack))][::-1] + [len(stack), len(stack) + 1])))
    numbers = {
        "scales": scales,
        "zero_points": points,
        "score_type": scores,
        "weight_type": types[3],
        "y": y,
        "perm": perm,
    }
    return Case([*arrays, *masks], numbers)


def _numbers(draw, rng, x, count):
    """Attributes of a product of so many outputs: what its integers mean, and an activation."""
    y = draw(st.sampled_from((*map(np.dtype, (np.uint8, np.int8, np.float32)),)))
    attributes = {"x_scale": float(_scale(rng)), "x_zero_point": int(_some(rng, (), x)), "y": y}
    attributes["w_scale"] = _scale(rng, (count,)) if draw(st.booleans()) else float(_scale(rng))
    if y != np.float32:
        attributes |= {"y_scale": float(_scale(rng)) * 100, "y_zero_point": int(_some(rng, (), y))}
    attributes["activation"] = draw(st.sampled_from((None, ("relu",))))
    return attributes
