"""Operations along one axis of plain tensors, such as a softmax or a sum.

A tensor is viewed as (outer, axis, inner), where `axis` may merge several adjacent axes. A line is the elements along
`axis`. With inner = 1 lines are contiguous, and the lanes of a vector are elements of one line; otherwise lanes are
adjacent lines. One micro-kernel makes a few passes over a line, which stays in L1 or L2. A short contiguous line stays
in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import Vector
from cpuconv.kernels.axis.axis_emitter import At, AxisLoops, AxisTile
from cpuconv.kernels.elementwise.exponential import exp_below
from cpuconv.kernels.elementwise.functions import EMITTERS, Math
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel
from cpuconv.runtime.microkernel import MicroKernel

_log = EMITTERS["log"]


# --- operations on a line -------------------------------------------------------------------------------------------


def _softmax(loops: AxisLoops) -> None:
    """exp(x - max) / sum of exp(x - max)."""
    vec = loops.vec
    top = loops.reduce("top", At.input)
    total = loops.reduce("sum", lambda at: at.save(exp_below(vec, vec.sub(at.input(), top[at.column]))))
    inverse = [vec.div(vec.constant(1.0), value) for value in total]
    loops.each(lambda at: at.store(vec.mul(at.saved(), inverse[at.column])))


def _log_softmax(loops: AxisLoops) -> None:
    """x - max - log(sum of exp(x - max))."""
    vec = loops.vec
    top = loops.reduce("top", At.input)
    total = loops.reduce("sum", lambda at: exp_below(vec, vec.sub(at.input(), top[at.column])))
    less = [_log(vec, value) for value in total]
    loops.each(lambda at: at.store(vec.sub(vec.sub(at.input(), top[at.column]), less[at.column])))


def _standard(loops: AxisLoops, affine: Callable[[At, Any], Any]) -> None:
    """affine((x - mean) / sqrt(variance + epsilon))."""
    vec = loops.vec
    mean = [vec.div(value, loops.count) for value in loops.reduce("sum", At.input)]

    def square(at: At) -> Any:
        away = vec.sub(at.input(), mean[at.column])
        return vec.mul(away, away)

    epsilon = vec.constant(loops.tile.epsilon)
    variance = [vec.add(vec.div(value, loops.count), epsilon) for value in loops.reduce("sum", square)]
    inverse = [vec.div(vec.constant(1.0), vec.square_root(value)) for value in variance]
    loops.each(lambda at: at.store(affine(at, vec.mul(vec.sub(at.input(), mean[at.column]), inverse[at.column]))))


def _layer_normalization(loops: AxisLoops) -> None:
    """Normalise a line, with a scale and a bias per element."""
    vec = loops.vec

    def affine(at: At, value: Any) -> Any:
        scale = at.load(vec.offset(loops.scale, at.offset))
        if not loops.tile.shift:
            return vec.mul(value, scale)
        return vec.fma(value, scale, at.load(vec.offset(loops.bias, at.offset)))

    _standard(loops, affine)


def _instance_normalization(loops: AxisLoops) -> None:
    """Normalise a line, with one scale and one bias."""
    vec = loops.vec
    scale, bias = vec.broadcast(loops.scale), vec.broadcast(loops.bias)
    _standard(loops, lambda at, value: vec.fma(value, scale, bias))


def _reduction(
    kind: str, of: Callable[[Math, Any], Any], end: Callable[[Math, Any, Any], Any]
) -> Callable[[AxisLoops], None]:
    """Make an emitter of end(reduction of of(x), number of elements)."""

    def emit(loops: AxisLoops) -> None:
        values = loops.reduce(kind, lambda at: of(loops.vec, at.input()))
        loops.result([end(loops.vec, value, loops.count) for value in values])

    return emit


def reduces(operation: str) -> bool:
    """Whether an operation gives one element per line."""
    return operation.startswith("Reduce")


def _itself(vec: Math, x: Any, count: Any = None) -> Any:
    return x


def _square(vec: Math, x: Any) -> Any:
    return vec.mul(x, x)


OPERATIONS: dict[str, Callable[[AxisLoops], None]] = {
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "LayerNormalization": _layer_normalization,
    "InstanceNormalization": _instance_normalization,
    "ReduceSum": _reduction("sum", _itself, _itself),
    "ReduceMean": _reduction("sum", _itself, Vector.div),
    "ReduceMax": _reduction("max", _itself, _itself),
    "ReduceMin": _reduction("min", _itself, _itself),
    "ReduceProd": _reduction("prod", _itself, _itself),
    "ReduceL1": _reduction("sum", Vector.absolute, _itself),
    "ReduceL2": _reduction("sum", _square, lambda vec, x, count: vec.square_root(x)),
    "ReduceSumSquare": _reduction("sum", _square, _itself),
    "ReduceLogSum": _reduction("sum", _itself, lambda vec, x, count: _log(vec, x)),
}
"""Emitters of the operations on a line, by operator name."""


# --- the kernel -----------------------------------------------------------------------------------------------------


@MicroKernel
def work_on_line(
    tile: AxisTile,
    builder: ir.IRBuilder,
    x: Any,
    x_step: Any,
    y: Any,
    y_step: Any,
    size: Any,
    valid: Any,
    scale: Any,
    bias: Any,
    numbers: Any,
    scratch: Any,
) -> None:
    """Run the operation of a tile on a line of `size` (>= 1) elements, or on vectors of adjacent lines.

    Parameters
    ----------
    x_step, y_step
        Across: bytes between elements of a line. Several lines: `x_step` has the bytes between them.
    valid
        Masked: number of lanes that are lines.
    numbers
        Four float32: scale and zero point of an integer input, then of an integer output.
    scratch
        Scratch memory for float32 values of a line, if `tile.scratch` is not 0.
    """
    vec = Math(builder, tile.lanes)
    x, y, scale, bias, numbers, scratch = (vec.pointer(each) for each in (x, y, scale, bias, numbers, scratch))
    loops = AxisLoops(tile, vec, x, x_step, y, y_step, size, valid, scale, bias, numbers, scratch)
    OPERATIONS[tile.operation](loops)
    loops.finish()


call_work = work_on_line.caller()


@dataclass(frozen=True)
class AxisDriverTile:
    """Tile: lanes of the instruction set, vectors per call of the micro-kernel for many lines, bytes of elements."""

    lanes: int
    vectors: int
    x_bytes: int = 4
    y_bytes: int = 4


@kernel(
    "micro micro_last x y scale bias images rows blocks wide inner x_image x_row x_step y_image y_row y_step size "
    "channels channel_step numbers scratch scratch_step"
)
def work_on_lines(tile, worker, before, part, parts, args):
    """Run the micro-kernels on all lines, by units (image, row, block of adjacent lines).

    `wide` blocks have `tile.vectors` vectors of lines, the others one vector.
    """
    units = args.images * args.rows * args.blocks
    first_unit, last_unit = units * part // parts, units * (part + 1) // parts
    line = first_unit // args.blocks
    block = first_unit - line * args.blocks
    image = line // args.rows
    row = line - image * args.rows
    channel = line % args.channels
    for _ in range(first_unit, last_unit):
        vector = block * tile.vectors if block < args.wide else block + args.wide * (tile.vectors - 1)
        first = vector * tile.lanes
        call_work(
            args.micro if block < args.wide else args.micro_last,
            x=args.x + image * args.x_image + row * args.x_row + tile.x_bytes * first,
            x_step=args.x_step,
            y=args.y + image * args.y_image + row * args.y_row + tile.y_bytes * first,
            y_step=args.y_step,
            size=args.size,
            valid=min(tile.lanes, args.inner - first),
            scale=args.scale + channel * args.channel_step,
            bias=args.bias + channel * args.channel_step,
            numbers=args.numbers,
            scratch=args.scratch + worker * args.scratch_step,
        )
        block += 1  # counters, as three divisions take as long as a short line
        if block == args.blocks:
            block = 0
            row += 1
            channel += 1
            if row == args.rows:
                row = 0
                image += 1
            if channel == args.channels:
                channel = 0
