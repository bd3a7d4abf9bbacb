"""Conversion of one row of a picture to planes of uint8: YUV to RGB, and RGB to grey, in integers.

RGB is that of OpenCV's `cvtColor` (ITU-R BT.601, 20 fractional bits), grey that of Pillow's `convert("L")` (16 bits).
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import U8
from cpuconv.isa.typed import store_int
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.images.emitters import ROWS
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

_LUMA = 1220542
_CHROMA = {0: (0, 1673527), 1: (-409993, -852492), 2: (2116026, 0)}  # factors of U and V, for R, G and B
_YUV_BITS, _BLACK, _NEUTRAL = 20, 16, 128
_GREY, _GREY_BITS = (19595, 38470, 7471), 16


@dataclass(frozen=True)
class ColorTile:
    """`kind`: NV12, YUYV or GRAY; for GRAY, bytes of a pixel and the places of R, G and B in it."""

    kind: str
    pixel: int = 0
    order: tuple[int, ...] = (0, 1, 2)


@MicroKernel
def convert_row(tile: ColorTile, builder: ir.IRBuilder, x: Any, chroma: Any, y: Any, plane: Any, count: Any) -> None:
    """Write `count` pixels of a row to y, planes R, G and B `plane` bytes apart, or one plane of grey.

    `chroma` is the address of NV12's row of U and V. The planes have room for a multiple of 16 pixels.
    """
    vec = Vector(builder, ROWS)

    def byte(base: Any, place: Any) -> Any:
        """The byte at base + place; `place` is that of an existing pixel."""
        read = builder.load(builder.inttoptr(builder.add(base, place), ir.IntType(8).as_pointer()))
        return builder.zext(read, I32)

    def gathered(base: Any, place: Any, pixels: list[Any]) -> Any:
        value = vec.int_constant(0)
        for lane, pixel in enumerate(pixels):
            value = builder.insert_element(value, byte(base, place(pixel)), I32(lane))
        return value

    def part(number: Any, _: list[Any]) -> list[Any]:
        first, end = builder.mul(number, I64(ROWS)), builder.sub(count, I64(1))
        places = [builder.add(first, I64(lane)) for lane in range(ROWS)]
        pixels = [builder.select(builder.icmp_signed("<", place, end), place, end) for place in places]
        read = {"GRAY": _grey, "NV12": _nv12, "YUYV": _yuyv}[tile.kind]
        mask = first_lanes(vec, builder.sub(count, first))
        for number_, value in enumerate(read(tile, vec, lambda base, place: gathered(base, place, pixels), x, chroma)):
            target = builder.add(builder.add(y, first), builder.mul(plane, I64(number_)))
            store_int(vec, U8, value, vec.pointer(target), mask)
        return []

    repeat(vec, I64(0), builder.sdiv(builder.add(count, I64(ROWS - 1)), I64(ROWS)), [], part)


def _grey(tile: ColorTile, vec: Vector, read: Any, x: Any, chroma: Any) -> list[Any]:
    builder, total = vec.builder, vec.int_constant(1 << (_GREY_BITS - 1))
    for factor, at in zip(_GREY, tile.order, strict=True):
        value = read(x, lambda pixel, at=at: builder.add(builder.mul(pixel, I64(tile.pixel)), I64(at)))
        total = builder.add(total, builder.mul(value, vec.int_constant(factor)))
    return [builder.ashr(total, vec.int_constant(_GREY_BITS))]


def _nv12(tile: ColorTile, vec: Vector, read: Any, x: Any, chroma: Any) -> list[Any]:
    builder = vec.builder
    even = lambda pixel: builder.and_(pixel, I64(-2))  # noqa: E731
    luma = read(x, lambda pixel: pixel)
    return _rgb(vec, luma, read(chroma, even), read(chroma, lambda pixel: builder.add(even(pixel), I64(1))))


def _yuyv(tile: ColorTile, vec: Vector, read: Any, x: Any, chroma: Any) -> list[Any]:
    builder = vec.builder

    def at(place: int) -> Any:
        """U or V, of the pair of pixels."""
        return lambda pixel: builder.add(builder.mul(builder.and_(pixel, I64(-2)), I64(2)), I64(place))

    return _rgb(vec, read(x, lambda pixel: builder.mul(pixel, I64(2))), read(x, at(1)), read(x, at(3)))


def _rgb(vec: Vector, luma: Any, u: Any, v: Any) -> list[Any]:
    builder = vec.builder
    zero, neutral = vec.int_constant(0), vec.int_constant(_NEUTRAL)
    above = builder.sub(luma, vec.int_constant(_BLACK))
    above = builder.select(builder.icmp_signed(">", above, zero), above, zero)
    base = builder.add(builder.mul(above, vec.int_constant(_LUMA)), vec.int_constant(1 << (_YUV_BITS - 1)))
    u, v = builder.sub(u, neutral), builder.sub(v, neutral)
    made = []
    for of_u, of_v in _CHROMA.values():
        total = builder.add(base, builder.mul(u, vec.int_constant(of_u)))
        total = builder.add(total, builder.mul(v, vec.int_constant(of_v)))
        made.append(builder.ashr(total, vec.int_constant(_YUV_BITS)))
    return made
