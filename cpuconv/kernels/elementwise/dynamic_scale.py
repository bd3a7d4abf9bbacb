"""DynamicQuantizeLinear's scale and zero point: minimum and maximum (with zero) of a tensor in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32, U8
from cpuconv.isa.typed import load_as_float
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.fold import FOLDS, repeat
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_TOGETHER = 4  # independent vectors per iteration, to hide the latency of comparisons
_ENDS = ("min", "max")


@dataclass(frozen=True)
class DynamicScaleTile:
    """Tile of the kernel: float32 lanes per vector."""

    lanes: int


@MicroKernel
def find_scale(
    tile: DynamicScaleTile, builder: ir.IRBuilder, x: Any, image: Any, images: Any, count: Any, scale: Any, zero: Any
) -> None:
    """Store float32 `scale` and uint8 `zero` for `images` images of `count` float32 each, `image` bytes apart."""
    vec = Vector(builder, tile.lanes)
    eights, vectors = (builder.udiv(count, I64(size * vec.lanes)) for size in (_TOGETHER, 1))

    def folded(value: Any, ends: Sequence[Any]) -> list[Any]:
        return [FOLDS[name](vec, end, value) for name, end in zip(_ENDS, ends, strict=True)]

    def whole_image(number: Any, ends: list[Any]) -> list[Any]:
        start = builder.add(x, builder.mul(number, image))

        def at(index: Any, mask: Any = None) -> Any:
            place = builder.add(start, builder.mul(index, I64(vec.size)))
            return load_as_float(vec, F32, vec.pointer(place), mask)

        def several(index: Any, ends: list[Any]) -> list[Any]:
            first = builder.mul(index, I64(_TOGETHER))
            values = [at(builder.add(first, I64(i))) for i in range(_TOGETHER)]
            pairs = [folded(value, ends[2 * i : 2 * i + 2]) for i, value in enumerate(values)]
            return [end for pair in pairs for end in pair]

        def one(index: Any, ends: list[Any]) -> list[Any]:
            return [*folded(at(index), ends[:2]), *ends[2:]]

        ends = repeat(vec, I64(0), eights, ends, several)
        ends = repeat(vec, builder.mul(eights, I64(_TOGETHER)), vectors, ends, one)
        # masked lanes are 0, which is in the range anyway
        rest = at(vectors, first_lanes(vec, builder.urem(count, I64(vec.lanes))))
        return [*folded(rest, ends[:2]), *ends[2:]]

    ends = repeat(vec, I64(0), images, [vec.constant(0.0)] * 2 * _TOGETHER, whole_image)
    low, high = (_reduce_lanes(vec, name, ends[at::2]) for at, name in enumerate(_ENDS))
    span = vec.sub(high, low)
    step = vec.div(span, vec.constant(255.0))
    step = builder.select(builder.fcmp_ordered("==", step, vec.constant(0.0)), vec.constant(1.0), step)
    point = vec.nearest_int(vec.clip(vec.div(vec.negative(low), step), 0.0, 255.0))
    first, byte = ir.IntType(32)(0), ir.IntType(8)
    builder.store(builder.extract_element(step, first), builder.inttoptr(scale, ir.FloatType().as_pointer()))
    whole = builder.trunc(builder.extract_element(point, first), byte)
    builder.store(whole, builder.inttoptr(zero, byte.as_pointer()))


def _reduce_lanes(vec: Vector, name: str, values: Sequence[Any]) -> Any:
    """Reduce all lanes of the vectors; the result is in each lane."""
    value, *others = values
    for other in others:
        value = FOLDS[name](vec, value, other)
    step = vec.lanes // 2
    while step:
        turned = vec.shuffle(value, value, [(lane + step) % vec.lanes for lane in range(vec.lanes)])
        value, step = FOLDS[name](vec, value, turned), step // 2
    return value


_call = find_scale.caller()


@kernel("find_scale x image images count scale zero")
def dynamic_scale(tile, worker, before, part, parts, args):
    """Run serially, in one part: memory bandwidth is the limit."""
    _call(
        args.find_scale,
        x=args.x,
        image=args.image,
        images=args.images,
        count=args.count,
        scale=args.scale,
        zero=args.zero,
    )


def dynamic_scale_step(processor: Processor, x: TensorView, scale: TensorView, zero: TensorView) -> Step:
    """Make the call for float32 x, dense or blocked, whose images may be apart; `scale` is float32, `zero` uint8."""
    assert (x.element, scale.element, zero.element) == (F32, F32, U8)
    images, size = x.shape[0] if x.shape else 1, x.size // (x.shape[0] if x.shape else 1)
    args: Args = {
        "find_scale": MicroRef(find_scale, DynamicScaleTile(processor.isa.lanes)),
        "x": x.ref,
        "image": x.strides[0] if x.shape else size,
        "images": images,
        "count": size // F32.bytes,
        "scale": scale.ref,
        "zero": zero.ref,
    }
    return Step(dynamic_scale, DynamicScaleTile(processor.isa.lanes), args, 1)
