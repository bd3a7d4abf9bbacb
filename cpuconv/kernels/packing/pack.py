"""Packing of float32 weights: vectors over output channels, from any strides, optionally transformed.

A vector has one element (input channel, kernel row, kernel column) of the filters of `lanes` output channels. The
driver is the same for all forms. Tables give the addresses of vectors and elements in the weights and the packed form.

`vectors`, five int64 words each: byte offset of the first filter in the weights; byte offset in the packed form of the
    vector of the first element; the same for the first pair of planes; the address of `lanes` byte offsets of filters
    from the first one; the number of filters (other offsets are 0, and their lanes become zero).
`spans`, three words each, for a run of elements: byte offset of the first one in the filter; their number, `step` bytes
    apart; the index of its first word in `targets`, which has the byte offset of each element's vector.
`pieces`, four words each: byte offset in the filter; first and last (excluded) span; byte offset in the target.

A unit of work is a piece of a vector; the units of one panel of `v` vectors are consecutive. Denormals become zero, as
arithmetic on them is tens of times slower. With a transform, a piece is `channels` whole input channels: their elements
are copied to a buffer, and each channel is transformed to its planes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.isa.vector import F32, I32, I64, Vector
from cpuconv.kernels.emit.intrinsics import emitter, word
from cpuconv.kernels.emit.transpose import NARROW, first_lanes, four_columns, keep_first
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.runtime.microkernel import MicroKernel

VECTOR_WORDS, SPAN_WORDS, PIECE_WORDS = 5, 3, 4
_TINY = float(np.finfo(np.float32).tiny)


def transform(tile, builder, taps, channels, target, plane, pairs, row, scratch):
    """Transform `channels` (>= 1) input channels, whose vectors of taps are contiguous from `taps` on, to planes.

    Parameters
    ----------
    target, plane
        target + i·plane is the address of the first channel's vector of plane i; channels are `row` bytes apart.
    pairs
        pairs + 2·i·plane is the address of the first channel's vector of pair i of planes; its second plane is `row`
        bytes behind, the next channel's 2·row bytes.
    scratch
        Scratch memory of the worker.
    """


_call_transform = MicroKernel(transform).caller()


@dataclass(frozen=True)
class PackTile:
    """Lanes of the instruction set; `partial`: only the lanes of present filters are written."""

    lanes: int
    partial: bool = False

    @property
    def narrow(self) -> int:
        """Elements that `_pack_narrow` transposes at a time."""
        return NARROW


def _table(vec: Vector, address: Any, count: int) -> list[Any]:
    """Load `count` int64 words."""
    pointer = vec.builder.inttoptr(address, I64.as_pointer())
    return [vec.builder.load(vec.builder.gep(pointer, [I64(i)])) for i in range(count)]


def _store(tile: PackTile, vec: Vector, lines: Sequence[Any], present: Any, target: Any, targets: Any) -> None:
    """Store lines to target + targets[i]; denormals become zero; lanes from `present` on are zero, or not written."""
    target, zero = vec.pointer(target), vec.constant(0.0)
    for line, place in zip(lines, _table(vec, targets, len(lines)), strict=True):
        normal = vec.builder.fcmp_unordered(">=", vec.absolute(line), vec.constant(_TINY))
        line = vec.builder.select(normal, line, zero)
        if tile.partial:
            vec.store_masked(line, vec.offset(target, place), first_lanes(vec, present))
        else:
            vec.store(keep_first(vec, line, present), vec.offset(target, place), align=4 * vec.lanes)


@emitter
def _pack_wide(tile: Any, vec: Vector, source: Any, filters: Any, present: Any, target: Any, targets: Any) -> None:
    """Pack `lanes` contiguous elements of each filter."""
    rows = [vec.offset(vec.pointer(source), row) for row in _table(vec, filters, vec.lanes)]
    lines: list[Any] = []
    for first in range(0, vec.lanes, NARROW):
        lines += four_columns(vec, rows.__getitem__, 4 * first)
    _store(tile, vec, lines, present, target, targets)


@emitter
def _pack_narrow(tile: Any, vec: Vector, source: Any, filters: Any, present: Any, target: Any, targets: Any) -> None:
    """Pack NARROW contiguous elements of each filter."""
    rows = [vec.offset(vec.pointer(source), row) for row in _table(vec, filters, vec.lanes)]
    _store(tile, vec, four_columns(vec, rows.__getitem__), present, target, targets)


@emitter
def _pack_vector(tile: Any, vec: Vector, source: Any, present: Any, target: Any, targets: Any) -> None:
    """Pack one element of contiguous filters."""
    _store(tile, vec, [vec.load(vec.pointer(source))], present, target, targets)


@emitter
def _pack_floats(tile: Any, vec: Vector, source: Any, filters: Any, present: Any, target: Any, targets: Any) -> None:
    """Pack one element of filters with any strides."""
    builder, source = vec.builder, vec.pointer(source)
    line = vec.constant(0.0)
    for lane, row in enumerate(_table(vec, filters, vec.lanes)):
        value = builder.load(builder.bitcast(vec.offset(source, row), F32.as_pointer()))
        line = builder.insert_element(line, value, I32(lane))
    _store(tile, vec, [line], present, target, targets)


@inline
def _pack_span(tile, source, filters, side_by_side, present, count, step, target, targets):
    """Pack the vectors of `count` elements to target + targets[i]."""
    if step == 4 and count >= tile.lanes:
        for i in range(0, count, tile.lanes):
            at = min(i, count - tile.lanes)
            _pack_wide(tile, source + 4 * at, filters, present, target, targets + 8 * at)
    elif step == 4 and count >= tile.narrow:
        for i in range(0, count, tile.narrow):
            at = min(i, count - tile.narrow)
            _pack_narrow(tile, source + 4 * at, filters, present, target, targets + 8 * at)
    elif side_by_side and present == tile.lanes:
        for i in range(count):
            _pack_vector(tile, source + i * step, present, target, targets + 8 * i)
    else:
        for i in range(count):
            _pack_floats(tile, source + i * step, filters, present, target, targets + 8 * i)


@kernel(
    "x y units v vectors pieces pieces_count spans targets step side_by_side transform channels buffer buffer_step "
    "plane row scratch scratch_step"
)
def pack_weights(tile, worker, before, part, parts, args):
    """Pack the weights at x to the form at y, by the tables of this module."""
    buffer = args.buffer + worker * args.buffer_step
    scratch = args.scratch + worker * args.scratch_step
    panel = args.v * args.pieces_count
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        vector = args.vectors + 8 * VECTOR_WORDS * (unit // panel * args.v + unit % args.v)
        piece = args.pieces + 8 * PIECE_WORDS * (unit % panel // args.v)
        source = args.x + word(tile, vector, 0) + word(tile, piece, 0)
        filters, present = word(tile, vector, 3), word(tile, vector, 4)
        start = word(tile, piece, 3)
        target = args.y + word(tile, vector, 1) + start
        into = buffer if args.transform else target
        for number in range(word(tile, piece, 1), word(tile, piece, 2)):
            span = args.spans + 8 * SPAN_WORDS * number
            targets = args.targets + 8 * word(tile, span, 2)
            first, count = source + word(tile, span, 0), word(tile, span, 1)
            _pack_span(tile, first, filters, args.side_by_side, present, count, args.step, into, targets)
        if args.transform:
            pairs = args.y + word(tile, vector, 2) + 2 * start
            _call_transform(
                args.transform,
                taps=buffer,
                channels=args.channels,
                target=target,
                plane=args.plane,
                pairs=pairs,
                row=args.row,
                scratch=scratch,
            )
