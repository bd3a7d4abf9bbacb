"""Sums of float16 in GEMM tiles: short blocks of the reduction in float16, and float32 across the blocks.

Arm's `fmla` on eight halves multiplies twice as many elements as that on four floats. Its sums are rounded to float16
at each term. After `BLOCK` terms they are therefore added to float32 sums in memory, which take no registers of the
loop, and start from zero again. An output's error is at most BLOCK · 2⁻¹¹ · Σ|x·w|, and 2⁻²⁵ for each term where sums
are subnormal; a sum of a block above 65504 becomes infinite.

Sums of a reduction of one block stay float16: their bias is added in float16.

A vector of float16 sums belongs to two adjacent vectors of output channels, so tiles have an even number of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from cpuconv.isa.table import Isa
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.emit.multiplying import half_vector
from cpuconv.kernels.emit.product import BLOCK, BY_NAME, Product
from cpuconv.kernels.products.closed.closed_tile import ClosedTile
from cpuconv.kernels.products.element_operands import ElementOperands
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.products.tile_operands import State
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.symbolic.sizes import now

_HALVES = 2  # elements of a 32-bit group, and vectors of output channels of one vector of sums


def is_one_block(isa: Isa, product: Product, scalars: int) -> bool:
    """Whether a reduction of 32-bit groups is a block, so that its sums stay float16."""
    return product.half_sums and not isa.closed and now(scalars) * _HALVES <= BLOCK


def reserve(tile: GemmTile | ClosedTile, vec: Vector, sums: list[Any]) -> Any:
    """Reserve memory for the float32 sums of a tile on the stack, and store their initial values."""
    with vec.builder.goto_entry_block():
        memory = vec.builder.alloca(vec.type, tile.sums)
    memory.align = vec.size
    for i, value in enumerate(sums):
        vec.builder.store(value, _place(vec, memory, i))
    return memory


def load(tile: GemmTile | ClosedTile, vec: Vector, memory: Any) -> list[Any]:
    """Load the float32 sums of a tile."""
    return [vec.builder.load(_place(vec, memory, i)) for i in range(tile.sums)]


def segments_of_block(builder: ir.IRBuilder, scalars: Any) -> Any:
    """Number of segments of `scalars` 32-bit groups in a block, at least one."""
    if isinstance(scalars, int):
        return I64(max(1, BLOCK // (_HALVES * scalars)))
    found = builder.udiv(I64(BLOCK // _HALVES), scalars)
    return builder.select(builder.icmp_unsigned(">", found, I64(1)), found, I64(1))


def sum_blocks(
    tile: GemmTile | ClosedTile,
    vec: Vector,
    memory: Any,
    each: Any,
    first: Any,
    last: Any,
    start: State,
    segments: Callable[..., State],
) -> State:
    """Emit the loop over blocks of segments first … last-1, at least one; `segments` emits the loop over a block.

    `each`: segments of a block, from `segments_of_block`. The float32 sums are in `memory`; the states have none.
    """
    builder, entry = vec.builder, vec.builder.block
    loop = builder.append_basic_block("halves")
    builder.branch(loop)
    builder.position_at_end(loop)
    begin, w, fetch = (builder.phi(value.type) for value in (first, start.w, start.fetch))
    for phi, value in ((begin, first), (w, start.w), (fetch, start.fetch)):
        phi.add_incoming(value, entry)
    end = builder.add(begin, each)
    end = builder.select(builder.icmp_signed("<", end, last), end, last)
    zeros = [ir.Constant(half_vector(vec), None)] * tile.accumulators
    state = segments(begin, end, State(w, fetch, zeros))
    _add_block(tile, vec, memory, state.sums)
    for phi, value in ((begin, end), (w, state.w), (fetch, state.fetch)):
        phi.add_incoming(value, builder.block)
    done = builder.append_basic_block("halves.done")
    builder.cbranch(builder.icmp_signed("<", end, last), loop, done)
    builder.position_at_end(done)
    return State(state.w, state.fetch, [])


def add_group(
    tile: GemmTile | ClosedTile,
    vec: Vector,
    elements: ElementOperands | None,
    groups: list[Any],
    w: Any,
    k: int,
    sums: list[Any],
) -> None:
    """Add the products of group k of each pixel to its float16 sums; `groups`: the addresses of these groups."""
    product, count = BY_NAME[tile.product], divide(tile.used, _HALVES)
    words = [] if elements else [product.word(vec, address, False) for address in groups]
    kind, row = half_vector(vec), tile.v * vec.size // _HALVES
    for part, j in itertools.product(range(_HALVES), range(count)):
        weight = product.load(vec, vec.offset(w, k * tile.v * vec.size + part * row + j * vec.size))
        for at, pixel in enumerate(tile.pixels):
            vector, word = elements.vector(*pixel, k) if elements else (words[at], 0)
            halves = vec.builder.bitcast(vector, kind)
            factor = vec.shuffle(halves, halves, [_HALVES * word + part] * kind.count)
            sums[at * count + j] = product.add(vec, factor, weight, sums[at * count + j])


def _add_block(tile: GemmTile | ClosedTile, vec: Vector, memory: Any, sums: list[Any]) -> None:
    """Add float16 sums of a block to the float32 sums in memory."""
    builder, count = vec.builder, divide(tile.used, _HALVES)
    for at, j in itertools.product(range(len(tile.pixels)), range(tile.used)):
        halves = sums[at * count + j // _HALVES]
        first = j % _HALVES * vec.lanes
        part = vec.shuffle(halves, halves, range(first, first + vec.lanes))
        place = _place(vec, memory, at * tile.used + j)
        builder.store(vec.add(builder.load(place), builder.fpext(part, vec.type)), place)


def _place(vec: Vector, memory: Any, i: int) -> Any:
    return vec.builder.gep(memory, [I32(i)])
