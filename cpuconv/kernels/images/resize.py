"""Resize of a picture to an input of a network, in one pass over its rows.

A part of the work is a band of output rows. For each row of the band, the picture's rows that it needs and that are not
in the ring yet are resized along their width, 16 at a time; the row of the output is then the sum of rows of the ring,
scaled and written to each channel. Rows and columns outside the picture's place are filled.
"""

from __future__ import annotations

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import U8, Element
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Ref, Space, Step
from cpuconv.kernels.emit.intrinsics import word
from cpuconv.kernels.images.colors import ColorTile, convert_row
from cpuconv.kernels.images.emitters import (
    PLAIN,
    ROWS,
    Arithmetic,
    ColumnsTile,
    RowsTile,
    TransposeTile,
    fill_row,
    sum_columns,
    sum_rows,
    transpose_rows,
)
from cpuconv.problem.integers import divide
from cpuconv.runtime.kernel import inline, kernel

_FEW_TAPS = 2  # most taps that are unrolled
_call_convert, _call_transpose = convert_row.caller(), transpose_rows.caller()
_call_columns, _call_rows, _call_fill = sum_columns.caller(), sum_rows.caller(), fill_row.caller()


@dataclass(frozen=True)
class Taps:
    """Weighted sums along an axis: output i reads the inputs from `starts[i]` on, by `weights[i]` (int32)."""

    starts: np.ndarray
    weights: np.ndarray

    @property
    def count(self) -> int:
        """Inputs per output."""
        return int(self.weights.shape[1])


@dataclass(frozen=True)
class Source:
    """Pixels of a picture of uint8.

    Attributes
    ----------
    width : int
    row, chroma_row : int
        Bytes from a row to the next one, and for NV12 from a row of U and V to the next one.
    pixel : int
        Bytes of a pixel, its channels adjacent.
    color : ColorTile or None
        Conversion of rows to planes, before the resize.
    """

    width: int
    row: int
    pixel: int
    chroma_row: int = 0
    color: ColorTile | None = None


@dataclass(frozen=True)
class Target:
    """An input of a network: an image of `channels` (source channel, fill value, scale, shift), with byte strides.

    The picture is resized to `rows.starts` x `columns.starts`, `top` and `left` pixels from the corner of the image.
    """

    height: int
    width: int
    element: Element
    channels: tuple[tuple[int, float, float, float], ...]
    y_channel: int
    y_row: int
    y_column: int
    top: int
    left: int


@dataclass(frozen=True)
class ResizeTile:
    """Tile of the driver: what makes its lines; `lanes` are those of its helpers.

    Lines are rows of the picture (""), rows of another colour ("color"), or sums of rows ("sums").
    """

    lines: str
    lanes: int = ROWS


@kernel(
    "convert transpose columns transpose_back rows fill x chroma filled x_width x_pixels x_row chroma_row x_channel "
    "lines line_offsets sum_starts sum_weights sum_taps one starts column_weights column_taps row_starts row_weights "
    "row_taps y y_channel y_row y_column height channels top left inner_height inner_width width pitch sum_bytes slots "
    "slot_bytes numbers fills channel_table space space_step sums_at ring_at converted_at back"
)
def resize_picture(tile, worker, before, part, parts, args):
    """Compute a band of rows of all channels."""
    space = args.space + worker * args.space_step
    sums, ring, converted = space + args.sums_at, space + args.ring_at, space + args.converted_at
    block = 0
    for row in range(args.height * part // parts, args.height * (part + 1) // parts):
        inner = row - args.top
        y = args.y + row * args.y_row
        if inner < 0 or inner >= args.inner_height:
            if args.filled == 0:
                _fill(tile, args, y, args.width)
        else:
            start = word(tile, args.row_starts, inner)
            block = max(block, start // 16)
            while block * 16 < start + args.row_taps:
                slot = block * 16 % args.slots
                _resize_lines(tile, args, block * 16, space, sums, ring + slot * args.slot_bytes, converted)
                block += 1
            if args.left > 0 and args.filled == 0:
                _fill(tile, args, y, args.left)
            right = args.left + args.inner_width
            if right < args.width and args.filled == 0:
                _fill(tile, args, y + right * args.y_column, args.width - right)
            for channel in range(args.channels):
                source = word(tile, args.channel_table, channel)
                _call_rows(
                    args.rows,
                    ring=ring + source * args.pitch * args.sum_bytes,
                    slot=start % args.slots,
                    slots=args.slots,
                    slot_bytes=args.slot_bytes,
                    weights=args.row_weights + 4 * args.row_taps * inner,
                    taps=args.row_taps,
                    numbers=args.numbers + 8 * channel,
                    y=y + channel * args.y_channel + args.left * args.y_column,
                    y_step=args.y_column,
                    count=args.inner_width,
                )


@inline
def _fill(tile, args, y, count):
    for channel in range(args.channels):
        _call_fill(
            args.fill,
            number=args.fills + 4 * channel,
            y=y + channel * args.y_channel,
            y_step=args.y_column,
            count=count,
        )


@inline
def _resize_lines(tile, args, first, columns, sums, target, converted):
    """Resize the 16 lines from number `first` on along their width, to rows of the ring."""
    x, offsets = args.x, args.line_offsets + 8 * first
    if tile.lines != "":
        for line in range(16):
            number = word(tile, args.lines, first + line)
            if tile.lines == "color":
                _call_convert(
                    args.convert,
                    x=args.x + number * args.x_row,
                    chroma=args.chroma + number // 2 * args.chroma_row,
                    y=converted + line * args.x_pixels,
                    plane=args.x_channel // 16,
                    count=args.x_width,
                )
            else:
                _call_rows(
                    args.convert,
                    ring=args.x + word(tile, args.sum_starts, number) * args.x_row,
                    slot=0,
                    slots=args.sum_taps,
                    slot_bytes=args.x_row,
                    weights=args.sum_weights + 4 * args.sum_taps * number,
                    taps=args.sum_taps,
                    numbers=args.one,
                    y=converted + line * args.x_pixels,
                    y_step=1,
                    count=args.x_pixels,
                )
        x, offsets = converted, args.line_offsets
    _call_transpose(
        args.transpose, x=x, offsets=offsets, x_next=1, y=columns, y_step=16, y_next=16, count=args.x_pixels
    )
    _call_columns(
        args.columns,
        x=columns,
        x_channel=args.x_channel,
        starts=args.starts,
        weights=args.column_weights,
        taps=args.column_taps,
        y=sums,
        y_channel=16 * args.sum_bytes * args.pitch,
        count=args.inner_width,
    )
    _call_transpose(
        args.transpose_back,
        x=sums,
        offsets=args.back,
        x_next=16 * args.sum_bytes,
        y=target,
        y_step=args.slot_bytes,
        y_next=args.sum_bytes,
        count=args.slot_bytes // args.sum_bytes,
    )


_PART_LINES = 96  # lines of the picture per part, at least: parts compute the lines around their borders again


def resize_step(
    processor: Processor,
    space: Space,
    arithmetic: Arithmetic,
    source: Source,
    target: Target,
    columns: Taps,
    rows: Taps,
    lines: np.ndarray,
    columns_first: bool = False,
) -> Step:
    """The call that resizes a picture at `x` (its U and V at `chroma`), at least 16 bytes wide, to an image at `y`.

    `filled` is 1 in place of an address if the image has its borders, else 0.

    `lines` has the number of each row of the picture that `rows` reads, in order. `columns_first`: columns are summed
    before rows, to uint8; then `lines` are without gaps, and rows are not converted.
    """
    color, summed, outputs = source.color, Taps(lines[rows.starts], rows.weights), len(rows.starts)
    last = arithmetic
    if columns_first:
        lines, last = np.arange(outputs), PLAIN
        rows = Taps(lines, np.ones((outputs, 1), np.int32))
    planes = 1 if color is None else 1 if color.kind == "GRAY" else 3
    used = 1 + max(channel for channel, *_ in target.channels)
    plane = divide(source.width, ROWS) * ROWS
    pixels = source.width * source.pixel if color is None else planes * plane
    step = source.pixel if color is None else 1  # bytes from a pixel to the next one
    pitch, count = divide(len(columns.starts), ROWS) * ROWS, divide(len(lines), ROWS) * ROWS
    size = arithmetic.sums.bytes
    slots = divide(rows.count + ROWS - 1, ROWS) * ROWS
    padded = np.concatenate([lines, np.repeat(lines[-1:], count - len(lines))]).astype(np.int64)
    numbers = np.array([(scale, shift) for *_, scale, shift in target.channels], np.float32)
    sizes = (ROWS * pixels, ROWS * size * used * pitch, size * slots * used * pitch, ROWS * pixels)
    places = np.cumsum([0, *(divide(each, 64) * 64 for each in sizes)])
    dense = target.y_column == target.element.bytes
    few = lambda taps: taps.count if taps.count <= _FEW_TAPS else 0  # noqa: E731
    across = RowsTile(last, few(rows), target.element, dense)
    convert: int | MicroRef = 0
    if columns_first:
        convert = MicroRef(sum_rows, RowsTile(arithmetic, few(summed), U8))
    elif color is not None:
        convert = MicroRef(convert_row, color)
    args: Args = {
        "convert": convert,
        "transpose": MicroRef(transpose_rows, TransposeTile(U8)),
        "columns": MicroRef(sum_columns, ColumnsTile(arithmetic, used, step, few(columns))),
        "transpose_back": MicroRef(transpose_rows, TransposeTile(arithmetic.sums)),
        "rows": MicroRef(sum_rows, across),
        "fill": MicroRef(fill_row, RowsTile(PLAIN, 1, target.element, dense)),
        "x": Ref("x"),
        "chroma": Ref("chroma"),
        "filled": Ref("filled"),
        "x_width": source.width,
        "x_pixels": pixels,
        "x_row": source.row,
        "chroma_row": source.chroma_row,
        "x_channel": ROWS if color is None else ROWS * plane,
        "lines": padded,
        "line_offsets": np.arange(ROWS, dtype=np.int64) * pixels if convert else padded * source.row,
        "sum_starts": summed.starts.astype(np.int64),
        "sum_weights": summed.weights,
        "sum_taps": summed.count,
        "one": np.array([1.0, 0.0], np.float32),
        "starts": columns.starts * (step * ROWS),
        "column_weights": columns.weights,
        "column_taps": columns.count,
        "row_starts": rows.starts,
        "row_weights": rows.weights,
        "row_taps": rows.count,
        "y": Ref("y"),
        "y_channel": target.y_channel,
        "y_row": target.y_row,
        "y_column": target.y_column,
        "height": target.height,
        "width": target.width,
        "channels": len(target.channels),
        "top": target.top,
        "left": target.left,
        "inner_height": len(rows.starts),
        "inner_width": len(columns.starts),
        "pitch": pitch,
        "sum_bytes": size,
        "slots": slots,
        "slot_bytes": size * used * pitch,
        "numbers": numbers,
        "fills": np.array([fill * scale + shift for _, fill, scale, shift in target.channels], np.float32),
        "channel_table": np.array([channel for channel, *_ in target.channels], np.int64),
        **worker_args("space", space, int(places[-1]), processor.threads),
        "sums_at": int(places[1]),
        "ring_at": int(places[2]),
        "converted_at": int(places[3]),
        "back": np.arange(ROWS, dtype=np.int64) * (ROWS * size),
    }
    moved = pixels * len(lines) + target.element.bytes * target.height * target.width * len(target.channels)
    parts = min(processor.parts(moved), max(1, len(lines) // (_PART_LINES * processor.threads)))
    return Step(resize_picture, ResizeTile("sums" if columns_first else "" if color is None else "color"), args, parts)
