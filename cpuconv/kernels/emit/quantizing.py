"""Floats to integers of a byte, several vectors at once.

The integer is clip(rint(x / scale) + zero). As the ends less the zero point are integers, the quotient is clipped
first: then one instruction rounds, and the zero point is added to bytes, whose sum is in range however it wraps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cpuconv.elements import Element
from cpuconv.isa.typed import I8, load_as_float, store_narrow
from cpuconv.isa.vector import F32, I32, Vector
from cpuconv.runtime.code.llvm import ir


def quantize(vec: Vector, source: Element, target: Element, count: int, x: Any, y: Any, scale: Any, zero: Any) -> None:
    """`count` vectors of floats at `x`, a power of two, as bytes at `y`, clipped; NaN becomes the least."""
    builder, ends = vec.builder, np.iinfo(target.dtype)
    low, high = (vec.splat(builder.fsub(F32(float(end)), builder.sitofp(zero, F32))) for end in (ends.min, ends.max))
    made = []
    for i in range(count):
        value = load_as_float(vec, source, vec.offset(x, i * vec.lanes * source.bytes))
        quotient = vec.div(value, vec.splat(scale))
        made.append(vec.nearest_int(vec.minimum(vec.maximum(quotient, low), high)))
    while len(made) > 1:
        width = [I32(lane) for lane in range(2 * made[0].type.count)]
        order = ir.Constant(ir.VectorType(I32, len(width)), width)
        made = [builder.shuffle_vector(a, b, order) for a, b in zip(made[::2], made[1::2], strict=True)]
    bytes_ = Vector(builder, count * vec.lanes)
    integers = builder.trunc(made[0], ir.VectorType(I8, bytes_.lanes))
    store_narrow(bytes_, target, builder.add(integers, bytes_.splat(builder.trunc(zero, I8))), y)
