"""Conversions of element types: rounding of floats; quantisation and dequantisation by a scale and a zero point."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpuconv.elements import Element
from cpuconv.isa.typed import load_as_float, load_as_int, store_float
from cpuconv.isa.vector import F32, I32, Vector

SMALL = 16  # bits of the largest integers that floats are converted to: a float32 represents their bounds exactly


def converts(source: Element, target: Element) -> bool:
    """Whether the conversion is supported: not from integers to other integers."""
    return not source.integer if target.integer and 8 * target.bytes <= SMALL else not target.integer


def convert(vec: Vector, source: Element, target: Element, x: Any, y: Any, scale: Any, zero: Any) -> None:
    """Convert `lanes` elements at `x` to elements at `y`.

    With q the integer and r the float: q = clip(rint(r / scale) + zero), ties to even, clipped to q's range, NaN to
    the lower bound; r = (q - zero)·scale. `scale` is a float32, `zero` an int32.
    """
    if target.integer:
        ends = np.iinfo(target.dtype)
        rounded = vec.round(vec.div(load_as_float(vec, source, x), vec.splat(scale)))
        shifted = vec.add(rounded, vec.splat(vec.builder.sitofp(zero, F32)))
        value = vec.minimum(vec.maximum(shifted, vec.constant(ends.min)), vec.constant(ends.max))
    elif source.integer:
        difference = vec.builder.sub(load_as_int(vec, source, x), _splat(vec, zero))
        value = vec.mul(vec.builder.sitofp(difference, vec.type), vec.splat(scale))
    else:
        value = load_as_float(vec, source, x)
    store_float(vec, target, value, y)


def _splat(vec: Vector, number: Any) -> Any:
    """Broadcast an int32 to all lanes."""
    return vec.builder.bitcast(vec.splat(vec.builder.bitcast(number, F32)), vec.int_type)


def float_of(vec: Vector, word: Any) -> Any:
    """The float32 whose bits are the lower half of an int64 word."""
    return vec.builder.bitcast(vec.builder.trunc(word, I32), F32)
