"""Multiply-add and dot-product instructions: their element types and the elements per accumulator lane.

`Dot.twin` is the NumPy reference of an instruction. A kernel for an instruction that this CPU lacks can be verified by
its assembly and by this reference.

Sources: Intel's optimisation reference manual and software developer's manual, Arm's architecture reference manual.
Rates depend on the microarchitecture (`table.MICROARCHITECTURES`); here are those of most CPUs. They were measured on
Zen 4 and on a Granite Rapids (decision 19); those of NEON, and of AVX2's extensions, are the FMA's. The rate of
`vdpbf16ps` here gives as many multiply-adds as float32's FMA: AMD's CPUs do twice as many, Intel's with AMX half as
many.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F16, F32, S8, S16, S32, U8, Element, from_bfloat16

X86, ARM = "x86_64", "aarch64"
_MATRIX_ROWS = 2
TILE_ROWS, ROW_BYTES = 16, 64  # rows of an AMX tile, and bytes per row


@dataclass(frozen=True)
class Dot:
    """A vector instruction that adds the products of two operands to accumulators.

    Attributes
    ----------
    name : str
        Mnemonic in assembly, without suffixes for operands.
    machine, feature : str
        LLVM's names of the architecture and of the CPU feature. LLVM ends the process on an intrinsic that its target
        lacks: query the feature first.
    bits : int
        Width of the vectors in bits.
    x, w, sum : Element
        Types of the first operand, the second operand and the accumulators.
    group : int
        Adjacent elements whose products are added to one accumulator.
    rate : float
        Instructions per cycle.
    intrinsic : str
        LLVM's name of the intrinsic.
    matrix : bool
        Each operand is a matrix of two rows; each row of the first is multiplied by each row of the second.
    accumulates : bool
        Whether it adds the products to an accumulator; else the result is the sum of the products alone.
    saturates : bool
        Whether the result is saturated to its type; else integers wrap around.
    """

    name: str
    machine: str
    feature: str
    bits: int
    x: Element
    w: Element
    sum: Element
    group: int
    rate: float
    intrinsic: str
    matrix: bool = False
    accumulates: bool = True
    saturates: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.x}:{self.w}:{self.sum}, {self.bits} bits"

    @property
    def lanes(self) -> int:
        """Accumulators per vector."""
        return self.bits // (8 * self.sum.bytes)

    @property
    def elements(self) -> int:
        """Elements per vector of the first operand; an instruction that is not `matrix` reads the first `macs`."""
        return self.bits // (8 * self.x.bytes)

    @property
    def macs(self) -> int:
        """Multiply-adds per instruction."""
        return self.lanes * self.group

    @property
    def operands(self) -> str:
        """LLVM's type of an operand vector."""
        return f"<{self.elements} x {self.x.llvm}>"

    @property
    def sums(self) -> str:
        """LLVM's type of an accumulator vector."""
        return f"<{self.lanes} x {self.sum.llvm}>"

    def twin(self, sums: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Compute the instruction's result with NumPy.

        Integers wrap around, or saturate. Floats are added in float64 and rounded once, where instructions may round in
        between.

        Parameters
        ----------
        sums : array, (lanes,)
        x, w : array, (elements,)
            Arrays of the elements' NumPy dtypes.
        """
        kind: Any = np.int64 if self.sum.integer else np.float64
        first, second = (
            values(element, array).astype(kind)[: self.macs] for element, array in ((self.x, x), (self.w, w))
        )
        if self.matrix:
            rows, columns = first.reshape(_MATRIX_ROWS, -1), second.reshape(_MATRIX_ROWS, -1)
            added = (rows @ columns.T).reshape(-1)
        else:
            added = (first * second).reshape(self.lanes, self.group).sum(1)
        if self.accumulates:
            added = sums.astype(kind) + added
        if self.saturates:
            ends = np.iinfo(self.sum.dtype)
            added = np.clip(added, ends.min, ends.max)
        return added.astype(self.sum.dtype)


@dataclass(frozen=True)
class TileDot:
    """An instruction on AMX tiles of 16 rows of 64 bytes: multiplies rows of the first by columns of the second.

    The attributes are those of `Dot`. A row of the second tile holds, for each column, the elements of one group.
    """

    name: str
    feature: str
    x: Element
    w: Element
    sum: Element
    group: int
    rate: float

    @property
    def macs(self) -> int:
        """Multiply-adds per row of the first tile and column of the second tile."""
        return ROW_BYTES // self.x.bytes

    def twin(self, sums: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Compute as `Dot.twin`, for sums (rows, 16) and operands (rows, macs) and (16, macs)."""
        kind: Any = np.int64 if self.sum.integer else np.float64
        first, second = values(self.x, x).astype(kind), values(self.w, w).astype(kind)
        columns = second.reshape(TILE_ROWS, -1, self.group).transpose(0, 2, 1).reshape(self.macs, -1)
        return (sums.astype(kind) + first @ columns).astype(self.sum.dtype)


def values(element: Element, array: np.ndarray) -> np.ndarray:
    """Numbers in an array of an element's NumPy dtype: bfloat16 as float32, others unchanged."""
    return from_bfloat16(array) if element == BF16 else array


def at_rate(dots: tuple[Dot, ...], rate: float, *names: str) -> tuple[Dot, ...]:
    """Replace the rate, in instructions per cycle, of all instructions or of those with the given names."""
    return tuple(replace(dot, rate=rate) if not names or dot.name in names else dot for dot in dots)


def _fma(name: str, machine: str, feature: str, bits: int, element: Element = F32, rate: float = 2) -> Dot:
    lanes = bits // (8 * element.bytes)
    intrinsic = f"llvm.fma.v{lanes}f{8 * element.bytes}"
    return Dot(name, machine, feature, bits, element, element, element, 1, rate, intrinsic)


def _multiply(name: str, feature: str, bits: int, x: Element, w: Element, intrinsic: str) -> Dot:
    """An x86 instruction without accumulator; from int8 to int16 it saturates."""
    total = S16 if w == S8 else S32
    return Dot(name, X86, feature, bits, x, w, total, 2, 2, intrinsic, accumulates=False, saturates=total == S16)


_VNNI, _NEON = "llvm.x86.avx512", "llvm.aarch64.neon"
# The first row of each instruction set is the FMA of float32.
AVX512 = (
    _fma("vfmadd", X86, "avx512f", 512),
    _fma("vfmadd", X86, "avx512fp16", 512, F16),
    Dot("vdpbf16ps", X86, "avx512bf16", 512, BF16, BF16, F32, 2, 1, "llvm.x86.avx512bf16.dpbf16ps.512"),
    Dot("vpdpwssd", X86, "avx512vnni", 512, S16, S16, S32, 2, 2, f"{_VNNI}.vpdpwssd.512"),
    Dot("vpdpbusd", X86, "avx512vnni", 512, U8, S8, S32, 4, 2, f"{_VNNI}.vpdpbusd.512"),
    Dot("vpdpbssd", X86, "avx10.2", 512, S8, S8, S32, 4, 2, "llvm.x86.avx10.vpdpbssd.512"),
    _multiply("vpmaddubsw", "avx512bw", 512, U8, S8, f"{_VNNI}.pmaddubs.w.512"),
)
AVX2 = (
    _fma("vfmadd", X86, "fma", 256),
    Dot("vpdpwssd", X86, "avxvnni", 256, S16, S16, S32, 2, 2, f"{_VNNI}.vpdpwssd.256"),
    Dot("vpdpbusd", X86, "avxvnni", 256, U8, S8, S32, 4, 2, f"{_VNNI}.vpdpbusd.256"),
    Dot("vpdpbssd", X86, "avxvnniint8", 256, S8, S8, S32, 4, 2, "llvm.x86.avx2.vpdpbssd.256"),
    _multiply("vpmaddubsw", "avx2", 256, U8, S8, "llvm.x86.avx2.pmadd.ub.sw"),
)
SSE = (_fma("vfmadd", X86, "fma", 128),)
NEON = (
    _fma("fmla", ARM, "neon", 128),
    _fma("fmla", ARM, "fullfp16", 128, F16),
    Dot("fmlal", ARM, "fp16fml", 128, F16, F16, F32, 1, 2, f"{_NEON}.fmlal.v4f32.v8f16"),
    Dot("sdot", ARM, "dotprod", 128, S8, S8, S32, 4, 2, f"{_NEON}.sdot.v4i32.v16i8"),
    Dot("udot", ARM, "dotprod", 128, U8, U8, S32, 4, 2, f"{_NEON}.udot.v4i32.v16i8"),
    Dot("usdot", ARM, "i8mm", 128, U8, S8, S32, 4, 2, f"{_NEON}.usdot.v4i32.v16i8"),
    Dot("smmla", ARM, "i8mm", 128, S8, S8, S32, 8, 2, f"{_NEON}.smmla.v4i32.v16i8", matrix=True),
    Dot("ummla", ARM, "i8mm", 128, U8, U8, S32, 8, 2, f"{_NEON}.ummla.v4i32.v16i8", matrix=True),
    Dot("usmmla", ARM, "i8mm", 128, U8, S8, S32, 8, 2, f"{_NEON}.usmmla.v4i32.v16i8", matrix=True),
    Dot("bfdot", ARM, "bf16", 128, BF16, BF16, F32, 2, 2, f"{_NEON}.bfdot.v4f32.v8bf16"),
    Dot("bfmmla", ARM, "bf16", 128, BF16, BF16, F32, 4, 2, f"{_NEON}.bfmmla", matrix=True),
)
GENERIC = (_fma("fma", "", "", 128, rate=1),)
AMX = (
    TileDot("tdpbusd", "amx-int8", U8, S8, S32, 4, 1 / 16),
    TileDot("tdpbf16ps", "amx-bf16", BF16, BF16, F32, 2, 1 / 16),
)
PMADDWD = (  # no rows of an `Isa`: kernels emit it as a part of other sequences
    _multiply("pmaddwd", "avx512bw", 512, S16, S16, f"{_VNNI}.pmaddw.d.512"),
    _multiply("pmaddwd", "avx2", 256, S16, S16, "llvm.x86.avx2.pmadd.wd"),
    _multiply("pmaddwd", "sse2", 128, S16, S16, "llvm.x86.sse2.pmadd.wd"),
)
VECTORS = (*AVX512, *AVX2, *NEON, *PMADDWD)  # instructions among which low-precision kernels select


def dot_of(name: str, bits: int) -> Dot:
    """The instruction of that name on vectors of so many bits.

    Raises
    ------
    LookupError
        There is no row for it.
    """
    for dot in VECTORS:
        if (dot.name, dot.bits) == (name, bits):
            return dot
    raise LookupError(f"isa/dots.py has no row for the instruction {name} on vectors of {bits} bits")
