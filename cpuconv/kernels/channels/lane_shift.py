"""Copy of channels between blocked tensors at unequal offsets within a block: vectors are shuffled from two.

Lane l of a target block is lane l + shift of two concatenated adjacent source blocks. The shift is equal for all
blocks, so it is a constant of the kernel. The first lanes of the first block may be preserved; lanes of the last block
after the last channel are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.following.sizes import least
from cpuconv.isa.vector import Vector
from cpuconv.kernels.binding.constants import Constants
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.transpose import first_lanes, keep_first
from cpuconv.problem.integers import divide
from cpuconv.runtime.kernel import kernel

_CHUNK = 512  # pixels per unit


@dataclass(frozen=True)
class ShiftTile:
    """Tile: lanes per vector, and the lane of the first source vector that becomes lane 0."""

    lanes: int
    shift: int


def _shifted(tile: ShiftTile, vec: Vector, low: Any, high: Any) -> Any:
    pair = vec.load(vec.pointer(low)), vec.load(vec.pointer(high))
    return vec.shuffle(*pair, range(tile.shift, tile.shift + vec.lanes))


@emitter
def _shift(tile: Any, vec: Vector, low: Any, high: Any, target: Any) -> None:
    """target[l] = (low, high)[l + shift]."""
    vec.store(_shifted(tile, vec, low, high), vec.pointer(target))


@emitter
def _shift_some(tile: Any, vec: Vector, low: Any, high: Any, target: Any, kept: Any, valid: Any) -> None:
    """`_shift` of lanes from `kept` on, zero from `valid` on; lanes before `kept` are unchanged."""
    value, target = keep_first(vec, _shifted(tile, vec, low, high), valid), vec.pointer(target)
    vec.store(vec.builder.select(first_lanes(vec, kept), vec.load(target), value), target)


@kernel(
    "x y zeros units blocks chunks chunk pixels first_block source_blocks kept valid x_image x_block y_image y_block"
)
def shift_lanes(tile, worker, before, part, parts, args):
    """Compute blocks 0 … blocks-1 of y; block b is shuffled from blocks b + `first_block` of x and the next one.

    `first_block` may be negative. Blocks that x does not have are read as `zeros`.
    """
    pixel = 4 * tile.lanes
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        first = unit % args.chunks * args.chunk
        count = min(args.chunk, args.pixels - first)
        block = unit // args.chunks % args.blocks
        image = unit // (args.chunks * args.blocks)
        source = block + args.first_block
        x = args.x + image * args.x_image + first * pixel
        low, low_step, high, high_step = args.zeros, 0, args.zeros, 0
        if 0 <= source < args.source_blocks:
            low, low_step = x + source * args.x_block, pixel
        if source + 1 < args.source_blocks:
            high, high_step = x + (source + 1) * args.x_block, pixel
        y = args.y + image * args.y_image + block * args.y_block + first * pixel
        kept = args.kept if block == 0 else 0
        valid = args.valid if block == args.blocks - 1 else tile.lanes
        if kept == 0 and valid == tile.lanes:
            for i in range(count):
                _shift(tile, low + i * low_step, high + i * high_step, y + i * pixel)
        else:
            for i in range(count):
                _shift_some(tile, low + i * low_step, high + i * high_step, y + i * pixel, kept, valid)


def shift_step(
    processor: Processor,
    constants: Constants,
    x: TensorView,
    y: TensorView,
    channels: int,
    first: int = 0,
    onto: int = 0,
) -> Step:
    """Make one call that copies `channels` channels between blocked tensors of equal plane size.

    Parameters
    ----------
    processor : Processor
    constants : Constants
    x, y : TensorView
    channels : int
    first, onto : int
        First channel in `x` and in `y`. Earlier channels of `y` are unchanged; lanes after the last one, to the end of
        its block, are zero.
    """
    lanes = y.block
    kept = onto % lanes
    first_block, shift = divmod(first - kept, lanes)
    n, _, h, w, _ = y.physical
    blocks, chunks = divide(kept + channels, lanes), divide(h * w, _CHUNK)
    args: Args = {
        "x": x.ref,
        "y": y.ref + onto // lanes * y.strides[1],
        "zeros": constants.keep(np.zeros(lanes, np.float32)),
        "units": n * blocks * chunks,
        "blocks": blocks,
        "chunks": chunks,
        "chunk": least(_CHUNK, h * w),
        "pixels": h * w,
        "first_block": first_block,
        "source_blocks": x.physical[1],
        "kept": kept,
        "valid": (kept + channels - 1) % lanes + 1,
        "x_image": x.strides[0],
        "x_block": x.strides[1],
        "y_image": y.strides[0],
        "y_block": y.strides[1],
    }
    parts = processor.parts(2 * F32.bytes * n * blocks * lanes * h * w)
    return Step(shift_lanes, ShiftTile(lanes, shift), args, parts)
