"""uint8 lookup table of 256 entries.

With AVX512_VBMI, two permutations of 128 bytes each look up 64 elements, and the index's highest bit selects between
them. With AVX2, each sixteenth of the table is looked up by the low four bits of 32 indices. The high four bits then
halve the candidates one after another: 16 shuffles and 15 blends, in half the time of 32 loads. On other CPUs each
element is a load.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import U8
from cpuconv.isa.features import has_feature
from cpuconv.isa.typed import load_narrow, store_narrow
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Ref, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.elementwise.driver import zero_tail_channels
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

VALUES, _WIDE = 256, 64  # table entries; bytes per unit of partition
_SHUFFLED, _ROW = 32, 16  # indices per AVX2 lookup, and table entries per shuffle
_I8 = ir.IntType(8)


@dataclass(frozen=True)
class LookupTile:
    """Tile of the micro-kernel: CPU feature for lookups of several indices; "": one load per index."""

    feature: str


@MicroKernel
def look_up(tile: LookupTile, builder: ir.IRBuilder, x: Any, y: Any, table: Any, count: Any) -> None:
    """y[i] = table[x[i]] for `count` bytes; y may be x."""
    _WAYS.get(tile.feature, _one_by_one)(builder, x, y, table, count)


def _permuted(builder: ir.IRBuilder, x: Any, y: Any, table: Any, count: Any) -> None:
    vec, kind = Vector(builder, _WIDE), ir.VectorType(_I8, _WIDE)
    source, target, start = map(vec.pointer, (x, y, table))
    quarters = [load_narrow(vec, U8, vec.offset(start, at)) for at in range(0, VALUES, _WIDE)]
    name, module = "llvm.x86.avx512.vpermi2var.qi.512", builder.module
    permute = ir.Function(module, ir.FunctionType(kind, [kind] * 3), name)
    zero = ir.Constant(kind, [0] * _WIDE)

    def some(at: Any, mask: Any = None) -> None:
        index = load_narrow(vec, U8, vec.offset(source, at), mask)
        low, high = (builder.call(permute, [a, index, b]) for a, b in (quarters[:2], quarters[2:]))
        value = builder.select(builder.icmp_signed("<", index, zero), high, low)
        store_narrow(vec, U8, value, vec.offset(target, at), mask)

    def whole(index: Any, values: list[Any]) -> list[Any]:
        some(builder.mul(index, I64(_WIDE)))
        return values

    vectors = builder.udiv(count, I64(_WIDE))
    repeat(vec, I64(0), vectors, [], whole)
    some(builder.mul(vectors, I64(_WIDE)), first_lanes(vec, builder.urem(count, I64(_WIDE))))


def _shuffled(builder: ir.IRBuilder, x: Any, y: Any, table: Any, count: Any) -> None:
    vec: Any = Vector(builder, _SHUFFLED)
    kind, shorts = ir.VectorType(_I8, _SHUFFLED), ir.VectorType(ir.IntType(16), _SHUFFLED // 2)
    shuffle = ir.Function(builder.module, ir.FunctionType(kind, [kind] * 2), "llvm.x86.avx2.pshuf.b")
    source, target, start = map(vec.pointer, (x, y, table))
    row, zero = Vector(builder, _ROW), ir.Constant(kind, [0] * _SHUFFLED)
    rows = []
    for at in range(0, VALUES, _ROW):
        part = load_narrow(row, U8, vec.offset(start, at))
        rows.append(vec.shuffle(part, part, [*range(_ROW)] * 2))

    def whole(index: Any, values: list[Any]) -> list[Any]:
        at = builder.mul(index, I64(_SHUFFLED))
        number = load_narrow(vec, U8, vec.offset(source, at))
        lower = builder.and_(number, ir.Constant(kind, [_ROW - 1] * _SHUFFLED))
        signs = []  # index bits from the highest on, each as a sign bit
        for bit in range(4):
            moved = builder.shl(builder.bitcast(number, shorts), ir.Constant(shorts, [bit] * shorts.count))
            signs.append(builder.icmp_signed("<", builder.bitcast(moved, kind), zero))

        def chosen(first: int, left: int) -> Any:
            if left == 1:
                return builder.call(shuffle, [rows[first], lower])
            half = left // 2
            low, high = chosen(first, half), chosen(first + half, half)
            return builder.select(signs[(len(rows) // left).bit_length() - 1], high, low)

        store_narrow(vec, U8, chosen(0, len(rows)), vec.offset(target, at))
        return values

    vectors = builder.udiv(count, I64(_SHUFFLED))
    repeat(vec, I64(0), vectors, [], whole)
    done = builder.mul(vectors, I64(_SHUFFLED))
    _one_by_one(builder, vec.offset(source, done), vec.offset(target, done), start, builder.sub(count, done))


def _one_by_one(builder: ir.IRBuilder, x: Any, y: Any, table: Any, count: Any) -> None:
    vec = Vector(builder, 1)
    source, target, start = map(vec.pointer, (x, y, table))

    def one(index: Any, values: list[Any]) -> list[Any]:
        value = builder.load(vec.offset(start, builder.zext(builder.load(vec.offset(source, index)), I64)))
        builder.store(value, vec.offset(target, index))
        return values

    repeat(vec, I64(0), count, [], one)


_WAYS = {"avx512vbmi": _permuted, "avx2": _shuffled}  # by CPU feature, the fastest first
_call = look_up.caller()


@dataclass(frozen=True)
class DriverTile:
    """Empty tile: one driver serves all features."""


@kernel("look_up x y x_image y_image images bytes vectors table")
def lookup(tile, worker, before, part, parts, args):
    """Look up a part of the vectors of each image of `bytes` contiguous bytes."""
    first = args.vectors * part // parts * _WIDE
    count = min(args.vectors * (part + 1) // parts * _WIDE, args.bytes) - first
    if count > 0:
        for n in range(args.images):
            _call(
                args.look_up,
                x=args.x + n * args.x_image + first,
                y=args.y + n * args.y_image + first,
                table=args.table,
                count=count,
            )


def lookup_steps(processor: Processor, x: TensorView, y: TensorView, table: Ref, first: int) -> list[Step]:
    """y = table[x], both dense or both blocked, whose images may be apart; `first`: the table's first entry."""
    images, size = y.shape[0], y.size // y.shape[0]
    if {x.strides[0], y.strides[0]} == {size}:
        images, size = 1, images * size
    args: Args = {
        "look_up": MicroRef(look_up, LookupTile(next(filter(has_feature, _WAYS), ""))),
        "x": x.ref,
        "y": y.ref,
        "x_image": x.strides[0],
        "y_image": y.strides[0],
        "images": images,
        "bytes": size,
        "vectors": divide(size, _WIDE),
        "table": table,
    }
    steps = [Step(lookup, DriverTile(), args, processor.parts(2 * y.size))]
    return [*steps, zero_tail_channels(processor, y)] if first and y.block > 1 and y.shape[1] % y.block else steps
