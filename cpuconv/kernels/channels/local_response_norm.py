"""Local response normalisation: divide each element by a power of the sum of squares of adjacent channels.

Source: Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks" (NIPS 2012);
ONNX operator LRN. In planes, lanes are pixels, and a window of channels is a window of planes. In channel blocks, lanes
are channels, and a window is the vector shifted against those of the previous and the next block.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa.vector import I64
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.binding.tensor_view import TensorView, image_shape
from cpuconv.kernels.elementwise.functions import EMITTERS, Math
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_exp, _log = EMITTERS["exp"], EMITTERS["log"]
_LARGEST = 3e38  # clamps infinity, which has no estimate
_CHUNK_BYTES = 2048  # bytes of a plane or channel block per unit: the planes of its window stay in L1


@dataclass(frozen=True)
class WindowTile:
    """The formula x·(bias + alpha·(sum of squares))^-beta, and the layout.

    Attributes
    ----------
    lanes : int
    alpha : float
        Alpha / size of the window.
    beta : float
    bias : float
    blocked : bool
    before, after : int
        Blocked: channels of a window before and after its own, at most `lanes` each.
    """

    lanes: int
    alpha: float
    beta: float
    bias: float
    blocked: bool
    before: int = 0
    after: int = 0


def _damped(tile: WindowTile, vec: Math, x: Any, squares: Any) -> Any:
    """x·(bias + alpha·squares)^-beta."""
    base = vec.fma(squares, vec.constant(tile.alpha), vec.constant(tile.bias))
    if tile.beta != 0.75:
        return vec.mul(x, _exp(vec, vec.mul(_log(vec, base), vec.constant(-tile.beta))))
    root = vec.inverse_root(vec.minimum(vec.constant(_LARGEST), base))
    damped = vec.mul(x, vec.mul(vec.mul(root, root), vec.inverse_root(root)))  # b^-3/4 = (b^-1/2)² (b^-1/2)^-1/2
    return vec.where("==", base, vec.constant(math.inf), vec.mul(x, vec.constant(0.0)), damped)  # NaN for infinite x


def _planes(
    tile: WindowTile, vec: Math, x: Any, y: Any, first: Any, last: Any, step: Any, zeros: Any, pixels: Any
) -> None:
    """Emit the loop over planes; lanes are pixels."""
    builder = vec.builder
    whole = builder.udiv(builder.sub(pixels, I64(1)), I64(vec.lanes))

    def at(index: Any, mask: Any = None) -> list[Any]:
        offset = builder.mul(index, I64(vec.size))
        source, target = vec.offset(x, offset), vec.offset(y, offset)

        def load(address: Any) -> Any:
            return vec.load(address) if mask is None else vec.load_masked(address, mask)

        def add(channel: Any, sums: list[Any]) -> list[Any]:
            value = load(vec.offset(source, builder.mul(channel, step)))
            return [vec.fma(value, value, sums[0])]

        (squares,) = repeat(vec, first, last, [vec.constant(0.0)], add)
        value = _damped(tile, vec, load(source), squares)
        if mask is None:
            vec.store(value, target)
        else:
            vec.store_masked(value, target, mask)
        return []

    repeat(vec, I64(0), whole, [], lambda index, _: at(index))
    at(whole, first_lanes(vec, builder.sub(pixels, builder.mul(whole, I64(vec.lanes)))))


def _blocks(
    tile: WindowTile, vec: Math, x: Any, y: Any, first: Any, last: Any, step: Any, zeros: Any, pixels: Any
) -> None:
    """Emit the loop over a channel block; lanes are channels."""
    builder, lanes = vec.builder, vec.lanes
    is_below, is_above = builder.icmp_signed("<", first, I64(0)), builder.icmp_signed(">", last, I64(1))

    def square(there: Any, address: Any) -> Any:
        value = vec.load(builder.select(there, address, zeros))
        return vec.mul(value, value)

    def at(index: Any, _: list[Any]) -> list[Any]:
        offset = builder.mul(index, I64(vec.size))
        source = vec.offset(x, offset)
        value = vec.load(source)
        squares = own = vec.mul(value, value)
        low = square(is_below, vec.offset(source, builder.neg(step)))
        high = square(is_above, vec.offset(source, step))
        for i in range(1, 1 + tile.before):
            squares = vec.add(squares, vec.shuffle(low, own, range(lanes - i, 2 * lanes - i)))
        for i in range(1, 1 + tile.after):
            squares = vec.add(squares, vec.shuffle(own, high, range(i, lanes + i)))
        vec.store(_damped(tile, vec, value, squares), vec.offset(y, offset))
        return []

    repeat(vec, I64(0), pixels, [], at)


@MicroKernel
def window(
    tile: WindowTile,
    builder: ir.IRBuilder,
    x: Any,
    y: Any,
    first: Any,
    last: Any,
    step: Any,
    zeros: Any,
    pixels: Any,
) -> None:
    """y = the formula at `pixels` (>= 1) of the plane or channel block at x.

    The window is within the planes or blocks first … last-1, counted from the one at x and `step` bytes apart. For a
    block that does not exist, the vector of zeros at `zeros` is read.
    """
    vec = Math(builder, tile.lanes)
    x, y, zeros = (vec.pointer(address) for address in (x, y, zeros))
    (_blocks if tile.blocked else _planes)(tile, vec, x, y, first, last, step, zeros, pixels)


_call_window = window.caller()


@dataclass(frozen=True)
class LocalResponseNormTile:
    """Empty tile: the micro-kernel is an argument."""


@kernel("micro x y zeros images planes before after pixels chunks chunk pixel x_image y_image plane")
def local_response_norm(tile, worker, before, part, parts, args):
    """Call the micro-kernel for every unit (image, chunk of pixels, plane or channel block)."""
    units = args.images * args.chunks * args.planes
    for unit in range(units * part // parts, units * (part + 1) // parts):
        place = unit // args.planes
        plane = unit - place * args.planes
        image = place // args.chunks
        first = (place - image * args.chunks) * args.chunk
        offset = plane * args.plane + first * args.pixel
        _call_window(
            args.micro,
            x=args.x + image * args.x_image + offset,
            y=args.y + image * args.y_image + offset,
            first=max(-plane, -args.before),
            last=min(args.planes - plane, args.after + 1),
            step=args.plane,
            zeros=args.zeros,
            pixels=min(args.chunk, args.pixels - first),
        )


def norm_step(
    processor: Processor, x: TensorView, y: TensorView, size: int, alpha: float, beta: float, bias: float
) -> Step:
    """Make the call of a local response normalisation, in planes or in channel blocks; bias > 0.

    In blocks, a window reaches at most the previous and the next block: size <= 2·lanes.
    """
    isa = processor.isa
    n, c, h, w = image_shape(x.shape)
    before, after, blocked = (size - 1) // 2, size // 2, x.block > 1
    tile = WindowTile(isa.lanes, alpha / size, beta, bias, blocked, before * blocked, after * blocked)
    pixel = x.block * F32.bytes
    chunk = _CHUNK_BYTES // pixel
    args: Args = {
        "micro": MicroRef(window, tile),
        "x": x.ref,
        "y": y.ref,
        "zeros": np.zeros(isa.lanes, np.float32),
        "images": n,
        "planes": divide(c, x.block),
        "before": 1 if blocked else before,
        "after": 1 if blocked else after,
        "pixels": h * w,
        "chunks": divide(h * w, chunk),
        "chunk": chunk,
        "pixel": pixel,
        "x_image": x.strides[0],
        "y_image": y.strides[0],
        "plane": h * w * pixel,
    }
    return Step(local_response_norm, LocalResponseNormTile(), args, processor.parts(x.size + y.size))
