"""Elements of one type to another: floats rounded, and between floats and integers by a scale and a zero point."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpuconv.elements import Element
from cpuconv.isa.typed import load_as_float, load_as_int, store_float
from cpuconv.isa.vector import F32, I32, Vector

SMALL = 16  # bits of the largest integers that floats become: ends of their range are floats


def converts(source: Element, target: Element) -> bool:
    """Whether elements of the one become those of the other: not integers other integers."""
    return not source.integer if target.integer and 8 * target.bytes <= SMALL else not target.integer


def convert(vec: Vector, source: Element, target: Element, x: Any, y: Any, scale: Any, zero: Any) -> None:
    """`lanes` elements at `y` from those at `x`.

    With q the integer and r the float: q = clip(rint(r / scale) + zero), by halves to even and to the ends of q's
    range, a NaN to the lower one; r = (q - zero)·scale. `scale` is a float, `zero` an int32.
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
    """Every int32 lane = number."""
    return vec.builder.bitcast(vec.splat(vec.builder.bitcast(number, F32)), vec.int_type)


def float_of(vec: Vector, word: Any) -> Any:
    """The float whose bits the lower half of a word has."""
    return vec.builder.bitcast(vec.builder.trunc(word, I32), F32)
