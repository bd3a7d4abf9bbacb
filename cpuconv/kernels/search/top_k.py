"""TopK: the first elements of contiguous lines by value, in order.

A line becomes keys (`order`), and groups of keys their maxima. Where k maxima reach a bound, k elements do: the
greatest such bound, found bit by bit, lets few more than k elements pass in one scan. Their indices are sorted by a
radix sort, which is stable, so that equal elements stay in the order of their indices. If more pass than fit, as of a
line whose large elements are next to each other, they are sorted early and the k-th becomes the new bound.

Source: bounds from maxima of groups as in Zhang et al., "Parallel Top-K Algorithms on GPU" (2023), and Dr. Top-k
(Gaihre et al., 2021); radix sort from the lowest digit: Knuth, TAOCP 3, 5.2.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.partition import parts_if_shared
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.intrinsics import copy_element, word
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.search.extremes import are_adjacent, extremes_steps
from cpuconv.kernels.search.extremes import seconds as extremes_seconds
from cpuconv.kernels.search.order import Order
from cpuconv.kernels.search.packed_lines import ending_in, packed_input, packed_output
from cpuconv.kernels.search.words import bits_at_least, count_bits, key_at, lowest_bit, set_word
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import is_symbolic, least, now

_GROUPS = 4  # groups of a line over elements to find
_SPARE = 256  # elements that may pass beyond twice those to find, before they are sorted
_INSERTED = 48  # elements up to which they are sorted by insertion
_BINS = 256  # of a digit
_LINE_CYCLES, _VECTOR_CYCLES, _FOUND_CYCLES = 400.0, 8.0, 40.0  # per line, per vector of it, per element found


@dataclass(frozen=True)
class KeysTile:
    """Tile of `order_line`."""

    lanes: int
    order: Order


@MicroKernel
def order_line(
    tile: KeysTile, builder: ir.IRBuilder, x: Any, size: Any, keys: Any, maxima: Any, groups: Any, depth: Any
) -> None:
    """Write the keys of `size` elements, and the maxima of each of `groups` groups of `depth` vectors of keys.

    The line ends with a partial vector, possibly of no element, whose other keys are the smallest.
    """
    vec: Any = Vector(builder, tile.lanes)
    order, lanes = tile.order, I64(tile.lanes)
    vector = ir.VectorType(order.word, tile.lanes)
    whole, x = builder.udiv(size, lanes), vec.pointer(x)
    keys, maxima = (builder.inttoptr(place, vector.as_pointer()) for place in (keys, maxima))
    element, end = I64(order.bits // 8 * tile.lanes), order.constant(vec, order.last)

    def stored(index: Any, top: Any, mask: Any = None) -> Any:
        key = order.load(vec, vec.offset(x, builder.mul(index, element)), mask)
        builder.store(key, builder.gep(keys, [index])).align = order.bytes
        return builder.select(builder.icmp_signed(">", key, top), key, top)

    def group(index: Any, values: list[Any]) -> list[Any]:
        first = builder.mul(index, depth)
        last = builder.add(first, depth)
        last = builder.select(builder.icmp_signed("<", last, whole), last, whole)
        (top,) = repeat(vec, first, last, [end], lambda at, tops: [stored(at, tops[0])])
        builder.store(top, builder.gep(maxima, [index])).align = order.bytes
        return values

    repeat(vec, I64(0), groups, [], group)
    final = builder.gep(maxima, [builder.sub(groups, I64(1))])
    top = builder.load(final)
    top.align = order.bytes
    top = stored(whole, top, first_lanes(vec, builder.sub(size, builder.mul(whole, lanes))))
    builder.store(top, final).align = order.bytes


call_order = order_line.caller()


@dataclass(frozen=True)
class TopKTile:
    """Tile of the driver: bytes of elements, and of their keys."""

    lanes: int
    bytes: int
    key_bytes: int

    @property
    def first(self) -> int:
        """Greatest key."""
        return (1 << 8 * self.bytes - 1) - 1


@inline
def _bound(tile, maxima, groups, k):
    """The greatest bound that at least `k` of the maxima reach."""
    bound = -tile.first - 1
    for at in range(8 * tile.bytes):
        higher = bound + (1 << (8 * tile.bytes - 1 - at))
        count = 0
        for group in range(groups):
            bits = bits_at_least(tile, maxima + group * tile.lanes * tile.key_bytes, higher)
            count += count_bits(tile, bits)
        bound = higher if count >= k else bound
    return bound


@inline
def _insert(tile, keys, entries, count):
    """Sort indices in place, greatest keys first; equal keys keep their order."""
    for at in range(1, count):
        index = word(tile, entries, at)
        key = key_at(tile, keys, index)
        to = at
        while to > 0 and key_at(tile, keys, word(tile, entries, to - 1)) < key:
            set_word(tile, entries, to, word(tile, entries, to - 1))
            to -= 1
        set_word(tile, entries, to, index)


@inline
def sort_indices(tile, keys, entries, other, count, bins):
    """Sort indices, greatest keys first; equal keys keep their order. Return the memory with the result: either."""
    if count <= _INSERTED:
        _insert(tile, keys, entries, count)
        return entries
    source = entries
    target = other
    for digit in range(tile.bytes):
        shift = 8 * digit
        for at in range(_BINS):
            set_word(tile, bins, at, 0)
        for at in range(count):
            bin = (tile.first - key_at(tile, keys, word(tile, source, at))) >> shift & 255
            set_word(tile, bins, bin, word(tile, bins, bin) + 1)
        bin = (tile.first - key_at(tile, keys, word(tile, source, 0))) >> shift & 255
        if word(tile, bins, bin) != count:  # not all in one bin
            total = 0
            for at in range(_BINS):
                size = word(tile, bins, at)
                set_word(tile, bins, at, total)
                total += size
            for at in range(count):
                index = word(tile, source, at)
                bin = (tile.first - key_at(tile, keys, index)) >> shift & 255
                place = word(tile, bins, bin)
                set_word(tile, bins, bin, place + 1)
                set_word(tile, target, place, index)
            target = source
            source = entries + other - source
    return source


@inline
def find_first(tile, keys, vectors, maxima, groups, k, entries, other, capacity, bins):
    """Find the indices of the `k` greatest keys of a line, in order; return their address: `entries` or `other`."""
    lowest = _bound(tile, maxima, groups, k)
    bound = lowest
    found = entries
    count = 0
    for vector in range(vectors):
        bits = bits_at_least(tile, keys + vector * tile.lanes * tile.key_bytes, bound)
        while bits != 0:
            set_word(tile, found, count, vector * tile.lanes + lowest_bit(tile, bits))
            bits = bits & (bits - 1)
            count += 1
        if count >= k and (bound == lowest or count > capacity):
            if count > capacity:
                found = sort_indices(tile, keys, found, entries + other - found, count, bins)
                count = k
                lowest = key_at(tile, keys, word(tile, found, k - 1))
            if lowest == tile.first:
                break
            bound = lowest + 1  # later elements that are equal come after the first k
    return sort_indices(tile, keys, found, entries + other - found, count, bins)


@kernel(
    "order_line x values indices lines x_line size k vectors groups depth capacity space space_step keys_at maxima_at "
    "entries_at other_at bins_at"
)
def top_k(tile, worker, before, part, parts, args):
    """values[line], indices[line] = the first k elements of the line, and their indices; units are lines."""
    memory = args.space + worker * args.space_step
    keys = memory + args.keys_at
    maxima = memory + args.maxima_at
    for line in range(args.lines * part // parts, args.lines * (part + 1) // parts):
        x = args.x + line * args.x_line
        call_order(args.order_line, x=x, size=args.size, keys=keys, maxima=maxima, groups=args.groups, depth=args.depth)
        found = find_first(
            tile, keys, args.vectors, maxima, args.groups, args.k, memory + args.entries_at, memory + args.other_at,
            args.capacity, memory + args.bins_at,
        )  # fmt: skip
        first = line * args.k
        for at in range(args.k):
            index = word(tile, found, at)
            if args.values != 0:
                copy_element(tile, x + index * tile.bytes, args.values + (first + at) * tile.bytes)
            if args.indices != 0:
                set_word(tile, args.indices, first + at, index)


def line_memory(lanes: int, size: int, k: int, key_bytes: int) -> tuple[Args, int]:
    """Arguments of `find_first` for a line of `size` elements, with places in a worker's memory, and its size."""
    vectors = size // lanes + 1
    depth = divide(vectors, least(vectors, divide(_GROUPS * k, lanes)))
    groups = divide(vectors, depth)
    capacity = 2 * k + _SPARE
    args: Args = {"vectors": vectors, "groups": groups, "depth": depth, "capacity": capacity}
    entries, taken = 8 * (capacity + lanes), 0
    memory = {
        "keys": vectors * lanes * key_bytes,
        "maxima": groups * lanes * key_bytes,
        "entries": entries,
        "other": entries,
        "bins": 8 * _BINS,
    }
    for name, size in memory.items():
        args[f"{name}_at"] = taken
        taken += divide(size, 64) * 64
    return args, taken


def seconds(processor: Processor, shape: Sequence[int], axis: int, k: int) -> float:
    """Modelled time, in seconds."""
    inner, size = math.prod(shape[axis + 1 :]), shape[axis]
    lines = math.prod(shape) // size
    adjacent = are_adjacent(processor, k, inner)
    if _is_one(k) or adjacent:
        return extremes_seconds(processor, lines, size, k, not adjacent)
    lines, size, k = map(now, (lines, size, k))
    cycles = lines * (_LINE_CYCLES + size / processor.isa.lanes * _VECTOR_CYCLES + k * _FOUND_CYCLES)
    return processor.computing(cycles * processor.isa.lanes)


def top_k_steps(
    processor: Processor, space: Space, x: TensorView, results: Sequence[TensorView | None], axis: int, largest: bool
) -> list[Step]:
    """Kernel calls for the first elements of `x` along an axis; results: their values and indices, None: not wanted."""
    axis %= len(x.shape)
    lanes, order = processor.isa.lanes, Order(x.dtype.name, largest, nan_first=largest)
    size, k = x.shape[axis], next(each.shape[axis] for each in results if each is not None)
    if _is_one(k) or are_adjacent(processor, k, math.prod(x.shape[axis + 1 :])):
        return extremes_steps(processor, space, x, results, axis, order, k)
    x, before = packed_input(processor, space, ending_in(x, axis))
    after, places = list[Step](), list[TensorView | None]()
    for result in results:
        made, moved = (None, []) if result is None else packed_output(processor, space, ending_in(result, axis))
        places, after = [*places, made], [*after, *moved]
    values, indices = places
    lines = math.prod(x.shape[:-1])
    memory, taken = line_memory(lanes, size, k, order.bytes)
    args: Args = {
        "order_line": MicroRef(order_line, KeysTile(lanes, order)),
        "x": x.ref,
        "values": values.ref if values else 0,
        "indices": indices.ref if indices else 0,
        "lines": lines,
        "x_line": size * x.dtype.itemsize,
        "size": size,
        "k": k,
        **memory,
        **worker_args("space", space, taken, processor.threads),
    }
    parts = parts_if_shared(lines * (size + _SPARE)) if processor.threads > 1 else 0
    return [*before, Step(top_k, TopKTile(lanes, x.dtype.itemsize, order.bytes), args, parts), *after]


def _is_one(k: int) -> bool:
    return not is_symbolic(k) and k == 1
