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
def dynamic(draw):
    return Case(draw(draws.unary()).arrays, {}, 3)


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
def qlinear_conv(draw):
    """Weights with one scale, or one for each output channel of images."""
    case, rng = draw(draws.conv()), draw(draws.GENERATORS)
    byte, w_dtype = np.dtype(np.uint8), draw(_BYTES)
    x, w = (_some(rng, array.shape, dtype) for array, dtype in zip(case.arrays[:2], (byte, w_dtype), strict=True))
    parts = draw(st.sampled_from(((), (len(w),)))) if w.ndim == 4 else ()  # ONNX's evaluator knows two axes alone
    w_zero = np.zeros(parts, w_dtype) if w_dtype.kind == "i" else np.full(parts, 128, w_dtype)
    bias = [rng.integers(-3000, 3000, len(w), np.int32)] if len(case.arrays) > 2 else []
    scales = [_scale(rng), _scale(rng, parts), _scale(rng) * np.float32(100)]
    return Case(
        [x, scales[0], _some(rng, (), byte), w, scales[1], w_zero, scales[2], _some(rng, (), byte), *bias],
        case.attributes,
    )


@st.composite
def qlinear_matmul(draw):
    rng, byte = draw(draws.GENERATORS), np.dtype(np.uint8)
    rows, depth, columns = (draw(st.integers(1, 9)) for _ in range(3))
    stack = draw(st.sampled_from(((), (2,))))
    a, b = _some(rng, (*stack, rows, depth), byte), _some(rng, (*stack, depth, columns), byte)
    numbers = [each for _ in range(3) for each in (_scale(rng), _some(rng, (), byte))]
    numbers[4] *= np.float32(100)
    return Case([a, *numbers[:2], b, *numbers[2:]], {})
