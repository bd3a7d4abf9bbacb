"""Tensors of a network in memory: address, shape and strides, as kernels take them.

A tensor has one of these forms. `DENSE`: C-contiguous. `STRIDED`: a view of plain memory, any strides.
`CHANNELS_LAST`: a tensor (N, C, H, W) or (N, C, W) whose memory is contiguous in the order (N, H, W, C). `BLOCKED`: the
instruction set's channel blocks, physical axes (n, channel block, h, w, lane), for tensors (N, C, H, W), and (N, C, W)
with h = 1; lanes without a channel are zero. Images of a blocked tensor may be apart, as in a slice of the channels of
a larger tensor; its other axes are contiguous. `NARROW` has the same forms with each float32 rounded to bfloat16 or to
float16; a block then has as many channels as fill a vector. It has blocks of float32 in bfloat16 parts, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.elements import BF16, F16, F32, IN_PARTS, OF_DTYPE, Element
from cpuconv.kernels.binding.steps import Operand, Ref
from cpuconv.problem.integers import divide
from layouts import Strides

DENSE, STRIDED, BLOCKED = "dense", "strided", "blocked"
CHANNELS_LAST = "channels last"
NARROW = {
    each: {form: f"{form} {each}" for form in (DENSE, STRIDED, BLOCKED, CHANNELS_LAST)}
    for each in (BF16, F16, *IN_PARTS.values())
}
IN_BF16 = NARROW[BF16]
DENSE_BF16, STRIDED_BF16, BLOCKED_BF16, CHANNELS_LAST_BF16 = IN_BF16.values()
"""Forms of a tensor; for an operand of an offer, the forms that it accepts (`STRIDED` accepts all plain forms)."""

FLOAT32, BFLOAT16 = F32.dtype, BF16.outside
_OF_NARROW = {narrow: (form, each) for each, forms in NARROW.items() for form, narrow in forms.items()}


@dataclass(frozen=True)
class TensorView:
    """A tensor in memory.

    Attributes
    ----------
    ref : Ref
        Address of its first element.
    shape : tuple[int, ...]
        Logical sizes.
    strides : tuple[int, ...]
        Bytes. Plain: stride of each logical axis. Blocked: strides of n, channel block, h, w, lane.
    block : int
        Channels per block; 1: plain.
    dtype : np.dtype
    array : np.ndarray or None
        The elements by logical axes, if they are known when the network is compiled.
    """

    ref: Ref
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: int = 1
    dtype: np.dtype = FLOAT32
    array: np.ndarray | None = field(default=None, repr=False, compare=False)

    @classmethod
    def plain(
        cls, ref: Ref, shape: Sequence[int], dtype: np.dtype = FLOAT32, array: np.ndarray | None = None
    ) -> TensorView:
        """Make a C-contiguous tensor at `ref`."""
        return cls(ref, tuple(shape), contiguous_strides(shape, dtype.itemsize), 1, dtype, array)

    @classmethod
    def blocked(
        cls, ref: Ref, shape: Sequence[int], block: int, array: np.ndarray | None = None, dtype: np.dtype = FLOAT32
    ) -> TensorView:
        """Make a tensor in contiguous channel blocks at `ref`."""
        physical = blocked_shape(shape, block)
        return cls(ref, tuple(shape), contiguous_strides(physical, dtype.itemsize), block, dtype, array)

    @property
    def element(self) -> Element:
        """Element type, for types that kernels support."""
        return OF_DTYPE[self.dtype]

    def numbers(self) -> TensorView:
        """The tensor, with bool as uint8."""
        return replace(self, dtype=np.dtype(np.uint8)) if self.dtype == np.bool_ else self

    @lazy
    def format(self) -> str:
        """`DENSE`, `STRIDED` or `BLOCKED`, or one of these in bfloat16; a channels-last tensor is strided."""
        dense = contiguous_strides(self.shape, self.dtype.itemsize)
        form = BLOCKED if self.block > 1 else STRIDED
        if form == STRIDED and (
            0 in self.shape
            or all(a == b for a, b, size in zip(self.strides, dense, self.shape, strict=True) if size > 1)
        ):
            form = DENSE
        if self.dtype == F16.outside:  # tensors of float16 that are not rounded float32 are in no blocks
            return NARROW[F16][form] if form == BLOCKED else form
        rounded = self.dtype == BFLOAT16 or form == BLOCKED and self.element.parts > 1
        return NARROW[self.element][form] if rounded else form

    @classmethod
    def channels_last(
        cls, ref: Ref, shape: Sequence[int], dtype: np.dtype = FLOAT32, array: np.ndarray | None = None
    ) -> TensorView:
        """Make a tensor in contiguous memory, with the channels of a pixel adjacent, at `ref`."""
        image, *rest = contiguous_strides((shape[0], *shape[2:], shape[1]), dtype.itemsize)
        return cls(ref, tuple(shape), (image, rest[-1], *rest[:-1]), 1, dtype, array)

    @property
    def number(self) -> np.dtype:
        """Type in which kernels compute with its elements: float32 for those of `NARROW`, else its own."""
        return FLOAT32 if any(self.dtype == each.outside for each in NARROW) else self.dtype

    @property
    def physical(self) -> tuple[int, ...]:
        """Sizes of the axes of `strides`."""
        return blocked_shape(self.shape, self.block) if self.block > 1 else self.shape

    @lazy
    def size(self) -> int:
        """Size in bytes, lanes without a channel included."""
        return math.prod(self.physical) * self.dtype.itemsize

    @property
    def operand(self) -> Operand:
        """A tensor (N, C, H, W), or (N, C, W) with h = 1, as an operand of a convolution."""
        if self.block > 1:
            n, cb, h, w, lane = self.strides
            return Operand(self.ref, Strides(n, self.block, cb, lane, h, w))
        if len(self.shape) == 3:
            n, c, w = self.strides
            return Operand(self.ref, Strides(n, 1, c, 0, w * self.shape[2], w))
        n, c, h, w = self.strides
        return Operand(self.ref, Strides(n, 1, c, 0, h, w))

    def at(self, offset: int, shape: Sequence[int], strides: Sequence[int] | None = None) -> TensorView:
        """A view `offset` bytes further, of a logical shape; it keeps the strides unless others are given."""
        kept = self.strides if strides is None else tuple(strides)
        return replace(self, ref=self.ref + offset, shape=tuple(shape), strides=kept, array=None)


def stored_as(form: str, dtype: np.dtype) -> np.dtype:
    """Type of a tensor's elements in memory, in a form."""
    return _OF_NARROW[form][1].outside if form in _OF_NARROW else dtype


def unrounded(form: str) -> str:
    """The form of float32 that a form in bfloat16 or float16 is of; others are their own."""
    return _OF_NARROW[form][0] if form in _OF_NARROW else form


def narrow_element(forms: Sequence[str]) -> Element | None:
    """The type to which float32 is rounded in some of the forms; None: in none."""
    return next((_OF_NARROW[form][1] for form in forms if form in _OF_NARROW), None)


def in_words(place: TensorView) -> TensorView:
    """View a tensor in channel blocks as 32-bit groups of channels, which its blocks hold wholly."""
    group = F32.bytes // place.dtype.itemsize
    n, c, *plane = place.shape
    *strides, _ = place.strides
    shape, block = (n, divide(c, group), *plane), place.block // group
    return replace(place, shape=shape, strides=(*strides, F32.bytes), block=block, dtype=FLOAT32)


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a C-contiguous array."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def image_shape(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """(N, C, H, W) of a tensor of rank 4, or of rank 3 with H = 1."""
    n, c, *plane = shape
    h, w = plane if len(plane) == 2 else (1, *plane)
    return n, c, h, w


def blocked_shape(shape: Sequence[int], block: int) -> tuple[int, int, int, int, int]:
    """Physical sizes (n, channel block, h, w, lane) of a tensor in channel blocks."""
    n, c, h, w = image_shape(shape)
    return n, divide(c, block), h, w, block
