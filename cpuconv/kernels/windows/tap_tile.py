"""The tap tile: rows × cols outputs of an int8 depthwise convolution, by dot products of four or two taps.

Rows of the input are interleaved to 32-bit groups: one channel per group, one row per byte (`packing/tap_weights.py`),
or per 16 bits for int16 multiplication. A group serves all kernel columns, and all output rows of the tile.

For 64 channels of a pixel with AVX512-VNNI, 3x3, stride 1, two output rows, VBMI: a column of the input takes 8 loads
of 32 bytes and 8 shuffles (bytes of two rows interleaved, then pairs of these), and serves two outputs. An output takes
12 `vpdpbusd`, 4 shuffles and, for the epilogue, 16 int32 conversions, multiplications and clamps and 12 operations on
int16 and bytes. With loads, stores and copies of biases that is 59 instructions (read from the machine code). Widened
int8 would take 36 FMAs, 10 conversions of the input and 44 instructions for the epilogue.

For 16 channels with AVX2, an output of the same tile takes 12 `vpmaddwd`, 12 additions, 4 shuffles and 17 instructions
for the epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import S32, U8, Element
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.elementwise.requantize import RequantizePairs
from cpuconv.kernels.emit.interleave import zipped
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.multiplying import hidden
from cpuconv.kernels.emit.product import BY_NAME, Product
from cpuconv.kernels.packing.tap_weights import Taps
from cpuconv.kernels.windows.edges import Columns, Edges, emit_edge_and_inner
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

I8 = ir.IntType(8)
PAIR = 2  # rows per group where int8 is widened to 16 bits
_SIGNS = -0x7F7F7F80  # 0x80 in each byte


@dataclass(frozen=True)
class TapTile:
    """Parameters of a tap tile; sizes in pixels.

    Attributes
    ----------
    vectors, present : int
        Vectors of sums per piece of channels, an even number, and how many of them have channels.
    cols, s, stride, dilation : int
        Parameters of an output row.
    edges : Edges
        Columns of the input window that may be padding.
    checked : bool
        Rows of the window may be outside of the input.
    product : str
        Name of the dot-product kind in `product.TABLE`.
    later : int
        Delay of an output's epilogue, in columns of the window: its last multiplications have latency.
    """

    lanes: int
    vectors: int
    present: int
    taps: Taps
    cols: int
    s: int
    stride: int
    dilation: int
    edges: Edges
    checked: bool
    product: str
    later: int
    x: Element
    y: Element
    residual: bool = False
    activation: tuple[Any, ...] | None = None

    @property
    def wide(self) -> int:
        """Columns of the input window."""
        return (self.cols - 1) * self.stride + (self.s - 1) * self.dilation + 1

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of sums."""
        return Epilogue(S32, self.y, self.residual, self.activation)

    def uses(self, column: int) -> Iterator[tuple[int, int]]:
        """(output column, kernel column) pairs that use a column of the window."""
        for col in range(self.cols):
            tap, rest = divmod(column - col * self.stride, self.dilation)
            if rest == 0 and 0 <= tap < self.s:
                yield col, tap


@dataclass(frozen=True)
class _Memory:
    """Memory operands of a tile, as LLVM values."""

    x: Any
    xline: Any
    row: Any
    height: Any
    columns: Columns
    zeros: Any
    w: Any
    y: Any
    yline: Any
    yvector: Any
    bias: Any
    residual: Any


@MicroKernel
def tap_strip(
    tile: TapTile,
    builder: ir.IRBuilder,
    x: Any,
    xline: Any,
    top: Any,
    height: Any,
    width: Any,
    pad_left: Any,
    zeros: Any,
    w: Any,
    y: Any,
    yline: Any,
    yvector: Any,
    bias: Any,
    residual: Any,
    first_row: Any,
    last_row: Any,
    bottom: Any,
    first: Any,
    last: Any,
    high: Any,
) -> None:
    """Compute tap tiles first … last-1 of the rows of tiles first_row … last_row-1.

    Tile i starts at output column i·cols, but not after `high`; row i of tiles at output row i·rows, but not after
    `bottom`.

    Parameters
    ----------
    x, xline
        Address of the window of output (0, 0), padding included, and the byte stride of input rows.
    top, height
        Index of that window's first row in the input, and rows of the input.
    width, pad_left
        Columns of the input, and of the padding before it.
    zeros
        Address of a window row filled with the input's zero point.
    w
        Address of the weights of a piece, packed by `TapWords`.
    y, yline, yvector
        Address of the output, and byte strides of its rows, and of its vectors where outputs are not 8-bit.
    bias
        Address of the epilogue's rows.
    residual
        Distance in bytes from y to the residual.
    first_row, last_row, bottom, first, last, high
        As above; no range is empty.
    """
    vec = Vector(builder, tile.lanes)
    zeros, w, bias = (vec.pointer(address) for address in (zeros, w, bias))
    bytes_ = RequantizePairs(vec, tile.epilogue, bias, tile.vectors) if tile.epilogue.requantizes else None
    signs = _signs(vec)

    def row_of_tiles(number: Any) -> None:
        row = builder.mul(builder.add(first_row, number), I64(tile.taps.rows))
        row = builder.select(builder.icmp_signed("<", row, bottom), row, bottom)
        source = builder.mul(row, I64(tile.taps.stride))
        x_row, y_row = builder.add(x, builder.mul(source, xline)), builder.add(y, builder.mul(row, yline))

        def one(index: Any) -> None:
            column = builder.mul(builder.add(first, index), I64(tile.cols))
            column = builder.select(builder.icmp_signed("<", column, high), column, high)
            from_ = builder.mul(column, I64(tile.stride))
            x_now = vec.pointer(builder.add(x_row, builder.mul(from_, I64(vec.size))))
            y_now = vec.pointer(builder.add(y_row, builder.mul(column, I64(vec.size))))

            def emit(columns: Columns) -> None:
                reads = x_now, xline, builder.add(top, source), height, columns, zeros, w
                memory = _Memory(*reads, y_now, yline, yvector, bias, residual)
                _Emission(tile, vec, memory, bytes_, signs).run()

            emit_edge_and_inner(tile.edges, vec, builder.sub(from_, pad_left), width, tile.wide, zeros, emit)

        loop(builder, 0, builder.sub(last, first), one)

    loop(builder, 0, builder.sub(last_row, first_row), row_of_tiles)


def _signs(vec: Vector) -> Any:
    """0x80 in each byte, hidden from the optimiser: LLVM 22 does not terminate on a constant here."""
    kind = ir.FunctionType(I32, [I32])
    return vec.splat(vec.builder.asm(kind, "", "=r,0", [I32(_SIGNS)], side_effect=False))


call_tap_strip = tap_strip.caller()


class _Emission:
    """Emitter of the code of one tile."""

    def __init__(self, tile: TapTile, vec: Vector, memory: _Memory, bytes_: RequantizePairs | None, signs: Any) -> None:
        self.tile, self.vec, self.memory, self.bytes_, self.signs = tile, vec, memory, bytes_, signs
        self.product: Product = BY_NAME[tile.product]
        self.weights = memory.w
        self.widened = tile.taps.each == PAIR and vec.builder.module.triple.startswith("x86")
        self.sums: dict[tuple[int, int, int], Any] = {}  # by (row, col, vector)

    def run(self) -> None:
        """Emit columns of the window from the left; an output is stored after its last one."""
        tile = self.tile
        finished: list[list[int]] = []
        lines = [[self._line(step) for step in word] for word in tile.taps.words]
        for column in range(tile.wide):
            uses = list(tile.uses(column))
            if tile.present and uses:
                for word, starts in enumerate(lines):
                    self._multiply(word, self._words(starts, column), uses)
            finished.append([col for col, tap in uses if tap == tile.s - 1])
            if len(finished) > tile.later:
                self._store_columns(finished.pop(0))
        for columns in finished:
            self._store_columns(columns)

    def _store_columns(self, columns: list[int]) -> None:
        for col in columns:
            for row in range(self.tile.taps.rows):
                self._store(row, col)

    def _line(self, step: int) -> Any:
        """Address of the window row `step` rows below the first; of padding where that row is outside of the input."""
        vec, memory, builder = self.vec, self.memory, self.vec.builder
        address = vec.offset(memory.x, builder.mul(memory.xline, I64(step))) if step else memory.x
        if not self.tile.checked:
            return address
        inside = builder.icmp_unsigned("<", builder.add(memory.row, I64(step)), memory.height)
        return builder.select(inside, address, memory.zeros)

    def _words(self, starts: list[Any], column: int) -> list[Any]:
        """Groups of a column, with the sign that the dot-product kind takes, one value per vector of channels."""
        rows = [self._load(start, column) for start in starts]
        rows += [rows[-1]] * (self.tile.taps.each - len(rows))  # bytes without a tap
        if len(rows) == PAIR:
            return [self._pairs(rows[0], rows[1], number) for number in range(self.tile.present)]
        made: list[Any] = []
        for first in range(0, self.tile.vectors, 2):
            if first < self.tile.present:
                pairs = [self._interleaved(rows[at], rows[at + 1], first) for at in (0, 2)]
                made += zipped(self.vec, 2, *pairs)
        words = [self.vec.builder.bitcast(word, self.vec.int_type) for word in made[: self.tile.present]]
        if not self.product.flips(self.tile.x):
            return words
        return [self.vec.builder.xor(word, self.signs) for word in words]

    def _load(self, start: Any, column: int) -> Any:
        """Load the bytes of a pixel's piece."""
        tile, builder = self.tile, self.vec.builder
        kind = ir.VectorType(I8, tile.vectors * tile.lanes)
        place = self.memory.columns.address(start, column)
        value = builder.load(builder.bitcast(place, kind.as_pointer()))
        value.align = 1
        return value

    def _pairs(self, a: Any, b: Any, number: int) -> Any:
        """Interleave bytes of a and b, of the channels of vector `number`, and widen them to int16."""
        vec, count = self.vec, a.type.count
        order = [side * count + number * vec.lanes + i for i in range(vec.lanes) for side in (0, 1)]
        extend = vec.builder.zext if self.tile.x == U8 else vec.builder.sext
        wide = extend(vec.shuffle(a, b, order), ir.VectorType(ir.IntType(16), 2 * vec.lanes))
        return vec.builder.bitcast(wide, vec.int_type)

    def _interleaved(self, a: Any, b: Any, first: int) -> Any:
        """Interleave bytes of a and b: every 16 bytes have four channels of vector `first` and four of the next one."""
        lanes, count = self.tile.lanes, a.type.count
        quads = [lanes * number + quad for quad in range(0, lanes, 4) for number in (first, first + 1)]
        order = [side * count + quad + i for quad in quads for i in range(4) for side in (0, 1)]
        return self.vec.shuffle(a, b, order)

    def _multiply(self, word: int, values: list[Any], uses: list[tuple[int, int]]) -> None:
        tile, vec = self.tile, self.vec
        if self.widened:  # else LLVM adds several dot products first and keeps weights in registers; both spill
            self.weights = vec.opaque(self.weights)
        for number, value in enumerate(values):
            for part, each in enumerate(self.product.split(vec, value, tile.x)):
                for col, tap in uses:
                    for row in range(tile.taps.rows):
                        pattern = tile.taps.pattern(row, word)
                        if pattern is None:
                            continue
                        key = row, col, number
                        if key not in self.sums:
                            self.sums[key] = self._start(number)
                        weight = self._weight(tap, tile.taps.patterns.index(pattern), part, number)
                        total = self.product.add(vec, each, weight, self.sums[key])
                        self.sums[key] = hidden(vec, total) if self.widened else total

    def _start(self, number: int) -> Any:
        vec = self.vec
        return vec.load_int(vec.offset(self.memory.bias, vec.size * len(self.tile.epilogue.rows) * number))

    def _weight(self, tap: int, pattern: int, part: int, number: int) -> Any:
        tile = self.tile
        at = ((tap * len(tile.taps.patterns) + pattern) * self.product.parts + part) * tile.vectors + number
        size = self.vec.size
        return self.product.load(self.vec, self.vec.offset(self.weights, at * size), tile.vectors * size)

    def _store(self, row: int, col: int) -> None:
        tile, vec, builder, memory = self.tile, self.vec, self.vec.builder, self.memory
        place = builder.add(builder.mul(memory.yline, I64(row)), I64(vec.size * col))
        target = vec.offset(memory.y, place)
        totals = [self.sums.get((row, col, number)) for number in range(tile.vectors)]
        if self.bytes_ is not None:
            self.bytes_.store([totals], [target], memory.residual)
            return
        for number in range(tile.present):
            at = vec.offset(target, builder.mul(memory.yvector, I64(number)))
            rows = tile.epilogue.load(vec, memory.bias, number, started=True)
            tile.epilogue.store(vec, totals[number], rows, at, memory.residual)
