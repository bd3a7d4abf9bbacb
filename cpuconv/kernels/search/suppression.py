"""Non-maximum suppression: the best boxes of each image and class, without those that overlap a better one.

Boxes with enough score are sorted as in `top_k`. Each is compared with a vector of the selected boxes at a time, and
with the next ones only if it overlaps none of these. Results of all images and classes are written apart, then moved
together.

Source: ONNX's NonMaxSuppression. Arithmetic is in float32 and in the order of ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32 as FLOATS
from cpuconv.isa.vector import F32, I64, Vector
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.partition import parts_if_shared
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.fold import FOLDS
from cpuconv.kernels.emit.intrinsics import copy_float, emitter, fill_vector, word
from cpuconv.kernels.search.order import Order
from cpuconv.kernels.search.packed_lines import packed_input, packed_output
from cpuconv.kernels.search.top_k import KeysTile, call_order, order_line, sort_indices
from cpuconv.kernels.search.words import bits_at_least, key_at, lowest_bit, set_word
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.symbolic.sizes import now

_NUMBERS = 5  # per selected box: its lower and upper corner, and its area
_NAN = 0x7FC00000
_BINS, _LINE = 2048, 64  # bytes of the bins of a sort, and of a cache line
_BOX_OPERATIONS, _PAIR_OPERATIONS = 40, 14  # vector operations per box, and per pair of boxes


@dataclass(frozen=True)
class SuppressionTile:
    """Tile of the driver: bytes of scores and of their keys, and whether boxes are stated by center and size."""

    lanes: int
    bytes: int
    key_bytes: int
    center: bool

    @property
    def first(self) -> int:
        """Greatest key."""
        return (1 << 8 * self.bytes - 1) - 1


@emitter
def _set_corners(tile: Any, vec: Vector, box: Any, target: Any) -> None:
    """Write lower corner, upper corner and area, NaN if a coordinate is, of four float32 at `box`."""
    builder, one = vec.builder, Vector(vec.builder, 1)
    source, target = (builder.inttoptr(place, F32.as_pointer()) for place in (box, target))
    a, b, c, d = (builder.load(builder.gep(source, [I64(at)])) for at in range(4))
    if tile.center:
        halves = [one.mul(size, one.constant(0.5)) for size in (c, d)]
        low = [one.sub(at, half) for at, half in zip((a, b), halves, strict=True)]
        high = [one.add(at, half) for at, half in zip((a, b), halves, strict=True)]
    else:
        low, high = ([FOLDS[fold](one, *pair) for pair in ((a, c), (b, d))] for fold in ("min", "max"))
    sides = [FOLDS["max"](one, one.sub(top, bottom), one.constant(0.0)) for top, bottom in zip(high, low, strict=True)]
    for at, number in enumerate((*low, *high, one.mul(*sides))):
        builder.store(number, builder.gep(target, [I64(at)]))


@emitter
def _overlapping(tile: Any, vec: Vector, box: Any, others: Any, threshold: Any) -> Any:
    """Bits of the boxes, one per lane, whose overlap with a box exceeds the threshold, a float32 in memory."""
    low0, low1, high0, high1, area = (vec.broadcast(vec.offset(vec.pointer(box), 4 * at)) for at in range(_NUMBERS))
    known = [vec.load(vec.offset(vec.pointer(others), at * vec.size)) for at in range(_NUMBERS)]

    def side(low: Any, high: Any, low_: Any, high_: Any) -> Any:
        return vec.maximum(vec.sub(vec.minimum(high, high_), vec.maximum(low, low_)), vec.constant(0.0))

    shared = vec.mul(side(low0, high0, known[0], known[2]), side(low1, high1, known[1], known[3]))
    ratio = vec.div(shared, vec.sub(vec.add(known[4], area), shared))
    exceeds = vec.builder.fcmp_ordered(">", ratio, vec.broadcast(vec.pointer(threshold)))
    return vec.builder.zext(vec.builder.bitcast(exceeds, ir.IntType(vec.lanes)), I64)


@inline
def _able(tile, args, scores, keys, entries, bins):
    """Write the indices of boxes with enough score; return their number."""
    bound = -tile.first - 1
    call_order(args.order_line, x=scores, size=args.size, keys=keys, maxima=bins, groups=1, depth=args.vectors)
    if args.least != 0:
        call_order(args.order_line, x=args.least, size=1, keys=bins, maxima=bins + _BINS // 2, groups=1, depth=1)
        bound = key_at(tile, bins, 0) + 1
        if bound == -tile.first:  # of NaN, which no score exceeds
            return 0
    count = 0
    for vector in range(args.vectors):
        bits = bits_at_least(tile, keys + vector * tile.lanes * tile.key_bytes, bound)
        while bits != 0:
            set_word(tile, entries, count, vector * tile.lanes + lowest_bit(tile, bits))
            bits = bits & (bits - 1)
            count += 1
    while count > 0 and word(tile, entries, count - 1) >= args.size:  # lanes without a box
        count -= 1
    return count


@inline
def _select(tile, args, boxes, found, count, selected, box, image, label, rows):
    """Select boxes in order, and write a row for each; return their number."""
    chosen = 0
    for at in range(count):
        if chosen >= args.most:
            break
        index = word(tile, found, at)
        _set_corners(tile, boxes + 16 * index, box)
        free = 1
        for group in range(0, chosen, tile.lanes):
            if _overlapping(tile, box, selected + group * 4 * _NUMBERS, args.overlap) != 0:
                free = 0
                break
        if free != 0:
            lane = chosen % tile.lanes
            group = selected + (chosen - lane) * 4 * _NUMBERS
            if lane == 0:
                fill_vector(tile, group + (_NUMBERS - 1) * 4 * tile.lanes, _NAN)  # of lanes without a box
            for number in range(_NUMBERS):
                copy_float(tile, box + 4 * number, group + 4 * (number * tile.lanes + lane))
            set_word(tile, rows, 3 * chosen, image)
            set_word(tile, rows, 3 * chosen + 1, label)
            set_word(tile, rows, 3 * chosen + 2, index)
            chosen += 1
    return chosen


@kernel(
    "order_line boxes scores overlap least rows counts images classes size vectors most space space_step keys_at "
    "entries_at other_at bins_at selected_at box_at"
)
def suppress(tile, worker, before, part, parts, args):
    """Write up to `most` rows (image, class, box) for each image and class, and their numbers to `counts`."""
    memory = args.space + worker * args.space_step
    units = args.images * args.classes
    for unit in range(units * part // parts, units * (part + 1) // parts):
        image = unit // args.classes
        keys = memory + args.keys_at
        entries = memory + args.entries_at
        bins = memory + args.bins_at
        count = _able(tile, args, args.scores + unit * args.size * tile.bytes, keys, entries, bins)
        found = sort_indices(tile, keys, entries, memory + args.other_at, count, bins)
        chosen = _select(
            tile, args, args.boxes + image * args.size * 16, found, count, memory + args.selected_at,
            memory + args.box_at, image, unit - image * args.classes, args.rows + unit * args.most * 24,
        )  # fmt: skip
        set_word(tile, args.counts, unit, chosen)


@dataclass(frozen=True)
class GatherTile:
    """Tile of `gather_rows`."""

    lanes: int


@kernel("rows counts units most total")
def gather_rows(tile, worker, before, part, parts, args):
    """Move the rows of all units together, and write their number to `total`."""
    count = 0
    for unit in range(args.units):
        for at in range(3 * word(tile, args.counts, unit)):
            set_word(tile, args.rows, 3 * count + at, word(tile, args.rows, 3 * args.most * unit + at))
        count += word(tile, args.counts, unit)
    set_word(tile, args.total, 0, count)


def seconds(processor: Processor, units: int, size: int, most: int) -> float:
    """Modelled time, in seconds; it depends on the scores, and most boxes have little."""
    units, size, most = map(now, (units, size, most))
    return processor.computing(units * size * (_BOX_OPERATIONS + _PAIR_OPERATIONS * min(most, size) / 4))


def suppression_steps(
    processor: Processor,
    space: Space,
    boxes: TensorView,
    scores: TensorView,
    overlap: TensorView | None,
    least: TensorView | None,
    center: bool,
    rows: TensorView,
    total: TensorView,
) -> list[Step]:
    """Kernel calls for boxes (images, boxes, 4) and scores (images, classes, boxes).

    `overlap`, `least`: thresholds of overlap, 0 if left out, and of scores, none if left out. `rows`: int64 memory for
    as many rows for each image and class. `total`: int64, the number of rows that are results.
    """
    lanes, order = processor.isa.lanes, Order(scores.dtype.name, largest=True, nan_first=False)
    boxes, before = packed_input(processor, space, boxes)
    scores, moved = packed_input(processor, space, scores)
    rows, after = packed_output(processor, space, rows)
    images, classes, size = scores.shape
    units, vectors = images * classes, size // lanes + 1
    most = rows.shape[0] // units
    memory = {
        "keys": vectors * lanes * order.bytes,
        "entries": 8 * vectors * lanes,
        "other": 8 * vectors * lanes,
        "bins": _BINS,
        "selected": divide(most, lanes) * lanes * FLOATS.bytes * _NUMBERS,
        "box": _LINE,
    }
    places, taken = {}, 0
    for name, each in memory.items():
        places[f"{name}_at"] = taken
        taken += divide(each, _LINE) * _LINE
    counts = space.reserve(8 * units)
    tile = SuppressionTile(lanes, scores.dtype.itemsize, order.bytes, center)
    args: Args = {
        "order_line": MicroRef(order_line, KeysTile(lanes, order)),
        "boxes": boxes.ref,
        "scores": scores.ref,
        "overlap": overlap.ref if overlap else np.zeros(1, np.float32),
        "least": least.ref if least else 0,
        "rows": rows.ref,
        "counts": counts,
        "images": images,
        "classes": classes,
        "size": size,
        "vectors": vectors,
        "most": most,
        **worker_args("space", space, taken, processor.threads),
        **places,
    }
    parts = parts_if_shared(units * size * 64) if processor.threads > 1 else 0
    gathered: Args = {"rows": rows.ref, "counts": counts, "units": units, "most": most, "total": total.ref}
    steps = Step(suppress, tile, args, parts), Step(gather_rows, GatherTile(lanes), gathered, 0)
    return [*before, *moved, *steps, *after]
