"""Instance normalisation of blocked tensors, by mean and variance of each channel of an image or a volume.

Units of work are (image, vector of channels). An image is normalised by its own mean and variance, in three passes over
it. A volume is several images, its depth slices: a first call computes the moments of every image, a second one merges
those of a volume (Chan et al., "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.isa.typed import load_as_float, store_float
from cpuconv.isa.vector import F32 as FLOAT
from cpuconv.isa.vector import I64
from cpuconv.kernels.binding.arguments import stride_args
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.elementwise.expression import Expression, Operand, apply
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.windows.spatial import Rectangle, plane_shape
from cpuconv.problem import activation as activations
from cpuconv.problem.activation import Activation
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel


@dataclass(frozen=True)
class NormTile:
    """Element types of input and output, what is added to the normalised elements, and whether units are volumes."""

    lanes: int
    x: Element = F32
    y: Element = F32
    volumes: bool = False
    residual: bool = False
    activation: Activation | None = None

    @property
    def pixel(self) -> int:
        """Bytes from a pixel of a channel block to the next."""
        return F32.bytes * self.lanes


def _float(builder: ir.IRBuilder, number: Any) -> Any:
    return builder.sitofp(number, FLOAT)


def _moments(tile: NormTile, vec: Math, x: Any, rows: Any, taps: Any) -> tuple[Any, Any]:
    """Emit the mean of `rows` x `taps` pixels, and the sum of their squared distances from it."""
    builder = vec.builder
    plane = Rectangle(x, builder.mul(taps, I64(tile.pixel)), rows, I64(tile.pixel), taps, tile.x)
    count = _float(builder, builder.mul(rows, taps))
    mean = vec.mul(plane.fold(vec, "sum"), vec.splat(builder.fdiv(FLOAT(1), count)))

    def squared(value: Any) -> Any:
        distance = vec.sub(value, mean)
        return vec.mul(distance, distance)

    return mean, plane.fold(vec, "sum", squared)


@MicroKernel
def image_moments(tile: NormTile, builder: ir.IRBuilder, x: Any, rows: Any, taps: Any, moments: Any) -> None:
    """Store the mean of `rows` x `taps` pixels, and the sum of their squared distances from it, as two vectors."""
    vec = Math(builder, tile.lanes)
    for at, value in enumerate(_moments(tile, vec, x, rows, taps)):
        vec.store(value, vec.offset(vec.pointer(moments), at * vec.size))


def _merged(vec: Math, pixels: Any, moments: Any, images: Any, step: Any) -> tuple[Any, Any]:
    """Emit the moments of `images` of `pixels` each from those at `moments`, `step` bytes apart."""
    builder = vec.builder

    def at(index: Any, number: int) -> Any:
        return vec.load(vec.offset(vec.pointer(builder.add(moments, builder.mul(index, step))), number * vec.size))

    zero = vec.constant(0.0)
    (total,) = repeat(vec, I64(0), images, [zero], lambda index, sums: [vec.add(sums[0], at(index, 0))])
    mean = vec.div(total, vec.splat(_float(builder, images)))

    def squared(index: Any, sums: list[Any]) -> list[Any]:
        distance = vec.sub(at(index, 0), mean)
        return [vec.fma(distance, distance, sums[0]), vec.add(sums[1], at(index, 1))]

    between, within = repeat(vec, I64(0), images, [zero, zero], squared)
    return mean, vec.fma(between, vec.splat(_float(builder, pixels)), within)


@MicroKernel
def normalise_image(
    tile: NormTile,
    builder: ir.IRBuilder,
    x: Any,
    rows: Any,
    taps: Any,
    y: Any,
    added: Any,
    moments: Any,
    images: Any,
    step: Any,
    epsilon: Any,
    scale: Any,
) -> None:
    """y = activation((x - mean) / sqrt(variance + epsilon) * scale + bias + added), over `rows` x `taps` pixels.

    Parameters
    ----------
    added
        Address of the residual.
    moments, images, step
        Of volumes: address of the moments of the first image, number of images, and bytes between moments.
    epsilon
        Address of a float32.
    scale
        Address of three vectors: scales, biases, and 1 for each channel, 0 for other lanes.
    """
    vec = Math(builder, tile.lanes)
    pixels, scale = builder.mul(rows, taps), vec.pointer(scale)
    if tile.volumes:
        mean, squares = _merged(vec, pixels, moments, images, step)
        count = builder.mul(pixels, images)
    else:
        (mean, squares), count = _moments(tile, vec, x, rows, taps), pixels
    variance = vec.div(squares, vec.splat(_float(builder, count)))
    deviation = vec.square_root(vec.add(variance, vec.broadcast(vec.pointer(epsilon))))
    factor = vec.div(vec.load(scale), deviation)
    bias, channels = (vec.load(vec.offset(scale, number * vec.size)) for number in (1, 2))
    tree = apply("add", Operand(0), Operand(1)) if tile.residual else Operand(0)
    if tile.activation is not None:
        tree = apply(tile.activation[0], tree, *tile.activation[1:])
    zeroed = tile.activation is not None and activations.apply(np.zeros(1), tile.activation).any()

    def pixel(index: Any, values: list[Any]) -> list[Any]:
        def at(address: Any) -> Any:
            return vec.pointer(builder.add(address, builder.mul(index, I64(tile.pixel))))

        value = vec.fma(vec.sub(load_as_float(vec, tile.x, at(x)), mean), factor, bias)
        operands: dict[Expression, Any] = {Operand(0): value}
        if tile.residual:
            operands[Operand(1)] = load_as_float(vec, tile.y, at(added))
        value = tree.emit(vec, operands)
        store_float(vec, tile.y, vec.mul(value, channels) if zeroed else value, at(y))
        return []

    repeat(vec, I64(0), pixels, [], pixel)


_call_moments, _call_image = image_moments.caller(), normalise_image.caller()


@kernel("image x moments units rows taps vectors wide half x_image x_block")
def measure(tile, worker, before, part, parts, args):
    """Compute the moments of each channel of each image."""
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        image = unit // args.vectors
        vector = unit - image * args.vectors
        x = args.x + image * args.x_image + vector // args.wide * args.x_block + vector % args.wide * args.half
        _call_moments(args.image, x=x, rows=args.rows, taps=args.taps, moments=args.moments + unit * 8 * tile.lanes)


@kernel(
    "image x y added moments epsilon scales units rows taps vectors volumes images"
    " wide half x_image x_block y_wide y_half y_image y_block added_image added_block"
)
def normalise(tile, worker, before, part, parts, args):
    """Normalise each channel of each image."""
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        image = unit // args.vectors
        vector = unit - image * args.vectors
        block = vector // args.y_wide
        start = vector % args.y_wide * args.y_half
        x = args.x + image * args.x_image + vector // args.wide * args.x_block + vector % args.wide * args.half
        _call_image(
            args.image,
            x=x,
            rows=args.rows,
            taps=args.taps,
            y=args.y + image * args.y_image + block * args.y_block + start,
            added=args.added + image * args.added_image + block * args.added_block + start,
            moments=args.moments + (image % args.volumes * args.vectors + vector) * 8 * tile.lanes,
            images=args.images,
            step=args.volumes * args.vectors * 8 * tile.lanes,
            epsilon=args.epsilon,
            scale=args.scales + vector * 12 * tile.lanes,
        )


def normalise_steps(
    processor: Processor,
    space: Space,
    x: TensorView,
    y: TensorView,
    affine: tuple[np.ndarray, np.ndarray],
    epsilon: float,
    volumes: int = 0,
    residual: TensorView | None = None,
    activation: Activation | None = None,
) -> list[Step]:
    """Make the calls that normalise the blocked `x` to `y`, with scale and bias per channel, and an epilogue.

    `volumes`: number of volumes, whose depth slices are the images, the first slices of all volumes first; 0: images
    are normalised by themselves. `x` has at least as many vectors of channels as `y`; the residual has the form of `y`.
    """
    lanes = processor.isa.lanes
    n, blocks, h, w, _ = y.physical
    wide, y_wide = x.block // lanes, y.block // lanes
    vectors = blocks * y_wide
    scales = np.zeros((3, vectors * lanes), np.float32)
    scales[:2, : x.shape[1]], scales[2, : x.shape[1]] = affine, 1
    rows, taps = plane_shape(h, w)
    tile = NormTile(lanes, x.element, y.element, volumes > 0, residual is not None, activation)
    added = y if residual is None else residual
    read: Args = {
        "x": x.ref,
        "units": n * vectors,
        "rows": rows,
        "taps": taps,
        "vectors": vectors,
        "wide": wide,
        "half": lanes * x.element.bytes,
        **stride_args("x", x.strides, "image block"),
        "moments": space.reserve(n * vectors * 2 * tile.pixel) if volumes else 0,
    }
    written: Args = {
        "image": MicroRef(normalise_image, tile),
        "y": y.ref,
        "added": added.ref,
        "epsilon": np.array([epsilon], np.float32),
        "scales": np.ascontiguousarray(scales.reshape(3, vectors, lanes).swapaxes(0, 1)),
        "volumes": max(1, volumes),
        "images": n // max(1, volumes),
        "y_wide": y_wide,
        "y_half": lanes * y.element.bytes,
        **stride_args("y", y.strides, "image block"),
        **stride_args("added", added.strides, "image block"),
    }
    parts = processor.parts(x.size + y.size)
    steps = [Step(normalise, tile, {**read, **written}, parts)]
    if volumes:
        first = NormTile(lanes, x.element)
        steps.insert(0, Step(measure, first, {**read, "image": MicroRef(image_moments, first)}, parts))
    return steps
