"""The GEMM tile: v weight vectors × (rows × cols) broadcast pixels, accumulated in registers over the whole reduction.

A scalar of the reduction is 32 bits: one float32, or two or four narrower elements. The dot-product kind of the tile
(`emit/product.py`) multiplies these elements together.

The reduction is a list of segments. Segment i reads `unroll` scalars per pixel at x + table[i], `ks` apart, and the
next `unroll` × v weight vectors, packed in reading order. The last segments may be shorter: those of a partial channel
block, or the remainder of a reduction. Their number is a run-time argument. One body therefore serves:

- pointwise and direct convolution in blocked layouts: a segment is a channel block at one kernel tap;
- planar input: a segment is a kernel row;
- the GEMMs of Winograd and FFT.

In a complex tile the two rows are the real and the imaginary parts of pixels and of sums. Its weights are `v` vectors
of real parts, then `v` vectors of imaginary parts.

A `planar` tile exchanges the operands: lanes are pixels of an output plane, scalars are weights, columns are output
channels. It stores sums to planes without transposing. The few pixels after the last whole vector (`loose`) need no
partial vector: each has a vector of sums over output channels, from the same weights read as a vector.

Where a panel of weights does not stay in L1, the reduction can be cut into parts. The segments of one part are summed
for all tiles before the next part begins. A buffer stores the sums between parts (`resume`, `suspend`).

While it sums a segment, the tile prefetches the pixels of the next one; at the end, those of the first segment of the
tile to the right. On request it prefetches weights (`stream`, `fetch`). Hardware prefetchers follow one stream of cache
lines, but not `cols` streams that change with every segment (numbers in docs/decisions/0003-gemm-tiles.md).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from cpuconv.isa.neon import load_operand
from cpuconv.isa.table import current
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.product import BY_NAME, JOINED_WORDS, Product
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.products import gemm_halves, gemm_maddubs
from cpuconv.kernels.products.element_operands import ElementOperands
from cpuconv.kernels.products.gemm_matrix_2x2 import add_pairs, from_pairs, to_pairs
from cpuconv.kernels.products.gemm_store import store_planes, store_tile
from cpuconv.kernels.products.gemm_tile import LINE, GemmTile, Memory
from cpuconv.kernels.products.tile_operands import State, TileOperands, either, lines_ahead, prefetch
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

# Multiply-adds of a scalar of a complex tile, by its tile row: (row of the sum, part of the weights, subtracted).
_COMPLEX = {0: ((0, 0, False), (1, 1, False)), 1: ((0, 1, True), (1, 0, False))}


def emit_tile(tile: GemmTile, vec: Vector, memory: Memory) -> None:
    """y[j][row][col] = epilogue(sum over segments and scalars of x·w), for j < v.

    A planar tile has one row; its `x` are weights, its `w` vectors of pixels. Its integer sums share the epilogue's
    rows at `bias`.
    """
    builder, segments = vec.builder, memory.segments
    size = 4 * vec.lanes
    addresses = memory.x, memory.w, memory.y, memory.suspended_sums, memory.prefetch_address
    x, w, y, suspended_sums, prefetch_address = (vec.pointer(address) for address in addresses)
    places = [vec.offset(suspended_sums, size * (i + i // tile.used * tile.unused_vectors)) for i in range(tile.sums)]
    product = BY_NAME[tile.product]
    kind = vec.type if tile.in_blocks else product.sums_type(vec)
    initial = [_resumed(vec, place, kind) for place in places] if tile.resume else _initial(tile, vec, memory, kind)
    if product.paired:
        initial = to_pairs(tile, vec, initial)

    row_offsets = [builder.mul(memory.xrow, I64(row)) for row in range(1, tile.rows)]
    tile_step = memory.xrow if tile.planar else I64(4 * tile.cols * tile.xs)
    column_step = I64(4 * tile.xs) if tile.xs else builder.sdiv(memory.xrow, I64(tile.cols))
    columns = [builder.mul(column_step, I64(col)) for col in range(tile.cols)]
    table = builder.inttoptr(memory.table, I64.as_pointer())
    fetch_step = I64(LINE * tile.fetch) if tile.complex else memory.fetch_step
    operands = TileOperands(x, row_offsets, columns, tile_step, fetch_step, table, segments, memory.kstep, memory.valid)
    if product.compact:
        initial += [vec.int_constant(0)] * len(tile.pixels)  # corrections of the sums of each pixel
    if tile.in_blocks:
        operands, initial = replace(operands, sums=gemm_halves.reserve(tile, vec, initial)), []
    state = State(w, prefetch_address, initial)
    if tile.tail:
        whole = builder.sub(segments, memory.tails)
        state = _unless_none(tile, vec, operands, tile.unroll, I64(0), whole, state)
        state = _unless_none(tile, vec, operands, tile.tail, whole, segments, state)
    else:
        state = _sum_range(tile, vec, operands, tile.unroll, I64(0), segments, state)
    sums = from_pairs(tile, vec, state.sums) if product.paired else state.sums
    if tile.in_blocks:
        sums = gemm_halves.load(tile, vec, operands.sums)
    if product.compact:
        sums = gemm_maddubs.completed(tile, vec, sums)
    if tile.suspend:
        for value, place in zip(sums, places, strict=True):
            vec.store(builder.bitcast(value, vec.type), place)
    else:
        (store_planes if tile.planar else store_tile)(tile, vec, memory, sums, y)


def _resumed(vec: Vector, place: Any, kind: Any) -> Any:
    """Load the sums of the previous part."""
    return vec.builder.bitcast(vec.load(place), kind)


def _initial(tile: GemmTile, vec: Vector, memory: Memory, kind: Any) -> list[Any]:
    """Initial values of the sums: integer sums start from their bias, those of planar tiles and others from zero."""
    if tile.planar or not (tile.has_epilogue and tile.epilogue.sum.integer):
        return [ir.Constant(kind, None)] * (tile.sums if tile.in_blocks else tile.accumulators)
    bias, apart = vec.pointer(memory.bias), vec.size * len(tile.epilogue.rows)
    rows = [vec.load_int(vec.offset(bias, apart * j)) for j in range(tile.used)]
    return rows * len(tile.pixels)


def _unless_none(
    tile: GemmTile, vec: Vector, operands: TileOperands, unroll: int, first: Any, last: Any, start: State
) -> State:
    """Run `_sum_range` if there are any segments."""
    builder = vec.builder
    before = builder.block
    with builder.if_then(builder.icmp_signed("<", first, last)):
        end = _sum_range(tile, vec, operands, unroll, first, last, start)
        after = builder.block

    def merged(none: Any, some: Any) -> Any:
        phi = builder.phi(none.type)
        phi.add_incoming(none, before)
        phi.add_incoming(some, after)
        return phi

    sums = [merged(none, some) for none, some in zip(start.sums, end.sums, strict=True)]
    return State(merged(start.w, end.w), merged(start.fetch, end.fetch), sums)


def _sum_range(
    tile: GemmTile, vec: Vector, operands: TileOperands, unroll: int, first: Any, last: Any, start: State
) -> State:
    """Emit `_sum_segments`; in blocks of segments where sums are float16."""

    def block(begin: Any, end: Any, state: State) -> State:
        return _sum_segments(tile, vec, operands, unroll, begin, end, state)

    if tile.in_blocks:
        each = gemm_halves.segments_of_block(vec.builder, unroll)
        return gemm_halves.sum_blocks(tile, vec, operands.sums, each, first, last, start, block)
    return block(first, last, start)


def _sum_segments(
    tile: GemmTile, vec: Vector, operands: TileOperands, unroll: int, first: Any, last: Any, start: State
) -> State:
    """Emit the loop over segments first … last-1, at least one, of `unroll` scalars each."""
    builder = vec.builder
    entry = builder.block
    # On in-order cores a segment's first operands are read in the one before, so that nothing waits for them.
    early = _first_operands(tile, vec, operands, first, start.w) if current().in_order else []
    loop = builder.append_basic_block("segment")
    done = builder.append_basic_block("segments.done")
    builder.branch(loop)
    builder.position_at_end(loop)

    def carried(value: Any) -> Any:
        phi = builder.phi(value.type)
        phi.add_incoming(value, entry)
        return phi

    index = carried(first)
    now = State(carried(start.w), carried(start.fetch), [carried(value) for value in start.sums])
    early = [carried(value) for value in early]
    x_now = early[0] if early else vec.offset(operands.x, builder.load(builder.gep(operands.table, [index])))
    starts = [x_now, *(vec.offset(x_now, offset) for offset in operands.row_offsets)]
    following = builder.add(index, I64(1))
    ahead = lines_ahead(tile, vec, operands, unroll, following)
    segment = tile, vec, operands, unroll, starts, ahead, now
    if not BY_NAME[tile.product].flipped:
        end = _sum_segment(*segment, early[1:])
    elif unroll < JOINED_WORDS:
        end = gemm_maddubs.sum_segment(*segment, 1)
    else:
        joined = gemm_maddubs.is_joined(tile, vec, now.w)
        end = either(
            vec,
            joined,
            lambda: gemm_maddubs.sum_segment(*segment, JOINED_WORDS),
            lambda: gemm_maddubs.sum_segment(*segment, 1),
        )
    if early:  # there is none after the last one: its own
        inside = builder.icmp_signed("<", following, last)
        place, w = builder.select(inside, following, index), builder.select(inside, end.w, now.w)
        for phi, value in zip(early, _first_operands(tile, vec, operands, place, w), strict=True):
            phi.add_incoming(value, builder.block)
    last_block = builder.block
    pairs = zip((index, now.w, now.fetch, *now.sums), (following, end.w, end.fetch, *end.sums), strict=True)
    for phi, value in pairs:
        phi.add_incoming(value, last_block)
    builder.cbranch(builder.icmp_signed("<", following, last), loop, done)
    builder.position_at_end(done)
    return end


def _first_operands(tile: GemmTile, vec: Vector, operands: TileOperands, index: Any, w: Any) -> list[Any]:
    """Address of the first pixel of a segment, and the weights at `w` of its first scalar where they are one vector."""
    builder, product = vec.builder, BY_NAME[tile.product]
    x = vec.opaque(vec.offset(operands.x, builder.load(builder.gep(operands.table, [index]))))  # else added later
    plain = product.cuts == 1 and not (tile.complex or tile.planar or product.paired or product.half_sums)
    return [x, *(product.load(vec, vec.offset(w, j * vec.size), vec.size) for j in range(tile.used) if plain)]


def _sum_segment(
    tile: GemmTile,
    vec: Vector,
    operands: TileOperands,
    unroll: int,
    starts: list[Any],
    ahead: list[Any],
    now: State,
    first_weights: list[Any],
) -> State:
    """Emit a segment of `unroll` scalars, the first of each tile row at `starts`.

    `first_weights`: the weights of its first scalar; empty: they are still to be loaded.
    """
    product, isa = BY_NAME[tile.product], current()
    size = 4 * vec.lanes
    sums, first = list(now.sums), starts
    elements = ElementOperands.of(tile, vec, isa, unroll, starts)
    pairs_ahead: dict[int, list[Any]] = {}
    w_now, fetch_now = now.w, now.fetch
    in_rows = tile.planar and not tile.packed  # vectors of pixels, `kstep` apart
    waiting: list[tuple[int, dict[int, Any]]] = []  # scalars whose weights are loaded
    for k in range(unroll):
        fetch_now = prefetch(tile, vec, operands, k, starts, ahead[k::unroll], now.w, fetch_now)
        if product.paired:
            if k % 2 == 0:
                add_pairs(tile, vec, starts, now.w, k, unroll, sums, pairs_ahead)
            continue
        if product.half_sums:
            groups = [
                vec.offset(vec.offset(starts[row], operands.columns[col]), 4 * k * tile.ks) for row, col in tile.pixels
            ]
            gemm_halves.add_group(tile, vec, elements, groups, now.w, k, sums)
            starts = [vec.opaque(start) for start in starts]
            continue
        if in_rows:
            line = w_now if tile.xs else vec.opaque(w_now)
            w_now = vec.offset(line, operands.kstep)
            weights = {j: _load_pixels(tile, vec, line, j, operands.valid) for j in range(tile.v)}
        else:
            read = [part * tile.v + j for part in range(2 if tile.complex else product.cuts) for j in range(tile.used)]
            places = {at: vec.offset(now.w, (k * tile.vectors + at) * size) for at in read}
            weights = (
                dict(enumerate(first_weights))
                if first_weights and k == 0
                else {at: product.load(vec, place, tile.v * size) for at, place in places.items()}
            )
        waiting.append((k, weights))
        if elements and not (elements.paired and k % 2 == 0 and k + 1 < unroll):
            order = itertools.product(range(tile.used), tile.pixels)
            for j, (row, col) in sorted(order, key=lambda each: each[1]) if elements.paired else order:
                place = (row * tile.cols + col) * tile.used + j
                for at, found in waiting:
                    sums[place] = product.add(vec, elements.scalar(row, col, at), found[j], sums[place])
            waiting.clear()
        for row, col in () if elements else tile.pixels:
            address = vec.offset(vec.offset(starts[row], operands.columns[col]), 4 * k * tile.ks)
            for target, part, scalar, negative in _factors(tile, product, vec, address, row):
                for j in range(tile.used):
                    place = (target * tile.cols + col) * tile.used + j
                    weight = weights[part * tile.v + j]
                    sums[place] = product.add(vec, scalar, vec.negative(weight) if negative else weight, sums[place])
        if tile.loose:
            channels = vec.load_masked(vec.offset(starts[0], 4 * k * tile.ks), vec.first_lanes_mask(tile.cols))
            for i in range(tile.loose):
                pixel = vec.broadcast(vec.offset(line, size * tile.v + 4 * i))
                sums[tile.v * tile.cols + i] = vec.fma(pixel, channels, sums[tile.v * tile.cols + i])
        if tile.ks == 0:
            starts = [vec.offset(start, operands.kstep) for start in starts]
        elif tile.xs <= (unroll - 1) * tile.ks or not isa.memory_operand:  # else scalars take registers; sums spill
            starts = [vec.opaque(start) for start in starts]
    if product.compact:
        pixels = [vec.offset(first[row], operands.columns[col]) for row, col in tile.pixels]
        gemm_maddubs.add_lacking(tile, vec, pixels, unroll, sums)
    w_end = w_now if in_rows else vec.offset(now.w, unroll * tile.vectors * size)
    return State(w_end, fetch_now, sums)


def _factors(tile: GemmTile, product: Product, vec: Vector, address: Any, row: int) -> list[tuple[int, int, Any, bool]]:
    """Each scalar of a pixel as (tile row of the sums, part of the weights, scalar, subtracted)."""
    if tile.complex:
        word = product.word(vec, address, product.flips(tile.x))
        return [(target, part, word, negative) for target, part, negative in _COMPLEX[row]]
    return [(row, part, each, False) for part, each in enumerate(product.broadcast(vec, address, tile.x))]


def _load_pixels(tile: GemmTile, vec: Vector, row: Any, j: int, valid: Any) -> Any:
    """Load vector j of a row of pixels; reads only lanes that will be stored."""
    masked = tile.masked and j == tile.v - 1
    if current().in_order and not masked:
        return load_operand(vec, vec.offset(row, vec.size * j), vec.type)
    mask = first_lanes(vec, valid) if masked else vec.first_lanes_mask(vec.lanes)
    return vec.load_masked(vec.offset(row, 4 * vec.lanes * j), mask)


@MicroKernel
def gemm_strip(
    tile: GemmTile,
    builder: ir.IRBuilder,
    x: Any,
    xrow: Any,
    table: Any,
    segments: Any,
    kstep: Any,
    w: Any,
    y: Any,
    yrow: Any,
    yvec: Any,
    bias: Any,
    residual: Any,
    suspended_sums: Any,
    prefetch_address: Any,
    turn: Any,
    fetch_step: Any,
    shares: Any,
    tails: Any,
    valid: Any,
    first: Any,
    last: Any,
    width: Any,
) -> None:
    """`emit_tile` for tiles first … last-1 of a row of `width` pixels; the row's last tile overlaps the previous one.
    A row of planar tiles has `width` output channels. The weights of its last tile are packed like all others; only its
    outputs overlap.

    Parameters
    ----------
    x, y
        Addresses of pixel 0.
    suspended_sums
        Address of the sums of tile 0.
    prefetch_address, turn
        Address of the weights that are read next, as many as these, and the number of tiles before tile 0. For planar
        tiles: the pixels of the next panel.
    fetch_step, shares
        Bytes between the prefetch addresses of two scalars, and the number of tiles that together fetch all. For planar
        tiles, which fetch one cache line of each row: the byte stride of rows. Complex tiles, whose sums would
        otherwise spill, fetch consecutive cache lines.
    first, last
        Range of tiles; first < last.
    width
        Pixels of the row, at least `cols`.

    The other parameters are those of `emit_tile`.
    """
    vec = Vector(builder, tile.lanes)
    scalars = builder.mul(segments, I64(tile.unroll))
    if tile.tail:
        scalars = builder.sub(scalars, builder.mul(tails, I64(tile.unroll - tile.tail)))
    step = I64(LINE * tile.fetch) if tile.complex else fetch_step
    share = I64(LINE * tile.fetch) if tile.planar else builder.mul(scalars, step)
    entry = builder.block
    loop = builder.append_basic_block("tile")
    done = builder.append_basic_block("tiles.done")
    limit = builder.sub(width, I64(tile.cols))
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    index.add_incoming(first, entry)
    start = builder.mul(index, I64(tile.cols))
    start = builder.select(builder.icmp_signed("<", start, limit), start, limit)
    x_now = builder.add(x, builder.mul(index, xrow) if tile.planar else builder.mul(start, I64(4 * tile.xs)))
    y_now = builder.add(y, builder.mul(start, yrow if tile.planar else I64(4 * tile.ys)))
    if tile.planar and not tile.epilogue.sum.integer:
        bias = builder.add(bias, builder.mul(start, I64(4)))
    parked_now = builder.add(suspended_sums, builder.mul(index, I64(4 * tile.lanes * tile.suspended_vectors)))
    fetch = prefetch_address
    if tile.fetch:
        fetch = builder.add(prefetch_address, builder.mul(builder.urem(builder.add(index, turn), shares), share))
    reads = x_now, xrow, table, segments, tails, kstep, w
    emit_tile(tile, vec, Memory(*reads, y_now, yrow, yvec, bias, residual, parked_now, fetch, fetch_step, valid))
    following = builder.add(index, I64(1))
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, last), loop, done)
    builder.position_at_end(done)


call_gemm_strip = gemm_strip.caller()
