"""Loop nests over an output and its operands: axes that are contiguous with each other in all are merged.

Blocks of narrow elements are split into vectors of as many channels as a vector has lanes, so that they can be combined
with blocks of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cpuconv.elements import F32
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.movement import merge_axes
from cpuconv.problem.integers import divide


class Axis(NamedTuple):
    """An axis of the output: its size, and strides in bytes of the output and each operand."""

    size: int
    steps: tuple[int, ...]


class LoopNest(NamedTuple):
    """A part of the output for one loop nest: sizes of its axes; for the output and each operand, byte offset of the
    first element and stride of each axis."""

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]

    @property
    def axes(self) -> list[Axis]:
        """The merged axes, at least one."""
        made = [Axis(size, tuple(steps)) for size, *steps in merge_axes(zip(self.sizes, *self.steps, strict=True))]
        return made or [Axis(1, (F32.bytes, *[0] * (len(self.steps) - 1)))]


def _steps(place: TensorView, output: TensorView) -> tuple[int, ...]:
    """Byte strides of `place` along each physical axis of the output to which it is broadcast."""
    steps = [step if size > 1 else 0 for step, size in zip(place.strides, place.physical, strict=True)]
    if output.block == 1 or place.block > 1:
        return (*[0] * (len(output.physical) - len(steps)), *steps)
    n, _, *plane = [0] * (len(output.shape) - len(steps)) + steps  # equal for all channels
    return (n, 0, *[0] * (2 - len(plane)), *plane, 0)


def loop_nests(output: TensorView, operands: Sequence[TensorView], lanes: int) -> list[LoopNest]:
    """Split the output into loop nests: usually one. Where block sizes differ or exceed a vector, one is over whole
    blocks of the widest type in vectors of `lanes` channels, one over the remaining vectors."""
    places = (output, *operands)
    steps = [_steps(place, output) for place in places]
    blocks = {place.block for place in places if place.block > 1}
    whole = LoopNest(output.physical, (0,) * len(places), tuple(steps))
    if blocks <= {lanes} or len(blocks) == 1 and len(whole.axes) == 1:
        return [whole]
    (n, _, h, w, _), widest = output.physical, max(blocks)
    side = widest // lanes
    vectors = divide(output.shape[1], lanes) if lanes in blocks else divide(output.shape[1], widest) * side

    def part(first: int, count: int, vectors: int) -> LoopNest:
        """Make the loop nest of `count` blocks from `first` on, of `vectors` vectors each."""
        starts, nested = [], []
        for place, (image, block, *plane, lane) in zip(places, steps, strict=True):
            wide = place.block == widest
            each, vector = (block, lanes * lane) if wide else (side * block, block)
            starts.append(first * each)
            nested.append((image, each, vector, *plane, lane))
        return LoopNest((n, count, vectors, h, w, lanes), tuple(starts), tuple(nested))

    full, left = divmod(vectors, side)
    return [*([part(0, full, side)] if full else []), *([part(full, 1, left)] if left else [])]


def crossed(operand: TensorView, output: TensorView, lanes: int) -> bool:
    """Whether an operand of a plain output is contiguous along another long axis than the output is.

    Read in place, each of its cache lines would be loaded once per element: transposing it first is faster.
    """
    if operand.block > 1 or output.block > 1:
        return False
    *outer, inner = loop_nests(output, [operand], lanes)[0].axes
    written, read = output.dtype.itemsize, operand.dtype.itemsize
    adjacent = any(axis.steps[1] == read and axis.size >= lanes for axis in outer)
    return inner.steps[0] == written and inner.size >= lanes and inner.steps[1] not in (0, read) and adjacent
