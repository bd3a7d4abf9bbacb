"""GEMM strips of the closed set: compile-time parameters, and the run-time words of a problem.

A strip of `gemm.py` is compiled for one problem's numbers of channels, stride, kernel and epilogue, and for a plane.
One of the closed set is compiled for its form, weight vectors and columns alone. All strips that any problem needs can
therefore be enumerated (`closed_set.py`). Everything else is read from a few int64 words in memory, whose address
replaces the argument `tails`: both kinds of strips have the same drivers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.symbolic.sizes import sizes_array

PIXELS, LINES, MATRIX, PLANES, COMPLEX = "pixels", "lines", "matrix", "planes", "complex"
"""Forms: memory layouts of a tile's scalars.

- `PIXELS`: channels of a pixel are adjacent; pixels are `Words.column` bytes apart.
- `LINES`: pixels are adjacent; channels are `kstep` bytes apart.
- `MATRIX`: scalars of a matrix, whose row stride is `xrow` / columns bytes; lanes are columns of the output matrix.
- `PLANES`: scalars are weights of `cols` output channels; lanes are pixels of planes, to which sums are stored.
- `COMPLEX`: as `PIXELS`; real and imaginary parts are `xrow` bytes apart.
"""
PLANAR = (MATRIX, PLANES)  # forms whose lanes are pixels, or columns of a matrix
HELD = ("hardswish", "leaky_relu")
CALLED = ("silu", "hardsigmoid", "sigmoid", "tanh", "gelu", "gelu_tanh")
"""Activations other than clamps: short ones on registers, and longer ones, each as a loop over sums in memory."""
_CLAMPS = {"relu": (0.0, float("inf")), "relu6": (0.0, 6.0)}


@dataclass(frozen=True)
class ClosedTile:
    """Compile-time parameters of a strip of the closed set."""

    form: str
    lanes: int
    v: int  # weight vectors
    cols: int
    last: bool = False  # strip of the last panel: its last vector may be partial, and vectors of zeros may follow
    unused_vectors: int = 0  # number of weight vectors at the end without channels: packed, but not multiplied
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
        return self.v - self.unused_vectors

    @property
    def rows(self) -> int:
        """Rows of sums: 2 for complex numbers, the real and the imaginary parts."""
        return 2 if self.form == COMPLEX else 1

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """(row, column) of each pixel."""
        return [(row, col) for row in range(self.rows) for col in range(self.cols)]

    @property
    def sums(self) -> int:
        """Vectors of sums."""
        return self.used * self.cols * self.rows

    @property
    def accumulators(self) -> int:
        """Vector registers of sums; two vectors of float16 sums are one."""
        return self.cols * -(-self.used // 2) if BY_NAME[self.product].half_sums else self.sums

    @property
    def vectors(self) -> int:
        """Weight vectors read for each scalar of the reduction."""
        return self.v * (2 if self.form == COMPLEX else BY_NAME[self.product].parts)

    @property
    def vectors_per_pixel(self) -> int:
        """Output vectors per pixel of an output block."""
        return 4 // self.y.bytes


@dataclass(frozen=True)
class Words:
    """Run-time parameters of a problem, one int64 word each."""

    whole: int  # scalars of a segment
    tails: int  # number of shorter segments at the end
    scalars: int  # scalars of a shorter segment
    column: int  # stride of input pixels, in bytes
    out: int  # stride of output pixels, in bytes
    scalar: int  # stride of the scalars of a segment, in bytes
    plain: int  # not 0: sums are stored without epilogue
    residual: int  # not 0: a residual is added
    valid: int  # lanes of the last vector that are channels
    zeros: int  # output vectors of zeros behind the last
    low: int  # lower bound of the output clamp: bits of a float32
    high: int  # upper bound: bits of a float32
    called: int  # `number_of` an activation; 0: none
    slope: int  # bits of the activation's scalar, a float32
    long: int  # integer sums: not 0 where outputs are divided by a scale of their own
    rows: int  # stride of the epilogue rows of a vector of output channels, in bytes
    behind: int  # bytes to the rows after those of the residual

    @property
    def array(self) -> np.ndarray:
        """The words as an int64 array."""
        return sizes_array(getattr(self, each.name) for each in fields(type(self)))


PLACES = {each.name: at for at, each in enumerate(fields(Words))}


def number_of(name: str) -> int:
    """The number of an activation in `Words.called`."""
    return 1 + (*HELD, *CALLED).index(name)


def bits(value: float) -> int:
    """The bits of a float32 as an integer."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def activation_words(activation: Sequence[Any] | None) -> dict[str, int]:
    """Clamp, number and scalar of an activation.

    Raises
    ------
    ValueError
        It is not in the closed set.
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
