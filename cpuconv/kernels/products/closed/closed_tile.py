"""GEMM strips of the closed set: what a kernel is compiled for, and the words that say everything else of a problem.

A strip of `gemm.py` is compiled for one problem's numbers of channels, stride, kernel and epilogue, and for a plane.
One of the closed set is compiled for its form, weight vectors and columns alone, so that all strips that any problem
asks for can be enumerated (`closed_set.py`). The rest is read from a few words in memory, whose address takes the place
of the argument `tails`: drivers are the same for both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.following.sizes import sizes_array
from cpuconv.kernels.emit.product import BY_NAME

PIXELS, LINES, MATRIX, PLANES, COMPLEX = "pixels", "lines", "matrix", "planes", "complex"
"""Forms: where the scalars of a tile are.

- `PIXELS`: channels of a pixel are side by side; pixels, `Words.column` bytes apart.
- `LINES`: pixels are side by side; channels, `kstep` bytes apart.
- `MATRIX`: scalars of a matrix, whose rows are equal shares of `xrow` bytes apart; lanes are columns of the product.
- `PLANES`: scalars are weights of `cols` output channels; lanes are pixels of planes, to which sums are stored.
- `COMPLEX`: as `PIXELS`; real and imaginary parts are `xrow` bytes apart.
"""
PLANAR = (MATRIX, PLANES)  # forms whose lanes are pixels, or columns of a matrix
HELD = ("hardswish", "leaky_relu")
CALLED = ("silu", "hardsigmoid", "sigmoid", "tanh", "gelu", "gelu_tanh")
"""Activations that are no clamp: of a few instructions, and longer ones, for each of which strips have a loop."""
_CLAMPS = {"relu": (0.0, float("inf")), "relu6": (0.0, 6.0)}


@dataclass(frozen=True)
class ClosedTile:
    """What a strip of the closed set is compiled for."""

    form: str
    lanes: int
    v: int  # weight vectors
    cols: int
    last: bool = False  # of the last panel: the last vector may be partial, and vectors of zeros may follow
    absent: int = 0  # of the weight vectors, the last so many hold no channel: they are packed, but not multiplied
    product: str = "fma"
    x: Element = F32
    y: Element = F32

    @property
    def planar(self) -> bool:
        """Whether lanes are pixels, or columns of a matrix."""
        return self.form in PLANAR

    @property
    def used(self) -> int:
        """Weight vectors that are multiplied."""
        return self.v - self.absent

    @property
    def rows(self) -> int:
        """Rows of sums: of complex numbers the real and the imaginary parts."""
        return 2 if self.form == COMPLEX else 1

    @property
    def sums(self) -> int:
        """Vectors of sums."""
        return self.used * self.cols * self.rows

    @property
    def vectors(self) -> int:
        """Weight vectors read for each scalar of the reduction."""
        return self.v * (2 if self.form == COMPLEX else BY_NAME[self.product].parts)

    @property
    def pieces(self) -> int:
        """Output vectors that are side by side in a pixel of a block."""
        return 4 // self.y.bytes


@dataclass(frozen=True)
class Words:
    """What a strip reads of a problem, a word each."""

    whole: int  # scalars of a segment
    tails: int  # of the segments, the last so many have `scalars` instead
    scalars: int
    column: int  # bytes from a pixel to the next
    out: int  # the same in the output
    scalar: int  # bytes from a scalar of a segment to the next
    plain: int  # not 0: sums are stored as they are
    residual: int  # not 0: a residual is added
    valid: int  # lanes of the last vector that are channels
    zeros: int  # output vectors of zeros behind the last
    low: int  # the clamp of every output: bits of two floats
    high: int
    called: int  # `number_of` an activation; 0: none
    slope: int  # bits of the activation's scalar
    long: int  # of integers: not 0 where an output has a scale of its own to be divided by
    rows: int  # bytes from the rows of a vector of output channels to those of the next
    behind: int  # bytes to the rows behind those of the residual

    @property
    def array(self) -> np.ndarray:
        """The words in memory."""
        return sizes_array(getattr(self, each.name) for each in fields(type(self)))


PLACES = {each.name: at for at, each in enumerate(fields(Words))}


def number_of(name: str) -> int:
    """The number of an activation in `Words.called`."""
    return 1 + (*HELD, *CALLED).index(name)


def bits(value: float) -> int:
    """A float32 as a word."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def activation_words(activation: Sequence[Any] | None) -> dict[str, int]:
    """Clamp, number and scalar of an activation.

    Raises
    ------
    ValueError
        It is none of the closed set.
    """
    low, high, called, slope = -float("inf"), float("inf"), 0, 0.0
    if activation is not None:
        name, *scalars = activation
        if name == "clip":
            low, high = scalars
        elif name in _CLAMPS:
            low, high = _CLAMPS[name]
        else:
            called, slope = number_of(name), scalars[0] if scalars else 0.0
    return {"low": bits(low), "high": bits(high), "called": called, "slope": bits(slope)}
