"""Ordered keys: signed integers in the order of the elements of any type, so that one kernel serves all types.

Equal elements have equal keys, +0 and -0 among them. NaN is the largest number, as for NumPy's sort, and all NaN are
equal. A key has as many significant bits as its element.
"""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.calls import call
from cpuconv.isa.vector import I32, Vector
from cpuconv.runtime.code.llvm import ir

_EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}
"""Floating-point types, by the bits of infinity."""
DTYPES = (*_EXPONENTS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
"""Names of the element types that have keys."""


@dataclass(frozen=True)
class Order:
    """Keys of elements of a type, greater for the elements that come first.

    Attributes
    ----------
    dtype : str
        Name of the element type, one of `DTYPES`.
    largest : bool
        Whether large elements come first; else small ones.
    nan_first : bool
        Whether NaN comes first; else last.
    """

    dtype: str
    largest: bool
    nan_first: bool

    @property
    def bits(self) -> int:
        """Significant bits of a key."""
        return int(self.dtype.lstrip(ascii_lowercase))

    @property
    def word(self) -> Any:
        """LLVM type of a key in a lane."""
        return ir.IntType(8 * self.bytes)

    @property
    def bytes(self) -> int:
        """Size of a key, in bytes."""
        return 8 if self.bits == 64 else 4

    @property
    def first(self) -> int:
        """Greatest key."""
        return (1 << self.bits - 1) - 1

    def constant(self, vec: Vector, value: int) -> Any:
        """A key in every lane."""
        return _constant(self.word, vec.lanes, value)

    @property
    def last(self) -> int:
        """Smallest key."""
        return -1 << self.bits - 1

    def load(self, vec: Vector, address: Any, mask: Any = None) -> Any:
        """Keys of the elements at an i8* address; in lanes outside the mask, the smallest key."""
        builder, bits = vec.builder, self.bits
        raw = load_integers(vec, address, ir.IntType(bits), mask)
        if self.dtype.startswith("u"):
            raw = builder.xor(raw, _constant(ir.IntType(bits), vec.lanes, 1 << bits - 1))
        key = raw if raw.type == _kind(self.word, vec.lanes) else builder.sext(raw, _kind(self.word, vec.lanes))
        reverse = None if self.largest else self.constant(vec, -1)
        if self.dtype not in _EXPONENTS:
            key = key if reverse is None else builder.xor(key, reverse)
        else:
            magnitude = builder.and_(key, self.constant(vec, self.first))
            sign = builder.ashr(key, self.constant(vec, 8 * self.bytes - 1))
            unknown = builder.icmp_signed(">", magnitude, self.constant(vec, _EXPONENTS[self.dtype]))
            key = builder.sub(builder.xor(magnitude, sign), sign)
            key = key if reverse is None else builder.xor(key, reverse)
            key = builder.select(unknown, self.constant(vec, self.first if self.nan_first else self.last), key)
        return key if mask is None else builder.select(mask, key, self.constant(vec, self.last))


def is_floating(dtype: str) -> bool:
    """Whether a type of this name has a sign bit that does not count for zeros."""
    return dtype in _EXPONENTS


def load_integers(vec: Vector, address: Any, kind: Any, mask: Any = None) -> Any:
    """lanes[i] = the integer of type `kind` at an i8* address; 0 outside the mask, where nothing is read."""
    size, lanes = kind.width // 8, vec.lanes
    vector = _kind(kind, lanes)
    place = vec.builder.bitcast(address, vector.as_pointer())
    if mask is None:
        value = vec.builder.load(place)
        value.align = size
        return value
    name = f"llvm.masked.load.v{lanes}i{kind.width}.p0v{lanes}i{kind.width}"
    return call(vec.builder, name, vector, [place, I32(size), mask, _constant(kind, lanes, 0)])


def store_integers(vec: Vector, value: Any, address: Any, mask: Any = None) -> None:
    """Store lanes of integers to an i8* address; outside the mask, nothing is written."""
    kind, lanes = value.type.element, vec.lanes
    place = vec.builder.bitcast(address, value.type.as_pointer())
    if mask is None:
        vec.builder.store(value, place).align = kind.width // 8
    else:
        name = f"llvm.masked.store.v{lanes}i{kind.width}.p0v{lanes}i{kind.width}"
        call(vec.builder, name, ir.VoidType(), [value, place, I32(kind.width // 8), mask])


def _kind(scalar: Any, lanes: int) -> Any:
    return ir.VectorType(scalar, lanes) if lanes > 1 else scalar


def _constant(scalar: Any, lanes: int, value: int) -> Any:
    return ir.Constant(ir.VectorType(scalar, lanes), [value] * lanes) if lanes > 1 else scalar(value)
