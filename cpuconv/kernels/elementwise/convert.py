"""Conversion of contiguous elements from one type to another, with quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.isa import Isa
from cpuconv.isa.typed import I8, load_as_float, store_narrow
from cpuconv.isa.vector import F32, I32, Vector
from cpuconv.kernels.binding.steps import Args, Ref, Step
from cpuconv.kernels.emit.conversions import convert as convert_elements
from cpuconv.kernels.emit.conversions import converts, float_of
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel

_VECTORS = 4  # vectors per iteration


@dataclass(frozen=True)
class ConvertTile:
    """Tile of the kernel: 32-bit lanes per vector, source and target type."""

    lanes: int
    source: Element
    target: Element

    @property
    def once(self) -> int:
        """Elements per iteration."""
        return _VECTORS * self.lanes


def _convert(tile: ConvertTile, vec: Vector, vectors: int, words: tuple[Any, ...]) -> None:
    x, y, scale, zero = words
    x, y = vec.pointer(x), vec.pointer(y)
    scale, zero = float_of(vec, scale), vec.builder.trunc(zero, I32)
    for first in range(0, vectors * vec.lanes, vec.lanes):
        places = vec.offset(x, first * tile.source.bytes), vec.offset(y, first * tile.target.bytes)
        convert_elements(vec, tile.source, tile.target, *places, scale, zero)


def _quantize(vec: Vector, source: Element, target: Element, count: int, x: Any, y: Any, scale: Any, zero: Any) -> None:
    """Quantise `count` vectors (a power of two) at `x` to int8 or uint8 at `y`: clip(rint(x / scale) + zero).

    NaN gives the minimum. As the bounds less the zero point are integers, the quotient is clipped first. Then one
    instruction rounds, and the zero point is added in 8 bits, whose sum is within range however it wraps.
    """
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


@emitter
def _convert_vectors(tile: ConvertTile, vec: Vector, x: Any, y: Any, scale: Any, zero: Any) -> None:
    """Convert `tile.once` elements."""
    if tile.target.integer:
        places, by = (vec.pointer(x), vec.pointer(y)), (float_of(vec, scale), vec.builder.trunc(zero, I32))
        _quantize(vec, tile.source, tile.target, _VECTORS, *places, *by)
    else:
        _convert(tile, vec, _VECTORS, (x, y, scale, zero))


@emitter
def _convert_element(tile: ConvertTile, vec: Vector, x: Any, y: Any, scale: Any, zero: Any) -> None:
    """Convert one element."""
    _convert(tile, Vector(vec.builder, 1), 1, (x, y, scale, zero))


@kernel("x y count scale zero")
def convert(tile, worker, before, part, parts, args):
    """y = x in another type, by units of 1024 elements; `scale` is the bit pattern of a float32."""
    units = (args.count + 1023) // 1024
    at = units * part // parts * 1024
    end = min(units * (part + 1) // parts * 1024, args.count)
    x, y = args.x + at * tile.source.bytes, args.y + at * tile.target.bytes
    scale, zero = args.scale, args.zero
    while at + tile.once <= end:
        _convert_vectors(tile, x, y, scale, zero)
        x += tile.once * tile.source.bytes
        y += tile.once * tile.target.bytes
        at += tile.once
    while at < end:
        _convert_element(tile, x, y, scale, zero)
        x += tile.source.bytes
        y += tile.target.bytes
        at += 1


def bits_of(scale: float) -> int:
    """Bit pattern of a float32, as the argument `scale` of `convert`."""
    return int(np.float32(scale).view(np.int32))


def convert_step(
    isa: Isa, x: Ref, y: Ref, count: int, source: Element, target: Element, scale: int | Ref = 0, zero: int | Ref = 0
) -> Step:
    """Make one call that converts `count` elements at `x` to another type at `y`.

    Parameters
    ----------
    scale : int or Ref
        `bits_of` the quantisation scale, used if one side is an integer type; or a reference that is resolved later.
    zero : int or Ref
        Quantisation zero point.
    """
    assert converts(source, target), f"{source} to {target}"
    words: Args = {"x": x, "y": y, "count": count, "scale": scale, "zero": zero}
    return Step(convert, ConvertTile(isa.lanes, source, target), words)
