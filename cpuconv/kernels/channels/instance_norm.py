"""Instance normalisation of blocked tensors, by mean and variance of each channel plane, in three passes over it.

Units of work are (image, channel block).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cpuconv.isa import Isa
from cpuconv.isa.vector import I64
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.windows.planes import PlaneTile
from cpuconv.kernels.windows.spatial import Rectangle, plane_shape
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel


@MicroKernel
def normalise_plane(
    tile: PlaneTile, builder: ir.IRBuilder, x: Any, rows: Any, taps: Any, y: Any, numbers: Any, scale: Any
) -> None:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias, over `rows` x `taps` pixels.

    Parameters
    ----------
    numbers
        Address of two float32: 1 / number of pixels, and epsilon.
    scale
        Address of a vector of scales and one of biases.
    """
    vec = Math(builder, tile.lanes)
    numbers, scale = vec.pointer(numbers), vec.pointer(scale)
    each, epsilon = vec.broadcast(numbers), vec.broadcast(vec.offset(numbers, 4))
    plane = Rectangle(x, builder.mul(taps, I64(vec.size)), rows, I64(vec.size), taps)
    mean = vec.mul(plane.fold(vec, "sum"), each)

    def squared(value: Any) -> Any:
        distance = vec.sub(value, mean)
        return vec.mul(distance, distance)

    deviation = vec.square_root(vec.fma(plane.fold(vec, "sum", squared), each, epsilon))
    factor = vec.div(vec.load(scale), deviation)
    bias = vec.load(vec.offset(scale, vec.size))

    def pixel(index: Any, values: list[Any]) -> list[Any]:
        at = builder.mul(index, I64(vec.size))
        value = vec.sub(vec.load(vec.offset(vec.pointer(x), at)), mean)
        vec.store(vec.fma(value, factor, bias), vec.offset(vec.pointer(y), at))
        return []

    repeat(vec, I64(0), builder.mul(rows, taps), [], pixel)


_call_plane = normalise_plane.caller()


@kernel("plane x y numbers scales units rows taps blocks x_image x_block y_image y_block")
def normalise(tile, worker, before, part, parts, args):
    """Normalise each plane of x to y."""
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        image = unit // args.blocks
        block = unit - image * args.blocks
        x = args.x + image * args.x_image + block * args.x_block
        y = args.y + image * args.y_image + block * args.y_block
        _call_plane(
            args.plane,
            x=x,
            rows=args.rows,
            taps=args.taps,
            y=y,
            numbers=args.numbers,
            scale=args.scales + block * 8 * tile.lanes,
        )


def normalise_step(
    isa: Isa, x: TensorView, y: TensorView, scale: np.ndarray, bias: np.ndarray, epsilon: float, parts: int
) -> Step:
    """Make the call that normalises each plane of the blocked `x` to `y`, with a scale and a bias per channel."""
    n, blocks, h, w, lanes = x.physical
    scales = np.zeros((2, blocks * lanes), np.float32)
    scales[:, : x.shape[1]] = scale, bias
    rows, taps = plane_shape(h, w)
    tile = PlaneTile(isa.lanes)
    args: Args = {
        "plane": MicroRef(normalise_plane, tile),
        "x": x.ref,
        "y": y.ref,
        "numbers": np.array([1 / (h * w), epsilon], np.float32),
        "scales": np.ascontiguousarray(scales.reshape(2, blocks, lanes).swapaxes(0, 1)),
        "units": n * blocks,
        "rows": rows,
        "taps": taps,
        "blocks": blocks,
        "x_image": x.strides[0],
        "x_block": x.strides[1],
        "y_image": y.strides[0],
        "y_block": y.strides[1],
    }
    return Step(normalise, tile, args, parts)
