"""A window that slides over the spatial axes: what convolutions and poolings have in common.

Source: ONNX operators Conv, ConvTranspose, MaxPool and AveragePool; sizes as in their shape inference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cpuconv.graph.ir import Node
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
    def of(cls, node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
        """The window of a convolution or pooling over an input of spatial `sizes`."""
        rank = len(sizes)
        strides, dilations = tuple(node["strides"] or [1] * rank), tuple(node["dilations"] or [1] * rank)
        reach = [(taps - 1) * gap + 1 for taps, gap in zip(kernel, dilations, strict=True)]
        if len(kernel) != rank or len(strides) != rank or min(kernel) < 1 or min(strides) < 1 or min(dilations) < 1:
            raise ValueError(f"kernel {kernel}, strides {strides} and dilations {dilations} over {rank} axes")
        if node["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
            outputs = [-(-size // step) for size, step in zip(sizes, strides, strict=True)]
            near, far = _same(node["auto_pad"], sizes, strides, reach, outputs)
        else:
            pads = node["pads"] if node["pads"] and node["auto_pad"] == "NOTSET" else [0] * 2 * rank
            near, far = pads[:rank], pads[rank:]
            up = node.attributes.get("ceil_mode", 0)
            outputs = list(map(_positions, sizes, strides, reach, near, far, [up] * rank))
        if min(outputs, default=1) < 0:
            raise ValueError(f"a window of {reach} on an input of {tuple(sizes)} with padding {(*near, *far)}")
        return cls(tuple(sizes), tuple(kernel), strides, dilations, tuple(near), tuple(far), tuple(outputs))

    def taps(self, padded: bool = False) -> Iterator[tuple[Index, Index, Index]]:
        """Each tap, the outputs for which it lies inside the input, and the inputs that it then reads.

        Parameters
        ----------
        padded : bool
            Take the padding for a part of the input; the inputs are then counted from its corner.
        """
        before = [0] * len(self.sizes) if padded else self.near
        sizes = [a + b + c for a, b, c in zip(self.near, self.sizes, self.far, strict=True)] if padded else self.sizes
        for tap in itertools.product(*map(range, self.kernel)):
            offsets = [at * gap - pad for at, gap, pad in zip(tap, self.dilations, before, strict=True)]
            pairs = list(map(overlap, offsets, self.strides, sizes, self.outputs))
            yield (..., *tap), (..., *(out for out, _ in pairs)), (..., *(read for _, read in pairs))


def _same(
    auto_pad: str, sizes: Sequence[int], strides: Sequence[int], reach: Sequence[int], outputs: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Padding for as many outputs as asked for; an odd one at the far side, or the near one for SAME_LOWER."""
    total = [
        max(0, (count - 1) * step + span - size)
        for count, step, span, size in zip(outputs, strides, reach, sizes, strict=True)
    ]
    less, more = [pad // 2 for pad in total], [pad - pad // 2 for pad in total]
    return (more, less) if auto_pad == "SAME_LOWER" else (less, more)


def _positions(size: int, step: int, span: int, near: int, far: int, up: bool) -> int:
    """Positions of a window; rounding up, one more that hangs over, unless it would start behind input and near pad."""
    room = near + size + far - span
    count = -(-room // step) + 1 if up else room // step + 1
    return count - 1 if up and (count - 1) * step >= size + near else count
