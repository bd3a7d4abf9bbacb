"""Sliding window over spatial axes, shared by convolutions and poolings.

Source: ONNX operators Conv, ConvTranspose, MaxPool and AveragePool; sizes as in their shape inference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.problem.reference import overlap

Index = tuple[Any, ...]  # index of an array's last axes


@dataclass(frozen=True)
class Window:
    """Window of ``kernel`` taps per axis that slides over the input, once per output position.

    Attributes
    ----------
    sizes : tuple[int, ...]
        Sizes of the input's spatial axes.
    kernel, strides, dilations : tuple[int, ...]
        One number per axis.
    near, far : tuple[int, ...]
        Padding before and after each axis.
    outputs : tuple[int, ...]
        Window positions per axis.
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
        """Make the window of a convolution or pooling from its ONNX attributes and the input's spatial `sizes`."""
        rank = len(sizes)
        strides, dilations = tuple(attributes["strides"] or [1] * rank), tuple(attributes["dilations"] or [1] * rank)
        reach = [(taps - 1) * gap + 1 for taps, gap in zip(kernel, dilations, strict=True)]
        if len(kernel) != rank or len(strides) != rank or min(kernel) < 1 or min(strides) < 1 or min(dilations) < 1:
            raise ValueError(f"kernel {kernel}, strides {strides} and dilations {dilations} over {rank} axes")
        if attributes["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
            outputs = [-(-size // step) for size, step in zip(sizes, strides, strict=True)]
            columns = zip(outputs, strides, reach, sizes, strict=True)
            total = [(count - 1) * step + span - size for count, step, span, size in columns]
            near, far = split_padding(total, attributes["auto_pad"] == "SAME_LOWER")
        else:
            near, far = stated_pads(attributes, rank)
            up = attributes.get("ceil_mode", 0)
            outputs = list(map(_positions, sizes, strides, reach, near, far, [up] * rank))
        if any(count < 0 for count in outputs):
            raise ValueError(f"a window of {reach} on an input of {tuple(sizes)} with padding {(*near, *far)}")
        spans = map(sum, zip(sizes, near, far, strict=True))  # a larger stride has no further output
        strides = tuple(min(step, max(1, span)) for step, span in zip(strides, spans, strict=True))
        return cls(tuple(sizes), tuple(kernel), strides, dilations, tuple(near), tuple(far), tuple(outputs))

    def taps(self) -> Iterator[tuple[Index, Index, Index]]:
        """Iterate over the taps that read input at some output: their index, these outputs, and the inputs read."""
        for tap in itertools.product(*self.used_taps()):
            offsets = [at * gap - pad for at, gap, pad in zip(tap, self.dilations, self.near, strict=True)]
            pairs = list(map(overlap, offsets, self.strides, self.sizes, self.outputs))
            yield (..., *tap), (..., *(out for out, _ in pairs)), (..., *(read for _, read in pairs))

    def used_taps(self) -> list[range]:
        """Taps of each axis that read input at some output."""
        return list(map(_used_taps, *self._axes()))

    def counts(self, padded: bool = False) -> np.ndarray:
        """Count the taps at each output that are inside the input, or inside input and padding if `padded`."""
        counts = np.ones((), np.int64)
        for kernel, gap, step, size, near, far, outputs in zip(*self._axes(), strict=True):
            first = np.arange(outputs) * step - near  # window start, relative to the input's first element
            lowest, highest = (-near, size + far) if padded else (0, size)
            behind = np.clip(-(-(highest - first) // gap), 0, kernel)
            before = np.clip(-(-(lowest - first) // gap), 0, kernel)
            counts = counts[..., None] * (behind - before)
        return counts

    def _axes(self) -> tuple[tuple[int, ...], ...]:
        return self.kernel, self.dilations, self.strides, self.sizes, self.near, self.far, self.outputs


def _used_taps(kernel: int, gap: int, step: int, size: int, near: int, far: int, outputs: int) -> range:
    """Taps of an axis that read input at some output: few for a wide window that is mostly over padding."""
    first = -(-(near - (outputs - 1) * step) // gap)
    return range(max(0, first), min(kernel, (size - 1 + near) // gap + 1))


def stated_pads(attributes: Mapping[str, Any], rank: int) -> tuple[list[int], list[int]]:
    """Padding before and after each axis from the attributes; zeros if they state none."""
    pads = attributes["pads"] if attributes["pads"] and attributes["auto_pad"] == "NOTSET" else [0] * 2 * rank
    if len(pads) != 2 * rank:
        raise ValueError(f"{len(pads)} pads of {rank} axes")
    return pads[:rank], pads[rank:]


def split_padding(total: Sequence[int], lower: bool) -> tuple[list[int], list[int]]:
    """Split the total padding of each axis; an odd element goes after, or before if `lower`. Negative totals are 0."""
    less = [max(0, pad) // 2 for pad in total]
    more = [max(0, pad) - half for pad, half in zip(total, less, strict=True)]
    return (more, less) if lower else (less, more)


def _positions(size: int, step: int, span: int, near: int, far: int, up: bool) -> int:
    """Number of window positions. Rounding up adds a partial one, unless it starts beyond input and near padding."""
    room = near + size + far - span
    count = -(-room // step) + 1 if up else room // step + 1
    return count - 1 if up and (count - 1) * step >= size + near else count
