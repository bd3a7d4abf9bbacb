"""Steps of operations along an axis: view a tensor as (outer, axis, inner) and bind the kernels to memory."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.axis.axis_driver import AxisDriverTile, reduces, work_on_line, work_on_lines
from cpuconv.kernels.axis.axis_emitter import LINE_REGISTERS, AxisTile
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, OneOf, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.problem.integers import divide
from cpuconv.symbolic.sizes import applied, is_symbolic, now

VECTORS = 4  # independent vectors per iteration, to hide the latency of an addition
_ALONG = ("LayerNormalization",)  # operations with operands per element of a line: it must be contiguous
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
class _LineStrides:
    """Byte strides between images, between lines of an image, and between elements of a line."""

    image: int
    row: int
    step: int

    @classmethod
    def of(cls, place: TensorView, axes: Axes) -> _LineStrides | None:
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
    operation: str,
    axes: Axes,
    x: TensorView,
    y: TensorView,
    affine: Sequence[TensorView] = (),
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
    operation : str
        One of `OPERATIONS`.
    axes : Axes
        Axes of `x` that form lines.
    x : TensorView
    y : TensorView
        The output with the axes of the input; reduced axes have one element.
    affine : Sequence[TensorView]
        Scale and bias.
    channels : int
        Consecutive lines with a scale of their own each; 0: scales are per element.
    numbers : Sequence[float]
        If `x` or `y` is int8 or uint8: scale and zero point of `x`, and of `y`.
    **tile
        Further fields of `AxisTile`.
    """
    isa, threads = processor.isa, processor.threads
    steps: list[Step] = []
    after: list[Step] = []
    x_strides, y_strides = _LineStrides.of(x, axes), _LineStrides.of(y, axes)
    if x_strides is None or affine and x_strides.step not in (0, x.element.bytes):
        x, steps = _gathered(processor, space, x)
        x_strides = _LineStrides.of(x, axes)
    if y_strides is None or affine and y_strides.step not in (0, y.element.bytes):
        packed = TensorView.plain(space.reserve(y.size), y.shape, y.dtype)
        after, y, y_strides = move_tensor(processor, space, packed, y), packed, _LineStrides.of(packed, axes)
    assert x_strides is not None and y_strides is not None
    operands = []
    for place in affine:
        if merged(place.shape, place.strides) not in (0, F32.bytes):
            place, copied = _gathered(processor, space, place)
            steps += copied
        operands.append(place.ref)
    size, inner = math.prod(x.shape[axes.first : axes.last]), math.prod(x.shape[axes.last :])
    along = x_strides.step in (0, x.element.bytes) and y_strides.step in (0, y.element.bytes)
    across = inner > 1 or not along
    wide = inner // (VECTORS * isa.lanes) if across else 1
    narrow = divide(inner - wide * VECTORS * isa.lanes, isa.lanes) if across else 0
    vectors = divide(size, isa.lanes)
    registers = 0 if across else line_registers(isa, vectors)
    tile |= {"x": x.element, "y": y.element}
    many = AxisTile(isa.lanes, VECTORS, operation, across, registers, **tile)
    one = AxisTile(isa.lanes, 1, operation, across, masked=True, **tile)
    args = {
        "micro": line_kernel(many, vectors, isa) if wide else 0,
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
        **{f"x_{name}": value for name, value in vars(x_strides).items()},
        **{f"y_{name}": value for name, value in vars(y_strides).items()},
        "size": size,
        "channels": channels or 1,
        "channel_step": F32.bytes if channels else 0,
        "numbers": np.array(numbers, np.float32) if numbers else 0,
        **worker_args("scratch", space, divide(many.scratch * size, _LINE) * _LINE, threads),
    }
    parts = processor.parts(x.size + y.size)
    driver = AxisDriverTile(isa.lanes, VECTORS, x.element.bytes, y.element.bytes)
    calls = [args]
    if registers and reduces(operation) and not is_symbolic(vectors):
        calls = _several_lines(args, replace(many, lines=isa.lanes), x, y)
    return [*steps, *(Step(work_on_lines, driver, each, parts) for each in calls), *after]


def _several_lines(args: Args, tile: AxisTile, x: TensorView, y: TensorView) -> list[Args]:
    """Divide the lines of a reduction into groups of `tile.lines`, one call of a micro-kernel each, and single lines.

    Outputs of a group must be adjacent. Otherwise all lines remain single.
    """
    count = tile.lines
    images, rows, x_image, x_row, y_image, y_row = (
        typing.cast(Any, args[name]) for name in ("images", "rows", "x_image", "x_row", "y_image", "y_row")
    )
    if not is_symbolic(rows) and rows == 1:  # lines are apart by the stride of images
        images, rows, x_image, x_row, y_image, y_row = 1, images, 0, x_image, 0, y_image
    if not is_symbolic(rows) and rows < count or is_symbolic(y_row) or y_row != y.element.bytes:
        return [args]
    groups = rows // count
    done = groups * count
    both: Args = {**args, "images": images, "x_image": x_image, "y_image": y_image, "channels": 1}
    several: Args = {"micro": MicroRef(work_on_line, tile), "rows": groups, "x_step": x_row}
    several |= {"x_row": count * x_row, "y_row": count * y_row}
    single: Args = {"x": x.ref + done * x_row, "y": y.ref + done * y_row, "rows": rows - done}
    single |= {"x_row": x_row, "y_row": y_row}
    return [both | several, both | single][: 1 + (is_symbolic(rows) or rows > done)]


def line_registers(isa: Isa, vectors: int) -> int:
    """Registers for a contiguous line of `vectors` vectors; 0: each pass loads the line again."""
    able = [registers for registers in LINE_REGISTERS if now(vectors) <= registers <= isa.registers // 2]
    return able[0] if able else 0


def line_kernel(tile: AxisTile, vectors: int, isa: Isa) -> MicroRef | OneOf:
    """The micro-kernel for lines of `vectors` vectors, whatever is at hand: others add in a different order."""
    if not is_symbolic(vectors) or tile.across:
        return MicroRef(work_on_line, tile)
    counts = (0, *(registers for registers in LINE_REGISTERS if registers <= isa.registers // 2))
    registers = (tile.registers, *(each for each in counts if each != tile.registers))
    tiles = [replace(tile, registers=each) for each in registers]
    return OneOf(
        tuple(MicroRef(work_on_line, each) for each in tiles), applied(functools.partial(_serving, registers), vectors)
    )


def _serving(registers: tuple[int, ...], vectors: int) -> int:
    """Index of the kernel for lines of `vectors` vectors."""
    least = next((each for each in LINE_REGISTERS if vectors <= each), 0)
    return registers.index(least if least in registers else 0)


def line_tiles(isa: Isa, operation: str, **tile: Any) -> list[AxisTile]:
    """Micro-kernels of an operation along lines of any size, contiguous or across; fields as in `line_steps`."""
    registers = (0, *(each for each in LINE_REGISTERS if each <= isa.registers // 2))
    along = [AxisTile(isa.lanes, VECTORS, operation, False, each, **tile) for each in registers]
    if operation in _ALONG:
        return along
    if reduces(operation):
        along += [replace(each, lines=isa.lanes) for each in along if each.registers]
    across = (
        AxisTile(isa.lanes, VECTORS, operation, True, **tile),
        AxisTile(isa.lanes, 1, operation, True, masked=True, **tile),
    )
    return [*along, *across]


def _gathered(processor: Processor, space: Space, place: TensorView) -> tuple[TensorView, list[Step]]:
    """Copy a tensor to contiguous workspace; returns the copy and the steps."""
    packed = TensorView.plain(space.reserve(place.size), place.shape, place.dtype)
    return packed, move_tensor(processor, space, place, packed)


def full(place: TensorView, shape: Sequence[int], axes: Sequence[int]) -> TensorView:
    """View the output of a reduction of a tensor of `shape` with all its axes; reduced axes have one element."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    strides = [0] * len(shape)
    if len(place.shape) == len(shape):
        strides = list(place.strides)
    else:
        for axis, stride in zip(kept, place.strides, strict=True):
            strides[axis] = stride
    sizes = [shape[axis] if axis in kept else 1 for axis in range(len(shape))]
    return TensorView(place.ref, tuple(sizes), tuple(strides), 1, place.dtype)
