"""Inputs around coordinates in an image: their offsets and weights, a vector of points at a time.

Coordinates are those of a grid (ONNX operator GridSample), or of the taps of a kernel window, each moved by an offset
(DeformConv). The cubic weights are those of Keys, "Cubic Convolution Interpolation" (1981).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import F32, I32, I64
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

_KEYS = -0.75  # coefficient of the cubic kernel
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}  # inputs along an axis, by mode


@dataclass(frozen=True)
class TapsTile:
    """Tile of the taps.

    Attributes
    ----------
    lanes : int
    mode, padding : str
        As in GridSample.
    aligned : bool
        Whether -1 and 1 are the centres of the end elements.
    runs : bool
        Whether the inputs of a point in a row of the image are a run of adjacent ones, with one offset. Rows must be at
        least as long as a run.
    axes : int
        Axes of the image: 2 or 3.
    """

    lanes: int
    mode: str
    padding: str
    aligned: bool
    runs: bool = False
    axes: int = 2

    @property
    def count(self) -> int:
        """Inputs per point."""
        return TAPS[self.mode] ** self.axes

    @property
    def run(self) -> int:
        """Inputs per offset."""
        return TAPS[self.mode] if self.runs else 1


Tap = tuple[Any, Any]  # index along an axis, a whole float32 within its range, and weight


@dataclass(frozen=True)
class _Axis:
    """Emitter of the taps along an axis of `size` elements."""

    tile: TapsTile
    vec: Math
    size: Any  # in every lane, as float32

    @property
    def last(self) -> Any:
        """Index of the last element."""
        return self.vec.sub(self.size, self.vec.constant(1.0))

    def place(self, at: Any) -> Any:
        """Coordinate in units of elements."""
        vec = self.vec
        half, one = vec.constant(0.5), vec.constant(1.0)
        if self.tile.aligned:
            return vec.mul(vec.mul(vec.add(at, one), half), self.last)
        return vec.mul(vec.sub(vec.mul(vec.add(at, one), self.size), one), half)

    def inside(self, at: Any) -> Any:
        """Reflect a coordinate into the axis; other paddings need only `clamped`."""
        if self.tile.padding != "reflection":
            return at
        vec = self.vec
        low = vec.constant(0.0 if self.tile.aligned else -0.5)
        span = self.last if self.tile.aligned else self.size
        period = vec.mul(vec.constant(2.0), span)
        away = vec.sub(at, low)
        turns = vec.floor(vec.div(away, period))
        reflected = vec.sub(away, vec.mul(turns, period))
        reflected = vec.add(vec.minimum(reflected, vec.sub(period, reflected)), low)
        return vec.where(">", span, vec.constant(0.0), reflected, vec.mul(at, vec.constant(0.0)))

    def clamped(self, at: Any) -> Any:
        """The nearest element within the axis; the first one for NaN."""
        return self.vec.minimum(self.vec.maximum(at, self.vec.constant(0.0)), self.last)

    def bounded(self, at: Any) -> Any:
        """A coordinate between the centres of the first and the last element; NaN stays NaN."""
        return self.vec.minimum(self.last, self.vec.maximum(self.vec.constant(0.0), at))

    def taps(self, place: Any) -> list[Tap]:
        """Inputs around coordinates in units of elements."""
        vec, one = self.vec, self.vec.constant(1.0)
        if self.tile.mode == "nearest":
            return [self._padded(self.inside(vec.round(place)), one)]
        if self.tile.mode == "linear":
            place = self.inside(place)
            place = self.bounded(place) if self.tile.padding == "border" else place
            first = vec.floor(place)
            after = vec.sub(place, first)
            return [self._padded(first, vec.sub(one, after)), self._padded(vec.add(first, one), after)]
        first = vec.floor(place)
        after = vec.sub(place, first)
        distances = (vec.add(after, one), after, vec.sub(one, after), vec.sub(vec.constant(2.0), after))
        weights = [
            (_far if step in (-1, 2) else _near)(vec, each) for step, each in zip(range(-1, 3), distances, strict=True)
        ]
        taps = (vec.add(first, vec.constant(float(step))) for step in range(-1, 3))
        return [self._padded(self.inside(tap), weight) for tap, weight in zip(taps, weights, strict=True)]

    def run(self, taps: list[Tap]) -> tuple[Any, list[Any]]:
        """First of as many adjacent inputs as there are taps, and the weights of these inputs."""
        vec, zero = self.vec, self.vec.constant(0.0)
        last = vec.sub(self.size, vec.constant(float(len(taps))))
        first = functools.reduce(vec.minimum, [tap for tap, _ in taps], last)
        made = []
        for place in range(len(taps)):
            at = vec.add(first, vec.constant(float(place)))
            made.append(functools.reduce(vec.add, [vec.where("==", tap, at, weight, zero) for tap, weight in taps]))
        return first, made

    def _padded(self, tap: Any, weight: Any) -> Tap:
        vec = self.vec
        if self.tile.padding == "zeros":
            nothing = vec.constant(0.0)
            weight = vec.where("<", tap, nothing, nothing, vec.where(">=", tap, self.size, nothing, weight))
        return self.clamped(tap), weight


def _near(vec: Math, x: Any) -> Any:
    """The cubic kernel for distances up to 1."""
    return vec.polynomial(x, [_KEYS + 2, -(_KEYS + 3), 0.0, 1.0])


def _far(vec: Math, x: Any) -> Any:
    """The cubic kernel for distances from 1 to 2."""
    return vec.polynomial(x, [_KEYS, -5 * _KEYS, 8 * _KEYS, -4 * _KEYS])


@dataclass(frozen=True)
class Plane:
    """Sizes and byte strides of an image, which is smaller than 2^31 bytes; along each axis, the last one first."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]


def _coordinates(vec: Math, grid: Any, points: Any, axes: int) -> list[Any]:
    """Coordinates of `points` <= `lanes` points, a vector for each axis; in memory those of a point are adjacent."""
    builder, start, lanes = vec.builder, vec.pointer(grid), vec.lanes
    count = builder.mul(points, I64(axes))
    parts = [
        vec.load_masked(vec.offset(start, at * vec.size), first_lanes(vec, builder.sub(count, I64(at * lanes))))
        for at in range(axes)
    ]
    places = [[axes * lane + axis for lane in range(lanes)] for axis in range(axes)]
    if axes == 2:
        return [vec.shuffle(parts[0], parts[1], place) for place in places]
    early = [vec.shuffle(parts[0], parts[1], [min(at, 2 * lanes - 1) for at in place]) for place in places]
    late = [[lane if at < 2 * lanes else at - lanes for lane, at in enumerate(place)] for place in places]
    return [vec.shuffle(first, parts[2], place) for first, place in zip(early, late, strict=True)]


def store_tables(
    tile: TapsTile, builder: ir.IRBuilder, grid: Any, points: Any, image: Plane, offsets: Any, weights: Any
) -> None:
    """Store byte offsets (int32) and weights (float32) of the inputs of `points` <= `lanes` points, one vector per tap.

    `grid` has the coordinates of each point, that along the last axis first.
    """
    vec = Math(builder, tile.lanes)
    axes = [_Axis(tile, vec, vec.splat(builder.sitofp(size, F32))) for size in image.sizes]
    coordinates = _coordinates(vec, grid, points, tile.axes)
    found = [axis.taps(axis.place(at)) for axis, at in zip(axes, coordinates, strict=True)]
    if tile.runs:
        first, factors = axes[0].run(found[0])
        found[0] = [(first, vec.constant(1.0))]
    else:
        factors = [vec.constant(1.0)]
    _store_taps(vec, found[::-1], image.strides[::-1], factors, offsets, weights)


@MicroKernel
def find_taps(
    tile: TapsTile,
    builder: ir.IRBuilder,
    grid: Any,
    points: Any,
    depth: Any,
    height: Any,
    width: Any,
    plane: Any,
    row: Any,
    column: Any,
    offsets: Any,
    weights: Any,
) -> None:
    """`store_tables` of an image with byte strides `plane`, `row` and `column`; images of two axes have no planes."""
    image = Plane((width, height, depth)[: tile.axes], (column, row, plane)[: tile.axes])
    store_tables(tile, builder, grid, points, image, offsets, weights)


def _store_taps(
    vec: Math,
    axes: Sequence[list[Tap]],
    strides: Sequence[Any],
    factors: Sequence[Any],
    offsets: Any,
    weights: Any,
) -> None:
    """Store the offset of each combination of taps, one per axis, and its weight times each of the factors."""
    builder = vec.builder
    steps = [vec.splat(builder.trunc(each, I32)) for each in strides]
    whole = [
        [(builder.mul(builder.fptosi(tap, vec.int_type), step), weight) for tap, weight in taps]
        for taps, step in zip(axes, steps, strict=True)
    ]
    for number, chosen in enumerate(itertools.product(*whole)):
        offset = functools.reduce(builder.add, [place for place, _ in chosen])
        vec.store(builder.bitcast(offset, vec.type), vec.offset(vec.pointer(offsets), number * vec.size))
        weight = functools.reduce(vec.mul, [weight for _, weight in chosen])
        for place, factor in enumerate(factors):
            at = (number * len(factors) + place) * vec.size
            vec.store(vec.mul(weight, factor), vec.offset(vec.pointer(weights), at))


@dataclass(frozen=True)
class OffsetTile(TapsTile):
    """Bilinear sampling at moved positions; `masked`: weights are multiplied by a factor per point."""

    masked: bool = False


@MicroKernel
def find_moved_taps(
    tile: OffsetTile,
    builder: ir.IRBuilder,
    moved: Any,
    axis: Any,
    factors: Any,
    points: Any,
    top: Any,
    left: Any,
    step: Any,
    height: Any,
    width: Any,
    row: Any,
    column: Any,
    offsets: Any,
    weights: Any,
) -> None:
    """Store the taps of `points` <= `lanes` points at rows `top` and columns `left`, `left + step`, …, each moved.

    `moved` has the distances along rows of the image, and `axis` bytes behind those along columns; other arguments are
    those of `find_taps`.
    """
    vec = Math(builder, tile.lanes)
    present = first_lanes(vec, points)
    ys, xs = (vec.load_masked(vec.pointer(each), present) for each in (moved, builder.add(moved, axis)))
    number = ir.Constant(vec.int_type, list(range(vec.lanes)))
    at = builder.add(vec.splat(builder.trunc(left, I32)), builder.mul(vec.splat(builder.trunc(step, I32)), number))
    ys = vec.add(ys, vec.splat(builder.sitofp(top, F32)))
    xs = vec.add(xs, builder.sitofp(at, vec.type))
    rows, columns = (
        _Axis(tile, vec, vec.splat(builder.sitofp(size, F32))).taps(place)
        for size, place in ((height, ys), (width, xs))
    )
    if tile.masked:
        scale = vec.load_masked(vec.pointer(factors), present)
        rows = [(tap, vec.mul(weight, scale)) for tap, weight in rows]
    _store_taps(vec, (rows, columns), (row, column), [vec.constant(1.0)], offsets, weights)
