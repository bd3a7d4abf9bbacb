"""NonZero: the indices of elements that are not zero, a row for each axis.

Chunks of the elements are counted first, so that threads know where to write the indices of theirs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.intrinsics import emitter, word
from cpuconv.kernels.search.order import DTYPES, is_floating, load_integers
from cpuconv.kernels.search.packed_lines import packed_input
from cpuconv.kernels.search.words import count_bits, lowest_bit, set_word
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.symbolic.sizes import now, sizes_array

_BITS = 64  # elements per word of bits
_CHUNK = 64  # words of bits per chunk
_MAX_RANK = 64
_FOUND_CYCLES = 4.0  # cycles per element


@dataclass(frozen=True)
class NonZeroTile:
    """Tile: bytes per element, and whether all bits but the sign count, as of floating-point types."""

    lanes: int
    bytes: int
    floating: bool


@emitter
def _set_bits(tile: Any, vec: Vector, x: Any) -> Any:
    """Bits of the elements among 64 that are not zero."""
    builder, many = vec.builder, Vector(vec.builder, _BITS)
    kind = ir.IntType(8 * tile.bytes)
    numbers = load_integers(many, many.pointer(x), kind)
    vector = ir.VectorType(kind, _BITS)
    if tile.floating:
        numbers = builder.shl(numbers, ir.Constant(vector, [1] * _BITS))
    return builder.bitcast(builder.icmp_signed("!=", numbers, ir.Constant(vector, [0] * _BITS)), I64)


@emitter
def _is_set(tile: Any, vec: Vector, x: Any) -> Any:
    """1 if one element is not zero, else 0."""
    builder, kind = vec.builder, ir.IntType(8 * tile.bytes)
    number = builder.load(builder.inttoptr(x, kind.as_pointer()))
    number = builder.shl(number, kind(1)) if tile.floating else number
    return builder.zext(builder.icmp_signed("!=", number, kind(0)), I64)


@inline
def _bits(tile, args, at):
    """Bits of the elements from index `at` on that are not zero, up to 64."""
    if at + _BITS <= args.size:
        return _set_bits(tile, args.x + at * tile.bytes)
    bits = 0
    for bit in range(args.size - at):
        bits = bits | (_is_set(tile, args.x + (at + bit) * tile.bytes) << bit)
    return bits


@kernel("x size chunks counts")
def count_non_zero(tile, worker, before, part, parts, args):
    """counts[chunk] = number of elements of a chunk that are not zero."""
    for chunk in range(args.chunks * part // parts, args.chunks * (part + 1) // parts):
        count = 0
        for at in range(chunk * _CHUNK * _BITS, min(args.size, (chunk + 1) * _CHUNK * _BITS), _BITS):
            count += count_bits(tile, _bits(tile, args, at))
        set_word(tile, args.counts, chunk, count)


@kernel("x size chunks counts y y_axis total rank sizes space space_step")
def write_non_zero(tile, worker, before, part, parts, args):
    """y[axis][i] = index along an axis of the i-th element that is not zero; total = their number."""
    places = args.space + worker * args.space_step
    first = args.chunks * part // parts
    found = 0
    for chunk in range(first):
        found += word(tile, args.counts, chunk)
    line = word(tile, args.sizes, args.rank - 1)
    last = args.y + (args.rank - 1) * args.y_axis
    start = -line
    for chunk in range(first, args.chunks * (part + 1) // parts):
        for at in range(chunk * _CHUNK * _BITS, min(args.size, (chunk + 1) * _CHUNK * _BITS), _BITS):
            bits = _bits(tile, args, at)
            while bits != 0:
                index = at + lowest_bit(tile, bits)
                bits = bits & (bits - 1)
                if index >= start + line:
                    rest = index // line
                    start = rest * line
                    for axis in range(args.rank - 2, -1, -1):
                        size = word(tile, args.sizes, axis)
                        set_word(tile, places, axis, rest % size)
                        rest = rest // size
                for axis in range(args.rank - 1):
                    set_word(tile, args.y + axis * args.y_axis, found, word(tile, places, axis))
                set_word(tile, last, found, index - start)
                found += 1
    if part + 1 == parts:
        set_word(tile, args.total, 0, found)


def finds(dtype: np.dtype, rank: int) -> bool:
    """Whether the kernels support a type and a number of axes."""
    return dtype.name in (*DTYPES, "bool") and 0 < rank <= _MAX_RANK


def seconds(processor: Processor, size: int) -> float:
    """Modelled time for `size` elements, in seconds."""
    return processor.computing(now(size) * _FOUND_CYCLES * processor.isa.lanes)


def non_zero_steps(processor: Processor, space: Space, x: TensorView, y: TensorView, total: TensorView) -> list[Step]:
    """Kernel calls for a tensor; y: (axes, elements), int64, of which the first `total` columns are written."""
    x, moved = packed_input(processor, space, x)
    size = math.prod(x.shape)
    chunks = divide(size, _CHUNK * _BITS)
    tile = NonZeroTile(processor.isa.lanes, x.dtype.itemsize, is_floating(x.dtype.name))
    args: Args = {"x": x.ref, "size": size, "chunks": chunks, "counts": space.reserve(8 * chunks)}
    written: Args = {
        **args,
        "y": y.ref,
        "y_axis": y.strides[0],
        "total": total.ref,
        "rank": len(x.shape),
        "sizes": sizes_array(x.shape),
        **worker_args("space", space, 8 * _MAX_RANK, processor.threads),
    }
    parts = processor.parts(x.size)
    return [*moved, Step(count_non_zero, tile, args, parts), Step(write_non_zero, tile, written, parts)]
