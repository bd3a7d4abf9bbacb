"""Steps of operations along an axis: view a tensor as (outer, axis, inner) and bind the kernels to memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.following.sizes import applied, is_followed, now
from cpuconv.isa import Isa
from cpuconv.kernels.axis.axis_driver import AxisDriverTile, work_on_line, work_on_lines
from cpuconv.kernels.axis.axis_emitter import HELD, AxisTile
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.place import Place
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import MicroRef, OneOf, Operand, Space, Step
from cpuconv.kernels.copies.reordering import reorder_step
from cpuconv.problem.integers import divide
from layouts import Strides

_VECTORS = 4  # independent vectors per iteration, to hide the latency of an addition
_ALONG = ("LayerNormalization",)  # operations with operands per element of a line, which must be contiguous
_LINE = 64  # bytes per cache line


@dataclass(frozen=True)
class Axes:
    """Adjacent axes first … last-1 of a tensor."""

    first: int
    last: int


def neighbouring(shape: Sequence[int], chosen: Sequence[int]) -> Axes | None:
    """Merge the chosen axes to adjacent ones, if those between them have one element; else None."""
    axes = [axis for axis in chosen if shape[axis] > 1] or list(chosen[:1])
    if not axes:
        return None
    first, last = min(axes), max(axes) + 1
    return Axes(first, last) if all(axis in axes or shape[axis] == 1 for axis in range(first, last)) else None


def merged(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Stride of axes merged to one, 0 where it does not matter; None where they cannot be merged."""
    step = following = 0
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and following not in (0, stride):
            return None
        if size > 1:
            step, following = step or stride, stride * size
    return step


@dataclass(frozen=True)
class _Walk:
    """Byte strides between images, between lines of an image, and between elements of a line."""

    image: int
    row: int
    step: int

    @classmethod
    def of(cls, place: Place, axes: Axes) -> _Walk | None:
        """Strides of the lines of a tensor; None where its axes cannot be merged to them."""
        shape, strides = place.shape, place.strides
        row = merged(shape[1 : axes.first], strides[1 : axes.first])
        step = merged(shape[axes.first : axes.last], strides[axes.first : axes.last])
        inner = merged(shape[axes.last :], strides[axes.last :])
        if row is None or step is None or inner not in (0, place.element.bytes):
            return None
        return cls(strides[0] if axes.first else 0, row, step)


def line_steps(
    processor: Processor,
    space: Space,
    work: str,
    axes: Axes,
    x: Place,
    y: Place,
    affine: Sequence[Place] = (),
    channels: int = 0,
    numbers: Sequence[float] = (),
    **tile: Any,
) -> list[Step]:
    """Make the steps of an operation along the lines of a tensor.

    Parameters
    ----------
    processor : Processor
    space : Space
        Workspace for copies of operands with unsuitable strides.
    work : str
        One of `WORKS`.
    axes : Axes
        Axes of `x` that form lines.
    x : Place
    y : Place
        The output with the axes of the input; reduced axes have one element.
    affine : Sequence[Place]
        Scale and bias.
    channels : int
        Consecutive lines with a scale of their own each; 0: scales are per element.
    numbers : Sequence[float]
        If `x` or `y` is int8 or uint8: scale and zero point of `x`, and of `y`.
    **tile
        Further fields of `AxisTile`.
    """
    isa, threads, steps = processor.isa, processor.threads, []
    after: list[Step] = []
    walk, y_walk = _Walk.of(x, axes), _Walk.of(y, axes)
    if walk is None or affine and walk.step not in (0, x.element.bytes):
        x, copied = gathered(isa, space, x, threads)
        steps, walk = [copied], _Walk.of(x, axes)
    if y_walk is None or affine and y_walk.step not in (0, y.element.bytes):
        packed = Place.plain(space.reserve(y.size), y.shape, y.dtype)
        after, y, y_walk = [_copy(isa, space, packed, y, threads)], packed, _Walk.of(packed, axes)
    assert walk is not None and y_walk is not None
    operands = []
    for place in affine:
        if merged(place.shape, place.strides) not in (0, F32.bytes):
            place, copied = gathered(isa, space, place, threads)
            steps.append(copied)
        operands.append(place.ref)
    size, inner = math.prod(x.shape[axes.first : axes.last]), math.prod(x.shape[axes.last :])
    along = walk.step in (0, x.element.bytes) and y_walk.step in (0, y.element.bytes)
    across = inner > 1 or not along
    wide = inner // (_VECTORS * isa.lanes) if across else 1
    narrow = divide(inner - wide * _VECTORS * isa.lanes, isa.lanes) if across else 0
    vectors = divide(size, isa.lanes)
    able = [held for held in HELD if now(vectors) <= held <= isa.registers // 2]
    held = able[0] if able and not across else 0
    tile |= {"x": x.element, "y": y.element}
    many = AxisTile(isa.lanes, _VECTORS, work, across, held, **tile)
    one = AxisTile(isa.lanes, 1, work, across, masked=True, **tile)
    args = {
        "micro": _held(many, vectors, isa) if wide else 0,
        "micro_last": MicroRef(work_on_line, one) if narrow else 0,
        "x": x.ref,
        "y": y.ref,
        "scale": operands[0] if operands else 0,
        "bias": operands[-1] if operands else 0,
        "images": x.shape[0] if axes.first else 1,
        "rows": math.prod(x.shape[1 : axes.first]),
        "blocks": wide + narrow,
        "wide": wide,
        "inner": inner,
        **{f"x_{name}": value for name, value in vars(walk).items()},
        **{f"y_{name}": value for name, value in vars(y_walk).items()},
        "size": size,
        "channels": channels or 1,
        "channel_step": F32.bytes if channels else 0,
        "numbers": np.array(numbers, np.float32) if numbers else 0,
        **worker_args("notes", space, divide(many.notes * size, _LINE) * _LINE, threads),
    }
    parts = processor.parts(x.size + y.size)
    driver = AxisDriverTile(isa.lanes, _VECTORS, x.element.bytes, y.element.bytes)
    return [*steps, Step(work_on_lines, driver, args, parts), *after]


def _held(tile: AxisTile, vectors: int, isa: Isa) -> MicroRef | OneOf:
    """The micro-kernel for lines of `vectors` vectors, whatever is at hand: others add in a different order."""
    if not is_followed(vectors) or tile.across:
        return MicroRef(work_on_line, tile)
    counts = (0, *(held for held in HELD if held <= isa.registers // 2))
    held = (tile.held, *(each for each in counts if each != tile.held))
    tiles = [replace(tile, held=each) for each in held]
    return OneOf(
        tuple(MicroRef(work_on_line, each) for each in tiles), applied(functools.partial(_serving, held), vectors)
    )


def _serving(held: tuple[int, ...], vectors: int) -> int:
    """Index of the kernel for lines of `vectors` vectors."""
    least = next((each for each in HELD if vectors <= each), 0)
    return held.index(least if least in held else 0)


def line_tiles(isa: Isa, work: str, **tile: Any) -> list[AxisTile]:
    """Micro-kernels of an operation along lines of any size, contiguous or across; fields as in `line_steps`."""
    held = (0, *(each for each in HELD if each <= isa.registers // 2))
    along = [AxisTile(isa.lanes, _VECTORS, work, False, each, **tile) for each in held]
    if work in _ALONG:
        return along
    across = AxisTile(isa.lanes, _VECTORS, work, True, **tile), AxisTile(isa.lanes, 1, work, True, masked=True, **tile)
    return [*along, *across]


def gathered(isa: Isa, space: Space, place: Place, threads: int) -> tuple[Place, Step]:
    """Copy a dense tensor with a strided first axis to contiguous workspace; returns the copy and the step."""
    packed = Place.plain(space.reserve(place.size), place.shape, place.dtype)
    return packed, _copy(isa, space, place, packed, threads)


def _copy(isa: Isa, space: Space, source: Place, target: Place, threads: int) -> Step:
    first = next((axis for axis, size in enumerate(source.shape) if size > 1), 0)  # the only axis that may be strided
    rest, element = math.prod(source.shape[first + 1 :]), source.element

    def operand(place: Place) -> Operand:
        size = element.bytes
        return Operand(place.ref, Strides(place.strides[first], 1, rest * size, 0, rest * size, size))

    shape = source.shape[first], 1, 1, rest
    return reorder_step(isa, space, shape, operand(source), operand(target), threads, element)


def full(place: Place, shape: Sequence[int], axes: Sequence[int]) -> Place:
    """View the output of a reduction of a tensor of `shape` with all its axes; reduced axes have one element."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    strides = [0] * len(shape)
    if len(place.shape) == len(shape):
        strides = list(place.strides)
    else:
        for axis, stride in zip(kept, place.strides, strict=True):
            strides[axis] = stride
    sizes = [shape[axis] if axis in kept else 1 for axis in range(len(shape))]
    return Place(place.ref, tuple(sizes), tuple(strides), 1, place.dtype)
