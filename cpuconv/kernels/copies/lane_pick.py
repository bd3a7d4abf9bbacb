"""Copy of channels between blocked tensors, in any order: each target vector is shuffled from a few source vectors.

A table lists the source blocks of each target block. The lane permutation is a constant of a micro-kernel, which target
blocks share where possible: a channel shuffle has a handful of them, a range of channels three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa.typed import load_narrow, store_narrow
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.arguments import stride_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.copying import picked
from cpuconv.kernels.emit.intrinsics import word
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import affine

_CHUNK = 512  # pixels per unit


@dataclass(frozen=True)
class PickTile:
    """Tile: for each channel of a target block, its index in the concatenated source blocks; -1: zero.

    The first `kept` lanes of the target are unchanged.
    """

    lanes: int
    blocks: int
    places: tuple[int, ...]
    element: Element = F32
    kept: int = 0


@MicroKernel
def pick_lanes(tile: PickTile, builder: ir.IRBuilder, x: Any, offsets: Any, y: Any, pixels: Any) -> None:
    """Store vectors of `pixels` (>= 1) pixels at `y`; source blocks are at byte offsets `offsets` (int64) from `x`."""
    vec, element = Vector(builder, tile.lanes), tile.element
    pixel = I64(element.bytes * tile.lanes)
    table = builder.inttoptr(offsets, I64.as_pointer())
    blocks = [vec.pointer(builder.add(x, builder.load(builder.gep(table, [I64(i)])))) for i in range(tile.blocks)]
    target = vec.pointer(y)

    def move(index: Any) -> None:
        at = builder.mul(index, pixel)
        vectors = [load_narrow(vec, element, vec.offset(block, at)) for block in blocks]
        made, place = picked(vec, ir.Constant(vectors[0].type, None), vectors, tile.places), vec.offset(target, at)
        if tile.kept:
            made = builder.select(first_lanes(vec, I64(tile.kept)), load_narrow(vec, element, place), made)
        store_narrow(vec, element, made, place)

    loop(builder, 0, pixels, move)


call_pick_lanes = pick_lanes.caller()


@dataclass(frozen=True)
class _Driver:
    """Tile of the driver: channels per block, and bytes per element."""

    lanes: int
    bytes: int


@kernel("x y units blocks chunks chunk pixels codes offsets most x_image y_image y_block")
def pick_channels(tile, worker, before, part, parts, args):
    """Compute blocks 0 … blocks-1 of y by the micro-kernels `codes`, each with `most` `offsets` into an image of x."""
    pixel = tile.bytes * tile.lanes
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        first = unit % args.chunks * args.chunk
        block = unit // args.chunks % args.blocks
        image = unit // (args.chunks * args.blocks)
        call_pick_lanes(
            word(tile, args.codes, block),
            x=args.x + image * args.x_image + first * pixel,
            offsets=args.offsets + 8 * block * args.most,
            y=args.y + image * args.y_image + block * args.y_block + first * pixel,
            pixels=min(args.chunk, args.pixels - first),
        )


def picks(
    channels: Sequence[int], lanes: int, element: Element = F32, kept: int = 0
) -> list[tuple[PickTile, list[int]]]:
    """Tile and source blocks of each target block of `lanes` of the channels, behind `kept` lanes of the first one."""
    made = []
    wanted = [*[None] * kept, *channels]
    for start in range(0, len(wanted), lanes):
        here = wanted[start : start + lanes]
        sources = list(dict.fromkeys(channel // lanes for channel in here if channel is not None))
        places = [-1 if each is None else sources.index(each // lanes) * lanes + each % lanes for each in here]
        places += [-1] * (lanes - len(places))
        made.append((PickTile(lanes, len(sources), tuple(places), element, kept if start == 0 else 0), sources))
    return made


def pick_step(processor: Processor, x: TensorView, y: TensorView, channels: Sequence[int], onto: int = 0) -> Step:
    """Make one call that copies channels between blocked tensors of equal blocks and planes.

    Parameters
    ----------
    processor : Processor
    x, y : TensorView
    channels : sequence of int
        Channels of `x`, in the order of `y`.
    onto : int
        First channel in `y`. Earlier channels are unchanged; lanes after the last one, to the end of its block, are
        zero.
    """
    n, _, h, w, lanes = y.physical
    made = picks(channels, lanes, y.element, onto % lanes)
    offsets = np.zeros((len(made), max(tile.blocks for tile, _ in made)), np.int64)
    for row, (_, sources) in zip(offsets, made, strict=True):
        row[: len(sources)] = sources
    chunks = divide(h * w, _CHUNK)
    args: Args = {
        "x": x.ref,
        "y": y.ref + onto // lanes * y.strides[1],
        "units": n * len(made) * chunks,
        "blocks": len(made),
        "chunks": chunks,
        "chunk": _CHUNK,
        "pixels": h * w,
        "codes": tuple(MicroRef(pick_lanes, tile) for tile, _ in made),
        "offsets": affine(lambda step: offsets * step, x.strides[1]),
        "most": offsets.shape[1],
        "x_image": x.strides[0],
        **stride_args("y", y.strides, "image block"),
    }
    parts = processor.parts(2 * y.element.bytes * n * len(made) * lanes * h * w)
    return Step(pick_channels, _Driver(lanes, y.element.bytes), args, parts)
