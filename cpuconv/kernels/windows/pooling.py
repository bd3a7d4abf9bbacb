"""Pooling with overlapping windows, of planes in channel blocks or dense, computed in strips of outputs.

A row is cut into strips (`pool_strip`) of one width, which overlap in a row that they do not divide. The strips at the
ends of a row have another kernel, with the range of existing columns as arguments. So a pooling needs few kernels for
planes of all sizes.

The work is cut into units (image, channel block, output row).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.columns import columns_for
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.binding.tensor_view import TensorView, image_shape
from cpuconv.kernels.copies.rows import zero_pixels
from cpuconv.kernels.emit.intrinsics import word
from cpuconv.kernels.windows.planes import FIELDS, PlaneTile, plane_args
from cpuconv.kernels.windows.pool_strip import StripTile, factor_bytes, pool_strip
from cpuconv.problem.integers import divide
from cpuconv.runtime.kernel import kernel
from cpuconv.symbolic.sizes import applied, is_symbolic, items_of, now

OUTPUTS = (1, 2, 4, 7, 14)  # outputs of a strip, whose code is straight-line
_DENSE_OUTPUTS = (4, 8, 16, 32)  # the same in dense planes: from half a vector to two, and perhaps more than a row has
_FOLD, _DENSE = {"sum": 1}, 0.35  # instructions of a fold in dense planes, 3 if it keeps NaN; cycles of each (Zen 4)
_UNROLLED = 8  # rows of a window that are unrolled in dense planes
_MAX_WINDOW_COLUMNS = 32  # columns of a window; those of wider ones would not stay in registers
_MIN_CANDIDATE_OUTPUTS = 4  # outputs of strips that are candidates whatever the number of registers
_COLUMN_REGISTERS = 5 / 8  # share of the registers for columns of a strip; others are for their operands
_CALL = 6  # overhead of a strip, in vector operations


@dataclass(frozen=True)
class Pooling:
    """Parameters of a pooling: a window over the rows and the columns of a plane.

    Attributes
    ----------
    fold : str
        Name in `FOLDS`.
    kernel, strides, dilations, near : tuple[int, int]
        Taps of the window, strides of windows and of taps, and the padding before the first input.
    factors : np.ndarray or None
        Factor of each output, float32 (rows, columns); or (rows, columns, 2): factor and addend, with the result
        rounded to an 8-bit type. None: no factor.
    """

    fold: str
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    near: tuple[int, int]
    factors: np.ndarray | None = None

    @property
    def shifted(self) -> bool:
        """Whether there is an addend."""
        return self.factors is not None and now(self.factors).ndim == 3

    def taps(self, axis: int, output: int, size: int) -> range:
        """The inputs, of `size`, under the window of an output along an axis: 0 for rows, 1 for columns."""
        start = output * self.strides[axis] - self.near[axis]
        step = self.dilations[axis]
        first = start % step if start < 0 else start
        return range(first, max(first, min(size, start + self.kernel[axis] * step)), step)


_call_strip = pool_strip.caller()


@kernel(f"inner edged strips strip wide stride near in_width rows line factors factor {FIELDS}")
def pool(tile, worker, before, part, parts, args):
    """y = pooling of x, by strips.

    `rows` has three int64 words per output row, as for `pool_strip`; a factor has `factor` bytes. Strips start at
    output columns `strip`, 2·`strip` …, but the last one ends with the row; `wide` input columns are under a strip.
    """
    pixel = tile.pixel
    unit = args.units * part // parts
    end = args.units * (part + 1) // parts
    while unit < end:
        plane = unit // args.height
        first = unit - plane * args.height
        last = min(args.height, first + end - unit)
        unit += last - first
        image = plane // args.blocks
        block = plane - image * args.blocks
        x = args.x + image * args.x_image + block * args.x_block
        y = args.y + image * args.y_image + block * args.y_block
        step = last - first if tile.dense else 1  # rows per strip: more would not leave registers for pixels
        for row in range(first, last, step):
            rows, target = args.rows + 24 * row, y + row * args.width * pixel
            if word(tile, rows, 1) == 0:
                zero_pixels(tile, target, args.width)
                continue
            for i in range(args.strips):
                at = max(0, min(i * args.strip, args.width - args.strip))
                start = at * args.stride - args.near
                inside = start >= 0 and start + args.wide <= args.in_width and args.strip <= args.width
                _call_strip(
                    args.inner if inside else args.edged,
                    x=x + start * pixel,
                    line=args.line,
                    rows=rows,
                    count=step,
                    y=target + at * pixel,
                    y_line=args.width * pixel,
                    factors=args.factors + args.factor * at,
                    first=max(0, -start),
                    last=min(args.wide, args.in_width - start),
                    outputs=min(args.strip, args.width),
                )


def strip_tiles(tile: StripTile, isa: Isa) -> list[StripTile]:
    """All strips of the pooling that `tile` is a strip of, for planes of any width."""
    vectors = (each for each in _DENSE_OUTPUTS if isa.lanes // 2 <= each <= 2 * isa.lanes)
    widths = tuple(vectors) if tile.dense else OUTPUTS
    found = [replace(tile, outputs=outputs, edged=edged) for outputs in widths for edged in (False, True)]
    always = max(_MIN_CANDIDATE_OUTPUTS, widths[0])
    return [each for each in found if each.outputs <= always or len(each.columns) <= isa.registers * _COLUMN_REGISTERS]


def _fastest_strip(isa: Isa, width: int, pooling: Pooling, tile: StripTile) -> tuple[float, int]:
    """Vector operations for a row of `width` by the strip with the fewest, and the outputs of that strip."""

    def operations(strip: StripTile) -> float:
        each = len(strip.columns) * pooling.kernel[0] + _CALL
        if strip.dense:
            fold = _FOLD.get(tile.fold, 3)
            vectors = divide(strip.outputs, strip.vector_lanes)
            each = len(strip.columns) * pooling.kernel[0] * (2 + fold) + vectors * (tile.taps - 1) * (3 + fold) + 20
            return _DENSE * divide(width, strip.outputs) * each
        return divide(width, strip.outputs) * (each + strip.outputs * math.ceil(math.log2(tile.taps) + 1))

    able = (each for each in strip_tiles(tile, isa) if tile.dense or each.outputs <= width)
    return min((operations(each), each.outputs) for each in able)


def _tile(isa: Isa, pooling: Pooling, element: Element, dense: bool) -> StripTile:
    """A strip of one output, without missing columns."""
    fields = (isa.lanes, pooling.fold, 1, pooling.kernel[1], pooling.strides[1], pooling.dilations[1], False)
    rows = pooling.kernel[0] if dense and pooling.kernel[0] <= _UNROLLED else 0
    return StripTile(*fields, pooling.factors is not None, element, pooling.shifted, dense, rows)


def pools_dense(pooling: Pooling, size: Sequence[int], outputs: Sequence[int]) -> bool:
    """Whether dense planes of `size` rows and columns can be pooled: each window has an input, and is not too wide."""
    return _fits(pooling) and all(_windows_overlap_input(pooling, axis, outputs[axis], size[axis]) for axis in (0, 1))


def dense_operations(isa: Isa, pooling: Pooling, width: int) -> float:
    """Vector operations per vector of outputs of dense planes with rows of `width` outputs."""
    return _fastest_strip(isa, now(width), pooling, _tile(isa, pooling, F32, True))[0] * isa.lanes / now(width)


def _fits(pooling: Pooling) -> bool:
    """Whether a window is narrow enough for strips, and not wholly in the padding before the first column."""
    taps = pooling.kernel[1]
    return taps <= _MAX_WINDOW_COLUMNS and pooling.near[1] <= (taps - 1) * pooling.dilations[1]


def _windows_overlap_input(pooling: Pooling, axis: int, outputs: int, size: int) -> bool:
    """Whether the window of each output along an axis contains an input."""
    return all(pooling.taps(axis, output, size) for output in range(outputs))


def _tables(
    pooling: Pooling, size: int, outputs: int, line: int, factors: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The words of each output row, and the distinct rows of factors."""
    entries = np.zeros((outputs, 3), np.int64)
    for row in range(outputs):
        seen = pooling.taps(0, row, size)
        entries[row, :2] = seen.start * line, len(seen)
    if factors is None:
        return entries, np.zeros(0, np.float32)
    distinct, which = np.unique(factors, axis=0, return_inverse=True)
    entries[:, 2] = which.reshape(-1) * distinct[0].size * F32.bytes
    return entries, np.ascontiguousarray(distinct, np.float32)


def pool_step(isa: Isa, x: TensorView, y: TensorView, pooling: Pooling, parts: int) -> Step | None:
    """Make the call that pools `x` to `y`, both in channel blocks or both dense.

    None where a window is too wide for strips, or has no column inside the input; dense planes must be those of
    `pools_dense`.
    """
    (h, w), (height, width) = image_shape(x.shape)[2:], image_shape(y.shape)[2:]
    taps, stride, dilation, near = pooling.kernel[1], pooling.strides[1], pooling.dilations[1], pooling.near[1]
    without_factors = replace(pooling, factors=None)
    if not _fits(pooling) or not applied(functools.partial(_windows_overlap_input, without_factors, 1), width, w):
        return None
    dense = x.block == 1
    tile = _tile(isa, pooling, x.element, dense)
    tile = replace(tile, outputs=_fastest_strip(isa, now(width), pooling, tile)[1])

    def strip(outputs: int, edged: bool) -> MicroRef:
        return MicroRef(pool_strip, replace(tile, outputs=outputs, edged=edged))

    others = [each.outputs for each in strip_tiles(tile, isa)]
    columns = columns_for(tile.outputs, others, width, lambda each: [strip(each, False), strip(each, True)])
    outputs = columns.taken
    if not dense and width < outputs:
        raise ValueError("a strip is wider than the plane")
    strips = divide(width, outputs)
    starts = [] if is_symbolic(width) else [min(at * outputs, width - outputs) * stride - near for at in range(strips)]
    inside = [start >= 0 and start + tile.input_columns <= w and outputs <= width for start in starts]
    x_line = x.operand.strides.h
    tables = functools.partial(_tables, without_factors)
    factors = () if pooling.factors is None else (pooling.factors,)
    entries, distinct = items_of(applied(tables, h, height, x_line, *factors))
    args: Args = {**plane_args(x, y), "factors": distinct if factors else 0, "factor": factor_bytes(pooling.shifted)}
    args |= {
        "inner": columns.ref(lambda each: strip(each, False)) if any(inside) or not inside else 0,
        "edged": 0 if inside and all(inside) else columns.ref(lambda each: strip(each, True)),
        "strips": strips,
        "strip": outputs,
        "wide": (outputs - 1) * stride + (taps - 1) * dilation + 1,
        "stride": stride,
        "near": near,
        "in_width": w,
        "rows": entries,
        "line": pooling.dilations[0] * x_line,
    }
    return Step(pool, PlaneTile.of(isa, x), args, parts)
