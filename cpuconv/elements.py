"""Element types: memory size, NumPy dtype and LLVM type of one array element."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import ml_dtypes
import numpy as np

from baselib.data_classes import dataclass


@dataclass(frozen=True, repr=False, eq=False)
class Element:
    """The type of an array's elements; each type has one instance.

    Attributes
    ----------
    name : str
        Name as in benchdnn; s16 follows the same scheme.
    dtype : numpy.dtype
        Dtype of internal arrays. NumPy has no bfloat16: it is stored as uint16, the upper half of a float32.
    llvm : str
        Name of the LLVM type. LLVM integers have no sign; signedness is a property of instructions.
    parts : int
        Numbers of the LLVM type whose sum is the element: more than 1 for float32 in bfloat16 parts.
    outside : numpy.dtype
        Dtype of users' arrays; for bfloat16 that of ml_dtypes.
    bytes : int
        Size of one element with all parts, in bytes.
    """

    name: str
    dtype: np.dtype
    llvm: str
    parts: int = 1
    outside: np.dtype = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        bfloat16 = self.llvm == "bfloat" and self.parts == 1
        object.__setattr__(self, "outside", np.dtype(ml_dtypes.bfloat16) if bfloat16 else self.dtype)
        object.__setattr__(self, "bytes", self.dtype.itemsize)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)

    @property
    def label(self) -> str:
        """Name of the dtype, as users know it."""
        return self.outside.name

    @property
    def integer(self) -> bool:
        """Whether this is an integer type."""
        return self.llvm.startswith("i")

    @property
    def part_bytes(self) -> int:
        """Size of one part, in bytes: the distance between adjacent channels of a vector in memory."""
        return self.bytes // self.parts

    @property
    def half(self) -> bool:
        """Whether this is a 16-bit floating-point type."""
        return not self.integer and self.bytes == 2


F32 = Element("f32", np.dtype(np.float32), "float")
BF16 = Element("bf16", np.dtype(np.uint16), "bfloat")
F16 = Element("f16", np.dtype(np.float16), "half")
S8 = Element("s8", np.dtype(np.int8), "i8")
U8 = Element("u8", np.dtype(np.uint8), "i8")
S16 = Element("s16", np.dtype(np.int16), "i16")
S32 = Element("s32", np.dtype(np.int32), "i32")

IN_PARTS: dict[int, Element] = {
    count: Element(f"bf16x{count}", np.dtype(f"V{2 * count}"), "bfloat", count) for count in (2, 3)
}
"""float32 as the sum of bfloat16 parts, by their number; only in channel blocks, within networks.

A pixel of a block has the first parts of all channels, then the second parts, and so on: 64 bytes each.
"""
PART_STEP = 64  # bytes between the parts of a channel

TABLE: dict[str, Element] = {element.name: element for element in (F32, BF16, F16, S8, U8, S16, S32)}
NAMED: dict[str, Element] = TABLE | {element.name: element for element in IN_PARTS.values()}
"""Elements of `TABLE`, and those in parts."""


def _named(name: str) -> Element:
    return NAMED[name]


OF_DTYPE: dict[np.dtype, Element] = {element.outside: element for element in NAMED.values()}
"""Elements by the dtype of users' arrays."""

_MIN_NORMAL = np.finfo(np.float32).tiny
_PART = 1 << 15  # elements that are checked per NumPy call
_NORMAL = {  # float32 bits that the type lacks; its smallest normal number, and the first number above its range
    F16: (0x1FFF, 113 << 23, 143 << 23),
    BF16: (0xFFFF, 0, 0xFF << 23),
}


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16, to the nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    quiet = (bits >> 16 | 0x40).astype(np.uint16)  # quiet bit set: the upper half of a NaN may encode infinity
    return np.where(bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000), quiet, nearest)


def split_to_bfloat16(array: np.ndarray, parts: int) -> list[np.ndarray]:
    """Split float32 into bfloat16 parts whose sum is the number: to 2⁻¹⁷ of it with two parts, exactly with three.

    NaN and infinities are in the last part, and the others are zero. Subnormal parts are zero, as AMX reads them.
    """
    finite = np.isfinite(array)
    rest, found = np.where(finite, array, np.float32(0)), []
    for _ in range(parts):
        normal = np.where(np.abs(rest) < _MIN_NORMAL, np.copysign(np.float32(0), rest), rest)
        near = to_bfloat16(normal)
        overflows = near & np.uint16(0x7F80) == 0x7F80
        found.append(np.where(overflows, (rest.view(np.uint32) >> 16).astype(np.uint16), near))
        rest = rest - from_bfloat16(found[-1])
    return [*found[:-1], np.where(finite, found[-1], to_bfloat16(array))]


def join_parts(array: np.ndarray) -> np.ndarray:
    """Convert an array in channel blocks, of an element of `IN_PARTS`, to float32."""
    count = array.dtype.itemsize // BF16.bytes
    parts = from_bfloat16(np.ascontiguousarray(array).view(BF16.dtype).reshape(*array.shape[:-1], count, -1))
    return parts.sum(-2, dtype=np.float32)


def split_to_parts(array: np.ndarray, element: Element) -> np.ndarray:
    """Convert float32 in channel blocks to an element of `IN_PARTS`."""
    parts = np.stack(split_to_bfloat16(array, element.parts), -2)
    return parts.reshape(*array.shape[:-1], -1).view(element.outside)


def from_bfloat16(array: np.ndarray) -> np.ndarray:
    """Convert bfloat16 to float32."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def to_float32(array: np.ndarray, element: Element) -> np.ndarray:
    """Convert an array of an element type, in its internal dtype, to float32."""
    return from_bfloat16(array) if element == BF16 else array.astype(np.float32)


def round_to(array: np.ndarray, element: Element) -> np.ndarray:
    """Round float32 to a 16-bit element type, in its internal dtype."""
    with np.errstate(over="ignore"):
        return to_bfloat16(array) if element == BF16 else array.astype(element.dtype)


def represents_exactly(element: Element, array: np.ndarray) -> bool:
    """Whether a 16-bit element type represents all float32 numbers exactly; usually the first few show if not."""
    flat = array.reshape(-1, order="A")
    unsure = (_unsure(element, flat[start : start + _PART]) for start in range(0, flat.size, _PART))
    with np.errstate(over="ignore"):
        return all(np.array_equal(to_float32(round_to(part, element), element), part) for part in unsure)


def _unsure(element: Element, array: np.ndarray) -> np.ndarray:
    """The numbers whose bits alone do not prove that they are normal numbers of the element type."""
    lost, least, largest = _NORMAL[element]
    bits = array.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    return array[(bits & np.uint32(lost) != 0) | (magnitude - np.uint32(least) >= np.uint32(largest - least))]


def lowest(dtype: np.dtype) -> float | int | bool:
    """Smallest number of a type: the maximum of an empty set."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else False if dtype.kind == "b" else -np.inf


def highest(dtype: np.dtype) -> float | int | bool:
    """Largest number of a type: the minimum of an empty set."""
    return np.iinfo(dtype).max if dtype.kind in "iu" else True if dtype.kind == "b" else np.inf
