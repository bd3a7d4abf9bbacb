"""Images as kernels sample them: channels are contiguous, and byte offsets within an image are int32."""

from __future__ import annotations

import math

from cpuconv.elements import F32
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.moving import move_tensor
from cpuconv.kernels.sampling.sums import SumTile
from cpuconv.problem.integers import divide
from cpuconv.symbolic.sizes import is_symbolic

MAX_IMAGE = 1 << 31  # bytes of an image


def channels_last(
    processor: Processor, space: Space, x: TensorView, planes: bool = False
) -> tuple[list[Step], TensorView]:
    """Copy images (N, C, sizes...) of any strides, if needed, so that channels are contiguous; return calls and images.

    `planes`: channels need not be contiguous.
    """
    _, c, *sizes = x.shape
    span = sum(size * abs(stride) for size, stride in zip(sizes, x.strides[2:], strict=True))
    if (planes or x.strides[1] == F32.bytes) and span < MAX_IMAGE:
        return [], x
    lanes = processor.isa.lanes
    pitch = (c if c < lanes else divide(c, lanes) * lanes) * F32.bytes
    starts = [math.prod(sizes[at:]) * pitch for at in range(len(sizes) + 1)]
    copied = TensorView(space.reserve(x.shape[0] * starts[0]), x.shape, (starts[0], F32.bytes, *starts[1:]))
    return move_tensor(processor, space, x, copied), copied


def sum_tile(lanes: int, taps: int, channels: int, adds: bool = False) -> SumTile:
    """Tile of sums over whole vectors of channels, two simultaneously, where the channels are known to fill them."""
    partial = is_symbolic(channels) or channels % lanes != 0
    together = 2 if not partial and channels // lanes % 2 == 0 else 1
    return SumTile(lanes, taps, together, partial, adds)
