"""A window that slides over the spatial axes: what convolutions and poolings have in common.

Source: ONNX operators Conv, ConvTranspose, MaxPool and AveragePool; sizes as in their shape inference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.problem.reference import overlap

Index = tuple[Any, ...]  # of the last axes of an array


@dataclass(frozen=True)
class Window:
    """A window of ``kernel`` taps an axis, from every output position onto the input.

    Attributes
    ----------
    sizes : tuple[int, ...]
        Of the input's spatial axes.
    kernel, strides, dilations : tuple[int, ...]
        One number an axis.
    near, far : tuple[int, ...]
        Padding before and behind each axis.
    outputs : tuple[int, ...]
        Positions of the window on each axis.
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    near: tuple[int, ...]
    far: tuple[int, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, attributes: Mapping[str, Any], sizes: Sequence[int], kernel: Sequence[int]) -> Window:
        """The window of a convolution or pooling, by its ONNX attributes, over an input of spatial `sizes`."""
        rank = len(sizes)
        strides, dilations = tuple(attributes["strides"] or [1] * rank), tuple(attributes["dilations"] or [1] * rank)
        reach = [(taps - 1) * gap + 1 for taps, gap in zip(kernel, dilations, strict=True)]
        if len(kernel) != rank or len(strides) != rank or min(kernel) < 1 or min(strides) < 1 or min(dilations) < 1:
            raise ValueError(f"kernel {kernel}, strides {strides} and dilations {dilations} over {rank} axes")
        if attributes["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
            outputs = [-(-size // step) for size, step in zip(sizes, strides, strict=True)]
            columns = zip(outputs, strides, reach, sizes, strict=True)
            total = [(count - 1) * step + span - size for count, step, span, size in columns]
            near, far = halves(total, attributes["auto_pad"] == "SAME_LOWER")
        else:
            near, far = stated_pads(attributes, rank)
            up = attributes.get("ceil_mode", 0)
            outputs = list(map(_positions, sizes, strides, reach, near, far, [up] * rank))
        if any(count < 0 for count in outputs):
            raise ValueError(f"a window of {reach} on an input of {tuple(sizes)} with padding {(*near, *far)}")
        spans = map(sum, zip(sizes, near, far, strict=True))  # beyond which a step leads nowhere, however far
        strides = tuple(min(step, max(1, span)) for step, span in zip(strides, spans, strict=True))
        return cls(tuple(sizes), tuple(kernel), strides, dilations, tuple(near), tuple(far), tuple(outputs))

    def taps(self) -> Iterator[tuple[Index, Index, Index]]:
        """Each tap that ever meets the input, the outputs for which it does, and the inputs that it then reads."""
        for tap in itertools.product(*self.meeting()):
            offsets = [at * gap - pad for at, gap, pad in zip(tap, self.dilations, self.near, strict=True)]
            pairs = list(map(overlap, offsets, self.strides, self.sizes, self.outputs))
            yield (..., *tap), (..., *(out for out, _ in pairs)), (..., *(read for _, read in pairs))

    def meeting(self) -> list[range]:
        """The taps of each axis that meet the input at one of the outputs."""
        return list(map(_meeting, *self._axes()))

    def counts(self, padded: bool = False) -> np.ndarray:
        """How many taps of the window at each output lie inside the input; inside input and padding if `padded`."""
        counts = np.ones((), np.int64)
        for kernel, gap, step, size, near, far, outputs in zip(*self._axes(), strict=True):
            first = np.arange(outputs) * step - near  # where the window begins, counted from the input's first element
            lowest, highest = (-near, size + far) if padded else (0, size)
            behind = np.clip(-(-(highest - first) // gap), 0, kernel)
            before = np.clip(-(-(lowest - first) // gap), 0, kernel)
            counts = counts[..., None] * (behind - before)
        return counts

    def _axes(self) -> tuple[tuple[int, ...], ...]:
        return self.kernel, self.dilations, self.strides, self.sizes, self.near, self.far, self.outputs


def _meeting(kernel: int, gap: int, step: int, size: int, near: int, far: int, outputs: int) -> range:
    """The taps of an axis that meet the input at one of the outputs: of a wide window over padding, few."""
    first = -(-(near - (outputs - 1) * step) // gap)
    return range(max(0, first), min(kernel, (size - 1 + near) // gap + 1))


def stated_pads(attributes: Mapping[str, Any], rank: int) -> tuple[list[int], list[int]]:
    """Padding before and behind each axis, as attributes state it; none where they do not."""
    pads = attributes["pads"] if attributes["pads"] and attributes["auto_pad"] == "NOTSET" else [0] * 2 * rank
    if len(pads) != 2 * rank:
        raise ValueError(f"{len(pads)} pads of {rank} axes")
    return pads[:rank], pads[rank:]


def halves(total: Sequence[int], lower: bool) -> tuple[list[int], list[int]]:
    """Padding before and behind each axis, what is odd behind, or `lower` before; none where it is negative."""
    less = [max(0, pad) // 2 for pad in total]
    more = [max(0, pad) - half for pad, half in zip(total, less, strict=True)]
    return (more, less) if lower else (less, more)


def _positions(size: int, step: int, span: int, near: int, far: int, up: bool) -> int:
    """Positions of a window; rounding up, one more that hangs over, unless it would start behind input and near pad."""
    room = near + size + far - span
    count = -(-room // step) + 1 if up else room // step + 1
    return count - 1 if up and (count - 1) * step >= size + near else count
