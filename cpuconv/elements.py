"""Element types: what one number of an array is, in memory, in NumPy and in LLVM's language."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import ml_dtypes
import numpy as np

from autotune.data_classes import dataclass


@dataclass(frozen=True, repr=False, eq=False)
class Element:
    """The type of an array's elements; there is one object of each.

    Attributes
    ----------
    name : str
        As benchdnn writes it, and in its manner s16.
    dtype : numpy.dtype
        Of arrays that hold it here: bfloat16, which NumPy has not, is the upper half of a float32, as uint16.
    llvm : str
        LLVM's name of the type. Integers of LLVM have no sign: instructions do.
    outside : numpy.dtype
        Of users' arrays of it: that of ml_dtypes for bfloat16.
    bytes : int
        Of one element.
    """

    name: str
    dtype: np.dtype
    llvm: str
    outside: np.dtype = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        bfloat16 = self.llvm == "bfloat"
        object.__setattr__(self, "outside", np.dtype(ml_dtypes.bfloat16) if bfloat16 else self.dtype)
        object.__setattr__(self, "bytes", self.dtype.itemsize)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)

    @property
    def label(self) -> str:
        """What users call it: the name of its dtype."""
        return self.outside.name

    @property
    def integer(self) -> bool:
        """Whether it is an integer."""
        return self.llvm.startswith("i")

    @property
    def half(self) -> bool:
        """Whether it is a float of 16 bits."""
        return not self.integer and self.bytes == 2


F32 = Element("f32", np.dtype(np.float32), "float")
BF16 = Element("bf16", np.dtype(np.uint16), "bfloat")
F16 = Element("f16", np.dtype(np.float16), "half")
S8 = Element("s8", np.dtype(np.int8), "i8")
U8 = Element("u8", np.dtype(np.uint8), "i8")
S16 = Element("s16", np.dtype(np.int16), "i16")
S32 = Element("s32", np.dtype(np.int32), "i32")

TABLE: dict[str, Element] = {element.name: element for element in (F32, BF16, F16, S8, U8, S16, S32)}


def _named(name: str) -> Element:
    return TABLE[name]


OF_DTYPE: dict[np.dtype, Element] = {element.outside: element for element in TABLE.values()}
"""By the dtype of users' arrays."""

_PART = 1 << 15  # numbers that are looked at together
_NORMAL = {  # bits of float32 that an element has not; where its normal numbers begin, and what is beyond them
    F16: (0x1FFF, 113 << 23, 143 << 23),
    BF16: (0xFFFF, 0, 0xFF << 23),
}


def rounded(array: np.ndarray) -> np.ndarray:
    """float32 numbers as bfloat16, to the nearest, ties to even; a NaN stays one."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    quiet = (bits >> 16 | 0x40).astype(np.uint16)  # a NaN whose upper half may say none
    return np.where(bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000), quiet, nearest)


def widened(array: np.ndarray) -> np.ndarray:
    """bfloat16 numbers as float32."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def floats(array: np.ndarray, element: Element) -> np.ndarray:
    """Numbers of an element, in its dtype, as float32."""
    return widened(array) if element == BF16 else array.astype(np.float32)


def narrowed(array: np.ndarray, element: Element) -> np.ndarray:
    """float32 numbers rounded to those of an element of 16 bits, in its dtype."""
    return rounded(array) if element == BF16 else array.astype(element.dtype)


def holds(element: Element, array: np.ndarray) -> bool:
    """Whether each of the float32 numbers is one of an element of 16 bits; of most that are not the first few tell."""
    flat = array.reshape(-1, order="A")
    unsure = (_unsure(element, flat[start : start + _PART]) for start in range(0, flat.size, _PART))
    with np.errstate(over="ignore"):
        return all(np.array_equal(floats(narrowed(part, element), element), part) for part in unsure)


def _unsure(element: Element, array: np.ndarray) -> np.ndarray:
    """The numbers whose bits alone do not tell that they are normal ones of the element."""
    lost, least, largest = _NORMAL[element]
    bits = array.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    return array[(bits & np.uint32(lost) != 0) | (magnitude - np.uint32(least) >= np.uint32(largest - least))]
