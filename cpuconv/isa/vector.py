"""The vector emitter: the operations of micro-kernels, for any number of float32 lanes.

Each method emits LLVM IR; its docstring gives the result as a formula of lanes. With one lane, values are scalars, so
the same expressions serve scalar tails.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any

from cpuconv.isa.calls import call
from cpuconv.runtime.code.llvm import ir

F32 = ir.FloatType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)
L1, L2 = 3, 2  # cache levels, in LLVM's encoding of locality


def single(value: float) -> float:
    """Round `value` to float32, as LLVM requires of a float constant."""
    return struct.unpack("f", struct.pack("f", value))[0]


# Constants are memoised: formatting their text takes time, and a constant caches its text.
@functools.lru_cache(maxsize=1024)
def _floats(lanes: int, value: float, sign: float) -> Any:
    """A constant vector of `lanes` lanes; `sign` separates 0.0 and -0.0, which compare equal."""
    return ir.Constant(ir.VectorType(F32, lanes), [single(value)] * lanes) if lanes > 1 else F32(single(value))


@functools.lru_cache(maxsize=1024)
def _integers(values: tuple[int, ...]) -> Any:
    return ir.Constant(ir.VectorType(I32, len(values)), list(values))


_NEAREST = {  # LLVM's intrinsic by architecture and lanes
    ("x86_64", 16): "llvm.x86.avx512.mask.cvtps2dq.512",
    ("x86_64", 8): "llvm.x86.avx.cvt.ps2dq.256",
    ("x86_64", 4): "llvm.x86.sse2.cvtps2dq",
    ("aarch64", 4): "llvm.aarch64.neon.fcvtns.v4i32.v4f32",
}

_PERMUTE = {16: "llvm.x86.avx512.permvar.sf.512", 8: "llvm.x86.avx2.permps"}  # LLVM's intrinsic by lanes
PERMUTED_LANES: dict[str, tuple[int, ...]] = {"avx512": (16, 8), "avx2": (8,)}
"""Lanes of the vectors that `Vector.permuted` supports, by instruction set."""


class Vector:
    """Emitter of operations on vectors of `lanes` float32 at the builder's position."""

    halves = False  # whether lanes are float16 instead of float32
    rounds_to_half = False  # whether results are rounded to float16, so that functions need no more digits

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self.builder = builder
        self.lanes = lanes
        self.size = 4 * lanes  # bytes per vector
        self.type: Any = ir.VectorType(F32, lanes) if lanes > 1 else F32
        self.int_type: Any = ir.VectorType(I32, lanes) if lanes > 1 else I32

    # constants and addresses
    def constant(self, value: float) -> Any:
        """Every lane = value."""
        return _floats(self.lanes, value, math.copysign(1.0, value))

    def int_constant(self, value: int) -> Any:
        """Every int32 lane = value."""
        return _integers((value,) * self.lanes) if self.lanes > 1 else I32(value)

    def offset(self, address: Any, bytes_: Any) -> Any:
        """address + bytes, for an i8* address; `bytes_` is an int or an i64 value."""
        if isinstance(bytes_, int):
            if bytes_ == 0:
                return address
            bytes_ = ir.Constant(I64, bytes_)
        return self.builder.gep(address, [bytes_])

    def pointer(self, address: Any) -> Any:
        """An i64 address as i8*."""
        return self.builder.inttoptr(address, ir.IntType(8).as_pointer())

    def opaque(self, address: Any) -> Any:
        """The same address, hidden from the optimiser, which therefore does not reuse a value loaded from it."""
        kind = ir.FunctionType(address.type, [address.type])
        return self.builder.asm(kind, "", "=r,0", [address], side_effect=False)

    # memory
    def load(self, address: Any, align: int = 4) -> Any:
        """lanes[i] = float at address + 4·i."""
        value = self.builder.load(self.builder.bitcast(address, self.type.as_pointer()))
        value.align = align
        return value

    def load_int(self, address: Any, align: int = 4) -> Any:
        """lanes[i] = int32 at address + 4·i."""
        value = self.builder.load(self.builder.bitcast(address, self.int_type.as_pointer()))
        value.align = align
        return value

    def store(self, value: Any, address: Any, align: int = 4) -> None:
        """Float at address + 4·i = lanes[i]."""
        self.builder.store(value, self.builder.bitcast(address, self.type.as_pointer())).align = align

    def load_masked(self, address: Any, mask: Any) -> Any:
        """lanes[i] = float at address + 4·i where `mask` is set, else 0; other addresses are not read."""
        place = self.builder.bitcast(address, self.type.as_pointer())
        return self._masked("load", [place, I32(4), mask, self.constant(0.0)], self.type)

    def store_masked(self, value: Any, address: Any, mask: Any) -> None:
        """Float at address + 4·i = lanes[i] where `mask` is set; other addresses are not written."""
        place = self.builder.bitcast(address, self.type.as_pointer())
        self._masked("store", [value, place, I32(4), mask], ir.VoidType())

    def gather(self, addresses: Sequence[Any]) -> Any:
        """lanes[i] = float at addresses[i], zero in lanes without one."""
        pointers = (self.builder.bitcast(address, F32.as_pointer()) for address in addresses)
        return self.joined([self.builder.load(pointer) for pointer in pointers])

    def joined(self, scalars: Sequence[Any]) -> Any:
        """lanes[i] = scalars[i], zero in lanes without one."""
        value = self.constant(0.0)
        for lane, scalar in enumerate(scalars):
            value = self.builder.insert_element(value, scalar, I32(lane))
        return value

    def scatter(self, value: Any, addresses: Sequence[Any]) -> None:
        """Float at addresses[i] = lanes[i], for as many lanes as there are addresses."""
        for lane, address in enumerate(addresses):
            scalar = self.builder.extract_element(value, I32(lane))
            self.builder.store(scalar, self.builder.bitcast(address, F32.as_pointer()))

    def first_lanes_mask(self, count: int) -> Any:
        """The mask of the first `count` lanes."""
        return ir.Constant(ir.VectorType(ir.IntType(1), self.lanes), [int(lane < count) for lane in range(self.lanes)])

    def _masked(self, name: str, arguments: Sequence[Any], result: Any) -> Any:
        return call(self.builder, f"llvm.masked.{name}.v{self.lanes}f32.p0v{self.lanes}f32", result, arguments)

    def prefetch(self, address: Any, level: int = L1, write: bool = False) -> None:
        """Prefetch the cache line at `address` into L1 or L2, for reading or writing; invalid addresses don't fault."""
        call(self.builder, "llvm.prefetch.p0i8", ir.VoidType(), [address, I32(int(write)), I32(level), I32(1)])

    def broadcast(self, address: Any) -> Any:
        """Every lane = float at address."""
        return self.splat(self.builder.load(self.builder.bitcast(address, F32.as_pointer())))

    def splat(self, scalar: Any) -> Any:
        """Every lane = scalar, a float or an integer."""
        if self.lanes == 1:
            return scalar
        undefined = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.shuffle(first, first, [0] * self.lanes)

    def shuffle(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """lanes[i] of the concatenation a, b."""
        return self.builder.shuffle_vector(a, b, _integers(tuple(lanes)))

    def permuted(self, a: Any, index: Any) -> Any:
        """lanes[i] = a[index[i]] of int32 indices, modulo the number of lanes, which is one of `PERMUTED_LANES`."""
        return call(self.builder, _PERMUTE[self.lanes], self.type, [a, index])

    def keep_lanes(self, a: Any, count: int) -> Any:
        """The first `count` lanes of a, zero in the others."""
        return self.builder.select(self.first_lanes_mask(count), a, self.constant(0.0))

    # arithmetic
    def _intrinsic(self, name: str, arguments: Sequence[Any], result: Any = None) -> Any:
        suffix = (f"v{self.lanes}" if self.lanes > 1 else "") + f"f{8 * self.size // self.lanes}"
        return call(self.builder, f"llvm.{name}.{suffix}", result or self.type, arguments)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c, rounded once."""
        return self._intrinsic("fma", [a, b, c])

    def negative(self, a: Any) -> Any:
        """−a."""
        return self.builder.fneg(a)

    def add(self, a: Any, b: Any) -> Any:
        """a + b."""
        return self.builder.fadd(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        """a − b."""
        return self.builder.fsub(a, b)

    def mul(self, a: Any, b: Any) -> Any:
        """a·b."""
        return self.builder.fmul(a, b)

    def div(self, a: Any, b: Any) -> Any:
        """a / b."""
        return self.builder.fdiv(a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger of two; b where either is NaN (so put the constant first to propagate NaN)."""
        return self._pick("maximum", ">", a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller of two; b where either is NaN."""
        return self._pick("minimum", "<", a, b)

    def _pick(self, name: str, comparison: str, a: Any, b: Any) -> Any:
        if isinstance(a, ir.Constant) and self.builder.module.triple.startswith("aarch64"):
            return self._intrinsic(name, [a, b])  # one instruction on Arm, NaN where either is NaN
        return self.builder.select(self.builder.fcmp_ordered(comparison, a, b), a, b)

    def absolute(self, a: Any) -> Any:
        """|a|."""
        return self._intrinsic("fabs", [a])

    def copysign(self, magnitude: Any, sign: Any) -> Any:
        """|magnitude| with the sign of `sign`."""
        return self._intrinsic("copysign", [magnitude, sign])

    def round(self, a: Any) -> Any:
        """Nearest integer, ties to even."""
        return self._intrinsic("nearbyint", [a])

    def nearest_int(self, a: Any) -> Any:
        """Nearest integer as int32, ties to even; undefined out of the range of int32."""
        name = _NEAREST.get((self.builder.module.triple.partition("-")[0], self.lanes))
        if name is None:
            return self.builder.fptosi(self.round(a), self.int_type)
        arguments = [a]
        if name.startswith("llvm.x86.avx512"):  # all lanes enabled; rounding by the CPU's current mode
            arguments += [self.int_constant(0), ir.IntType(16)(-1), I32(4)]
        return call(self.builder, name, self.int_type, arguments)

    def clip(self, a: Any, low: float, high: float) -> Any:
        """min(max(a, low), high); NaN stays NaN."""
        return self.minimum(self.constant(high), self.maximum(self.constant(low), a))

    def polynomial(self, a: Any, coefficients: Sequence[float]) -> Any:
        """Horner's rule, highest power first."""
        result = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            result = self.fma(result, a, self.constant(coefficient))
        return result
