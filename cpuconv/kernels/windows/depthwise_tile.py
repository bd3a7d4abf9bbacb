"""The lane tile: rows × cols outputs of one channel block; each lane sums over the lanes of its own group.

Output lane l is the sum over kernel taps and over i < mix of x[l ^ i]·w[i][tap][l]. With mix = 1 this is a depthwise
convolution; otherwise groups of `mix` adjacent channels in a block, by permutations of the input vector.

The reduction has one of two orders. `weights_in_registers`: the weights of the whole kernel stay in registers, each
input row is read once, and outputs are stored after their last tap: registers have only the outputs of one input row.
Otherwise it loops over kernel rows: registers have the weights of one row and all outputs of the tile.

Elements of any type become float32 as they are loaded. Integer sums are exact below 2^24 (the solver guarantees that),
and become int32 before their epilogue. The padding of such an input is its zero point.

With `words`, lanes hold 32-bit groups of narrow elements instead of channels (`group_words.py`): w[i][tap][part][l] are
the weights of the elements of group i, and sums have the type of the dot-product kind.

With `half_sums` (Arm), a vector has twice as many lanes, and all operands but the bias are float16. Sums start from the
bias and are rounded at each tap: their error is at most (taps + 1)·2⁻¹¹·(|bias| + Σ|x·w|).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.neon import load_operand
from cpuconv.isa.table import current as current_isa
from cpuconv.isa.typed import load_as_float
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.elementwise.halves import Half, store_with_epilogue
from cpuconv.kernels.emit.fold import repeat, repeat_once
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.windows.edges import Columns, Sums, emit_edge_and_inner
from cpuconv.kernels.windows.lane_tile import LaneTile
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.instruction_order import ORDER
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class _Memory:
    """Memory operands of a tile, as LLVM values."""

    x: Any
    xline: Any
    row: Any
    height: Any
    columns: Columns
    zeros: Any
    kernel_rows: Any
    w: Any
    y: Any
    yline: Any
    bias: Any
    residual: Any
    rows: Any
    initial: Any = None  # the value that sums start from


def emit_tile(tile: LaneTile, vec: Vector, memory: _Memory) -> None:
    """y[row][col] = epilogue(sum over taps and i of x·w)."""
    (_weights_in_registers if tile.weights_in_registers else _looped)(tile, vec, memory)


# On x86, the CPU model whose schedule spills least in this straight-line code.
SCHEDULE = {**ORDER, "x86_64": "skylake-avx512"}


@functools.partial(MicroKernel, schedule=SCHEDULE)
def lane_strip(
    tile: LaneTile,
    builder: ir.IRBuilder,
    x: Any,
    xline: Any,
    row: Any,
    height: Any,
    width: Any,
    pad_left: Any,
    zeros: Any,
    kernel_rows: Any,
    w: Any,
    y: Any,
    yline: Any,
    bias: Any,
    residual: Any,
    rows: Any,
    tiles: Any,
    high: Any,
) -> None:
    """Compute the lane tiles of a row: tile i starts at output column i·cols, but not after `high`.

    Parameters
    ----------
    x, xline
        Address of the window of output column 0, padding included, and the byte stride of input rows.
    row, height
        Index of the window's first row in the input, and rows of the input.
    width, pad_left
        Columns of the input, and of the padding before it.
    zeros
        Address of a window row of padding: zeros, or an integer input's zero point.
    kernel_rows
        The kernel's height as a run-time argument, so that the loop over it is not unrolled.
    w
        Address of the weights, [mix][r][s][parts][lanes].
    y, yline, bias
        Address of the output row, the byte stride of output rows, and the address of the bias.
    residual
        Distance in bytes from y to the residual.
    rows
        Output rows of a tile whose `rows` is 0.
    tiles, high
        Tiles of a row, at least one, and the last output column at which one may start.
    """
    vec = Half(builder, 2 * tile.lanes) if tile.half_sums else Vector(builder, tile.lanes)
    zeros, w, bias = (vec.pointer(address) for address in (zeros, w, bias))

    def one(index: Any) -> None:
        column = builder.mul(index, I64(tile.cols))
        column = builder.select(builder.icmp_signed("<", column, high), column, high)
        source = builder.mul(column, I64(tile.stride[1]))
        x_now = vec.pointer(builder.add(x, builder.mul(source, I64(tile.xs or vec.size))))
        y_now = vec.pointer(builder.add(y, builder.mul(column, I64(tile.ys or vec.size))))

        def emit(columns: Columns) -> None:
            reads = x_now, xline, row, height, columns, zeros, kernel_rows, w
            emit_tile(tile, vec, _Memory(*reads, y_now, yline, bias, residual, rows))

        position = builder.sub(source, pad_left)
        emit_edge_and_inner(tile.edges, vec, position, width, tile.wide, zeros, emit, tile.xs)

    loop(builder, 0, tiles, one)


call_lane_strip = lane_strip.caller()


Uses = list[tuple[int, int]]
Taps = list[tuple[int, int, int]]
Weight = Callable[[int], Any]


def _uses(tile: LaneTile, column: int) -> Iterator[tuple[int, int]]:
    """(output column, kernel column) pairs that use a column of the window."""
    for col in range(tile.cols):
        tap, rest = divmod(column - col * tile.stride[1], tile.dilation[1])
        if rest == 0 and 0 <= tap < tile.s:
            yield col, tap


def _row_address(tile: LaneTile, vec: Vector, memory: _Memory, x: Any, row: Any, step: int) -> Any:
    """Address of the window row `step` rows below `x`, which is input row `row`; of zeros outside of the input."""
    builder = vec.builder
    address = vec.offset(x, builder.mul(memory.xline, I64(step))) if step else x
    if not tile.checked:
        return address
    inside = builder.icmp_unsigned("<", builder.add(row, I64(step)), memory.height)
    return builder.select(inside, address, memory.zeros)


def _weights(tile: LaneTile, vec: Vector, w: Any) -> Weight:
    """Weight vector i after `w`, loaded at its first use."""
    loaded: dict[int, Any] = {}

    def weight(i: int) -> Any:
        if i not in loaded:
            place = vec.offset(w, i * vec.size)
            loaded[i] = tile.words.product.load(vec, place, vec.size) if tile.words else vec.load(place, align=vec.size)
        return loaded[i]

    return weight


def _load(tile: LaneTile, vec: Vector, memory: _Memory, start: Any, column: int) -> Any:
    """Load a column of the window row at `start`, as float32 or as groups."""
    place = memory.columns.address(start, column)
    if tile.half_sums:
        return load_operand(vec, place, vec.type, tile.x.bytes)
    if tile.words:
        return tile.words.load(vec, place)
    return load_operand(vec, place, vec.type) if tile.x == F32 else load_as_float(vec, tile.x, place)


def _starts_from_bias(tile: LaneTile) -> bool:
    """Whether sums start from their bias: where no operand is in memory, it is then loaded once and not added again."""
    return not (current_isa().memory_operand or tile.sum.integer or tile.words)


def _initial(tile: LaneTile, vec: Vector, memory: _Memory) -> Any:
    """The value that sums start from."""
    if isinstance(vec, Half):
        return vec.rounded(memory.bias)
    if _starts_from_bias(tile):
        return tile.epilogue.load(vec, memory.bias)["bias"]
    return ir.Constant(tile.words.product.sums_type(vec), None) if tile.words else vec.constant(0.0)


def _store(tile: LaneTile, vec: Vector, memory: _Memory, row: int, col: int, value: Any) -> None:
    builder = vec.builder
    place = builder.add(builder.mul(memory.yline, I64(row)), I64((tile.ys or vec.size) * col))
    target = vec.offset(memory.y, place)
    if isinstance(vec, Half):
        store_with_epilogue(vec, tile.epilogue, value, target, memory.residual)
        return
    total = builder.fptosi(value, vec.int_type) if tile.sum.integer and not tile.words else value
    rows = {"bias": vec.constant(-0.0)} if _starts_from_bias(tile) else tile.epilogue.load(vec, memory.bias)
    tile.epilogue.store(vec, total, rows, target, memory.residual)  # adding -0.0 changes nothing and takes no code


def _weights_in_registers(tile: LaneTile, vec: Vector, memory: _Memory) -> None:
    """Read each input row once, from the top; store an output after its last tap."""
    weight = _weights(tile, vec, memory.w)
    for tap in range(tile.r * tile.s):
        weight(tap)  # load before the loop, through which they stay in registers
    memory = replace(memory, initial=_initial(tile, vec, memory))
    if not tile.rows:
        _any_rows(tile, vec, memory, weight)
        return
    sums: Sums = {}
    for step in range((tile.rows - 1) * tile.stride[0] + tile.reach):
        sums = _add_input_row(tile, vec, memory, step, range(tile.rows), sums, weight)


def _any_rows(tile: LaneTile, vec: Vector, memory: _Memory, weight: Weight) -> None:
    """Compute `memory.rows` output rows in a loop that finishes one per iteration.

    An iteration reads the input rows that complete the first of `rows_in_flight` output rows, and carries the sums of
    the others. A prologue reads earlier rows, and an epilogue finishes the last outputs: no multiplication is wasted.
    """
    builder, stride, rows_in_flight = vec.builder, tile.stride[0], tile.rows_in_flight
    ahead = max(0, tile.reach - stride)
    sums: Sums = {}
    for step in range(ahead):
        sums = _add_input_row(tile, vec, memory, step, range(rows_in_flight), sums, weight)
    keys = list(sums)

    def turn(index: Any, values: list[Any]) -> list[Any]:
        here = replace(memory, x=values[0], row=values[1], y=values[2])
        current = dict(zip(keys, values[3:], strict=True))
        for step in range(ahead, tile.reach):
            current = _add_input_row(tile, vec, here, step, range(rows_in_flight), current, weight)
        below = vec.offset(here.x, builder.mul(here.xline, I64(stride)))
        others = [current[row + 1, col] for row, col in keys]
        return [below, builder.add(here.row, I64(stride)), vec.offset(here.y, here.yline), *others]

    def turns_in_flight(index: Any, values: list[Any]) -> list[Any]:
        for _ in range(rows_in_flight):
            values = turn(index, values)
        return values

    turns = builder.sub(memory.rows, I64(rows_in_flight - 1))
    started = [memory.x, memory.row, memory.y, *sums.values()]
    if current_isa().memory_operand:
        x, row, y, *values = repeat_once(vec, turns, started, turn)
    else:  # copies of sums from one row to the next take as long as FMAs: several turns at a time need few
        whole, rest = builder.sdiv(turns, I64(rows_in_flight)), builder.srem(turns, I64(rows_in_flight))
        x, row, y, *values = repeat(vec, I64(0), rest, repeat(vec, I64(0), whole, started, turns_in_flight), turn)
    here, sums = replace(memory, x=x, row=row, y=y), dict(zip(keys, values, strict=True))
    for step in range(ahead, (rows_in_flight - 2) * stride + tile.reach):
        sums = _add_input_row(tile, vec, here, step, range(rows_in_flight - 1), sums, weight)


def _add_input_row(
    tile: LaneTile, vec: Vector, memory: _Memory, step: int, rows: range, sums: Sums, weight: Weight
) -> Sums:
    """Add input row `step` to the sums of `rows`; store and remove the sums that it completes."""
    steps = [divmod(step - row * tile.stride[0], tile.dilation[0]) for row in rows]
    met = [(row, tap) for row, (tap, rest) in zip(rows, steps, strict=True) if rest == 0 and 0 <= tap < tile.r]
    if not met:
        return sums
    initial, zero, pairs = memory.initial, vec.constant(0.0), not current_isa().memory_operand  # stored in pairs
    waiting: Sums = {}
    columns = {column: uses for column in tile.used_columns if (uses := list(_uses(tile, column)))}
    last = {col: column for column, uses in columns.items() for col, _ in uses}
    ended = [row for row, tap in met if tap == tile.r - 1]
    for row, col in itertools.product(ended, range(tile.cols)):
        if col not in last:  # its window has padding only
            _store(tile, vec, memory, row, col, initial)
    start = _row_address(tile, vec, memory, memory.x, memory.row, step)
    sums = dict.fromkeys(((row, col) for row, tap in met for col in last if not tap), initial) | sums
    for column, uses in columns.items():
        outputs = [(row, col, row_tap * tile.s + tap) for row, row_tap in met for col, tap in uses]
        ready = [(row, col) for row in ended for col, _ in uses if last[col] == column]
        later = pairs or _may_be_missing(tile, memory, column)

        def add(
            sums: Sums,
            factor: Weight,
            column: int = column,
            outputs: Taps = outputs,
            ready: Sequence[tuple[int, int]] = () if later else ready,
        ) -> None:
            value = _load(tile, vec, memory, start, column)
            for row, col, tap in outputs:
                known, by = sums[row, col], factor(tap)
                sums[row, col] = vec.mul(value, by) if known is zero else vec.fma(value, by, known)
                if (row, col) in ready:
                    _store(tile, vec, memory, row, col, sums[row, col])

        sums = _skip_padding(tile, vec, memory, memory.w, column, sums, weight, add)
        ended_sums = {(row, col): sums.pop((row, col)) for row, col in ready}
        if later:
            waiting |= ended_sums
        if len(waiting) > pairs or column == max(columns):
            for (row, col), value in waiting.items():
                _store(tile, vec, memory, row, col, value)
            waiting = {}
    return sums


def _may_be_missing(tile: LaneTile, memory: _Memory, column: int) -> bool:
    """Whether a column is skipped where it is outside of the input."""
    return tile.skips and column in memory.columns.masks


def _skip_padding(
    tile: LaneTile,
    vec: Vector,
    memory: _Memory,
    w: Any,
    column: int,
    sums: Sums,
    weight: Weight,
    add: Callable[[Sums, Weight], None],
) -> Sums:
    """Emit `add`; skip it at run time where the column is outside of the input and padding is zero."""
    if not _may_be_missing(tile, memory, column):
        add(sums, weight)
        return sums
    return memory.columns.skip_outside(column, sums, lambda here: add(here, _weights(tile, vec, w)))


def _looped(tile: LaneTile, vec: Vector, memory: _Memory) -> None:
    """Loop over kernel rows for each permutation of the lanes, then store all outputs."""
    outputs = [(row, col) for row in range(tile.rows) for col in range(tile.cols)]
    sums = dict.fromkeys(outputs, _initial(tile, vec, memory))
    w = memory.w
    for i in range(tile.mix):
        sums, w = _kernel_rows(tile, vec, memory, i, sums, w)
    for row, col in outputs:
        _store(tile, vec, memory, row, col, sums[row, col])


def _kernel_rows(
    tile: LaneTile, vec: Vector, memory: _Memory, i: int, sums: dict[tuple[int, int], Any], w: Any
) -> tuple[dict[tuple[int, int], Any], Any]:
    """Add the taps of all kernel rows of permutation i; return the sums and the address of the next weights."""
    builder = vec.builder
    columns = {column: uses for column in tile.used_columns if (uses := list(_uses(tile, column)))}

    def kernel_row(index: Any, values: list[Any]) -> list[Any]:
        x, row, w, *rest = values
        current, weight = dict(zip(sums, rest, strict=True)), _weights(tile, vec, w)
        starts = [_row_address(tile, vec, memory, x, row, at * tile.stride[0]) for at in range(tile.rows)]
        for column, uses in columns.items():

            def add(sums: Sums, factor: Weight, column: int = column, uses: Uses = uses) -> None:
                for row, start in enumerate(starts):
                    value = _load(tile, vec, memory, start, column)
                    if tile.words:
                        for part, each in enumerate(tile.words.spread(vec, value, i)):
                            for col, tap in uses:
                                by = factor(tap * tile.parts + part)
                                sums[row, col] = tile.words.product.add(vec, each, by, sums[row, col])
                        continue
                    if i:
                        value = vec.shuffle(value, value, [lane ^ i for lane in range(vec.lanes)])
                    for col, tap in uses:
                        sums[row, col] = vec.fma(value, factor(tap), sums[row, col])

            current = _skip_padding(tile, vec, memory, w, column, current, weight, add)
        below = vec.offset(x, builder.mul(memory.xline, I64(tile.dilation[0])))
        next_w = vec.offset(w, tile.s * tile.parts * vec.size)
        return [below, builder.add(row, I64(tile.dilation[0])), next_w, *current.values()]

    started = [memory.x, memory.row, w, *sums.values()]
    _, _, w, *values = repeat_once(vec, memory.kernel_rows, started, kernel_row)
    return dict(zip(sums, values, strict=True)), w
