"""Dot-product kinds: how a 32-bit group of pixels is multiplied by weight vectors, as a table; GEMM tiles use it.

A group (word) is 32 bits: one float32, two 16-bit floats or four int8 of adjacent channels. A weight vector has, for
each of `lanes` output channels, the elements for the group's channels. Where no instruction takes a whole group, it is
split in two parts, the even and the odd elements, each with its own vector of weights.

`vpmaddubsw` multiplies unsigned by signed bytes, adds two products and saturates to int16. With the magnitudes of
weights, at most 128, as the unsigned operand it never saturates, since 128·(-128 - 128) = -2¹⁵. Pixels get the sign:
w·x = |w|·~x + |w| where w is negative, and ~x is the bitwise complement of x. So a group needs two vectors: magnitudes
and flip masks. Sums start from the terms that the complement omits (`Product.added`). The masks also flip the highest
bit where uint8 must become int8. Where weights are small enough, GEMM tiles take two groups at a time, with equal sums
(`products/gemm_maddubs.py`).

With few pixels per weight, loading weights dominates. Weights are then packed as plain int8, and the operands change
places (`compact`): magnitudes are those of the pixel, and its signs flip the weights. All vectors of weights share the
magnitudes and signs of a pixel. The omitted term, |x| of each x below zero, is no longer constant per output channel
but per pixel: `Product.lacking`, which is added to all of its sums.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F16, F32, S8, S16, S32, U8, Element
from cpuconv.isa.dots import Dot
from cpuconv.isa.features import amx_permitted, has_feature
from cpuconv.isa.neon import load_operand
from cpuconv.isa.table import Isa
from cpuconv.isa.typed import as_float, load_as_float
from cpuconv.isa.vector import I32, Vector
from cpuconv.kernels.emit import multiplying
from cpuconv.problem.types import Types
from cpuconv.runtime.code.llvm import ir

WORD = 4  # bytes of a 32-bit group
FEW = 2  # maximum pixels of an image for `compact`: with more, preparing pixels costs more than reading twice the bytes
JOINED_WORDS = 2  # groups that are multiplied together where weights are small enough (`products/gemm_maddubs.py`)
JOINED = 1  # the byte that marks such weights; no flip mask has this value
_FEW_REGISTERS = 16
_FEW_REACH = (0.93, 1.0, 0.9, 0.9)  # reached share of the flipped rate, by weight vectors of a tile, on a Zen 4
_COMPACT_REACH = (0.69, 0.87, 0.94, 1.0)  # the same for compact kinds: weight vectors share a pixel's preparation
_FEW_UNEVEN = 0.045  # `Isa.uneven` on a Zen 4: more sums reload weights for each pixel, fewer sums need more loads
_HALF_PIXELS = (0, 10, 0, 10, 0, 7)  # maximum pixels of a tile with float16 sums: elements of pixels are in v0 to v15
BLOCK = 128  # terms of a sum in float16
_FLIP = -0x7F7F7F80  # 0x80 in each byte: converts int8 to uint8 values that are larger by 128


@dataclass(frozen=True)
class Product:
    """One way to multiply and accumulate.

    Attributes
    ----------
    name : str
        Name in tiles and in forms of packed weights.
    x, w : Element
        Type of the pixels that the instruction takes, and of the weights that it can represent.
    packed : Element
        Type of the packed weights.
    parts : int
        Weight vectors per group of pixels.
    instruction : str
        Name of the instruction's row in `Isa.dots`, or "": a sequence of other instructions.
    rate : float
        Weight vectors multiplied by a group per cycle where the row, or FMA, has a rate of 2. 0: the row's rate, or the
        shared execution ports, decide.
    latency : float
        Cycles from a sum to the next one.
    broadcasts : float
        Most parts of groups broadcast per cycle.
    flipped, compact : bool
        Weights are packed as magnitudes and flip masks for pixels; or as int8, flipped by the signs of pixels.
    half_sums : bool
        Sums are float16 within short blocks of the reduction (`products/gemm_halves.py`), for types with such sums.
    feature : str
        AMX only: LLVM's name of the required CPU feature.
    pairs : tuple of (int, int)
        AMX only: for products of float32, the ranks of the bfloat16 parts of pixels and of weights that are multiplied,
        in this order. A segment has the weights of each part, one after another.
    """

    name: str
    x: Element
    w: Element
    packed: Element
    parts: int = 1
    instruction: str = ""
    rate: float = 0.0
    latency: float = 4.0
    broadcasts: float = math.inf
    flipped: bool = False
    compact: bool = False
    half_sums: bool = False
    feature: str = ""
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def multiplications(self) -> float:
        """Multiplications per weight vector and pixel of a tile."""
        return len(self.pairs) / (1 + max(part for _, part in self.pairs)) if self.pairs else 1.0

    @property
    def cuts(self) -> int:
        """Parts that a group is split into."""
        return 1 if self.flipped else self.parts

    @property
    def multiplied_and_added(self) -> bool:
        """Whether it multiplies int16 by one instruction and adds by another."""
        return self.packed == S16 and not self.instruction

    @property
    def matrix(self) -> bool:
        """Whether it is an AMX kind, on tile registers."""
        return bool(self.feature)

    @property
    def paired(self) -> bool:
        """Whether it multiplies two groups of two pixels by those of two output channels (`gemm_matrix_2x2.py`)."""
        return self.instruction.endswith("mmla")

    @property
    def by_lane(self) -> bool:
        """Whether it multiplies by single elements of a group that is the same in all lanes."""
        return self.instruction == "fmlal"

    @property
    def by_element(self) -> bool:
        """Whether a group of a pixel can be one element of a vector in a register (on NEON)."""
        return self.half_sums or self.instruction in ("vfmadd", "sdot", "usdot", "bfdot")

    def words_at_once(self, lanes: int) -> int:
        """Groups of a pixel per multiplication; AMX: those of a channel block."""
        return lanes if self.matrix else 2 if self.paired else 1

    @property
    def sum(self) -> Element:
        """The type of a tile's sums."""
        return S32 if self.x.integer else F32

    def flips(self, x: Element) -> bool:
        """Whether the sign bit of pixels of type `x` is flipped before the multiplication."""
        return self.parts == 1 and {x, self.x} == {U8, S8}

    def added(self, x: Element) -> tuple[int, int]:
        """Offset added to pixels of type `x` before multiplication by weights >= 0, and by weights < 0."""
        if self.flipped:
            least = -128 if self.x == U8 else 0
            return least, least + 1
        both = 0 if not self.flips(x) else 128 if self.x == U8 else -128
        return both, both

    def takes(self, types: Types) -> bool:
        """Whether it computes problems of these types."""
        signs = {U8, S8}
        same = types.x == self.x or {types.x, self.x} == signs and not self.flipped
        return (
            same
            and (types.w == self.w or (types.w, self.w) == (S8, S16))
            and types.sum == (F16 if self.half_sums else self.sum)
        )

    def sums_type(self, vec: Vector) -> Any:
        """LLVM's type of a vector of sums."""
        if self.half_sums:
            return multiplying.half_vector(vec)
        return vec.int_type if self.sum.integer else vec.type

    def word(self, vec: Vector, address: Any, flipped: bool) -> Any:
        """Broadcast the group at an address to all lanes: a float32, or an int32."""
        if self.name == "fma":
            return vec.broadcast(address)
        builder = vec.builder
        scalar = builder.load(builder.bitcast(address, I32.as_pointer()))
        scalar.align = 1
        if flipped:  # before the broadcast: LLVM 22 does not terminate on the xor of a vector
            scalar = builder.xor(scalar, I32(_FLIP))
        return vec.splat(scalar)

    def broadcast(self, vec: Vector, address: Any, x: Element) -> list[Any]:
        """Broadcast the parts of the group at an address, of elements `x`, to all lanes."""
        if self.x == F16 and self.parts == 2:  # converted before they are broadcast
            pair = load_as_float(Vector(vec.builder, 2), F16, address)
            return [vec.splat(vec.builder.extract_element(pair, I32(part))) for part in range(2)]
        if self.compact:
            return self.split(vec, self.signed(vec, self.word(vec, address, False), x), x)
        return self.split(vec, self.word(vec, address, self.flips(x)), x)

    def signed(self, vec: Vector, words: Any, x: Element) -> Any:
        """Convert groups of elements `x` to the elements that it multiplies, hidden from the optimiser."""
        return self.with_sign(vec, multiplying.hidden(vec, words), x) if self.flips(x) else words

    def with_sign(self, vec: Vector, words: Any, x: Element) -> Any:
        """Convert groups of elements `x` to the elements that it multiplies."""
        return vec.builder.xor(words, vec.int_constant(_FLIP)) if self.flips(x) else words

    def lacking(self, vec: Vector, words: Any, total: Any) -> Any:
        """total + the correction of `compact` sums, per lane's group: |x| of each x below 0."""
        builder = vec.builder
        kind: Any = ir.VectorType(ir.IntType(8), vec.size)
        magnitudes, signs = multiplying.magnitudes_and_signs(vec, words)
        below = builder.bitcast(builder.and_(magnitudes, signs), kind)
        return builder.add(total, multiplying.sums_of_four(vec, below, ir.Constant(kind, [1] * kind.count)))

    def split(self, vec: Vector, word: Any, x: Element) -> list[Any]:
        """The parts of a group of elements `x`, which may differ from lane to lane."""
        if self.compact:
            return [multiplying.magnitudes_and_signs(vec, word)]
        if self.cuts == 1:
            return [word]
        builder = vec.builder
        if self.x == F16:
            narrow: Any = ir.VectorType(ir.IntType(16), vec.lanes)
            halves = word, builder.lshr(word, vec.int_constant(16))
            return [as_float(vec, F16, builder.trunc(half, narrow)) for half in halves]
        if self.x == BF16:
            halves = builder.shl(word, vec.int_constant(16)), builder.and_(word, vec.int_constant(-0x10000))
            return [builder.bitcast(half, vec.type) for half in halves]
        if x == U8:
            mask = vec.int_constant(0x00FF00FF)
            return [builder.and_(word, mask), builder.and_(builder.lshr(word, vec.int_constant(8)), mask)]
        pairs: Any = ir.VectorType(ir.IntType(16), 2 * vec.lanes)
        eight = ir.Constant(pairs, [8] * (2 * vec.lanes))
        bytes_ = builder.bitcast(word, pairs)
        halves = builder.ashr(builder.shl(bytes_, eight), eight), builder.ashr(bytes_, eight)
        return [builder.bitcast(half, vec.int_type) for half in halves]

    def load(self, vec: Vector, address: Any, apart: int = 0) -> Any:
        """Load a vector of packed weights, or magnitudes and flip masks `apart` bytes from each other."""
        if self.flipped:
            return [vec.load_int(vec.offset(address, at), align=vec.size) for at in (0, apart)]
        return load_operand(vec, address, vec.type if self.packed == F32 else vec.int_type, vec.size)

    def add(self, vec: Vector, part: Any, weight: Any, total: Any) -> Any:
        """total + part·weight, per lane."""
        if self.packed == F32:
            return vec.fma(part, weight, total)
        if self.flipped:
            magnitude, flips = weight
            return multiplying.flipped(vec, part, magnitude, flips, total)
        if self.compact:
            magnitudes, signs = part
            return multiplying.flipped(vec, weight, magnitudes, signs, total)
        if self.half_sums:
            return multiplying.halves(vec, part, weight, total)
        if self.multiplied_and_added:
            return multiplying.paired(vec, part, weight, total)
        if self.by_lane:
            return multiplying.by_lane(vec, part, weight, total)
        return multiplying.dot(vec, self.instruction, self.packed, part, weight, total)


TABLE: tuple[Product, ...] = (
    Product("fma", F32, F32, F32, instruction="vfmadd"),
    Product("vdpbf16ps", BF16, BF16, BF16, instruction="vdpbf16ps", latency=6.0),
    Product("vpdpbusd", U8, S8, S8, instruction="vpdpbusd"),
    Product("vpdpbssd", S8, S8, S8, instruction="vpdpbssd"),
    Product("bfdot", BF16, BF16, BF16, instruction="bfdot"),
    Product("usdot", U8, S8, S8, instruction="usdot"),
    Product("sdot", S8, S8, S8, instruction="sdot"),
    Product("usmmla", U8, S8, S8, instruction="usmmla"),
    Product("smmla", S8, S8, S8, instruction="smmla"),
    Product("bfmmla", BF16, BF16, BF16, instruction="bfmmla"),
    Product("widened", BF16, BF16, F32, parts=2, rate=2.0),
    Product("vpmaddubsw", U8, S8, S8, parts=2, instruction="vpmaddubsw", rate=1.8, latency=1.0, flipped=True),
    Product("vpmaddubsw_s8", S8, S8, S8, parts=2, instruction="vpmaddubsw", rate=1.8, latency=1.0, flipped=True),
    Product("fmlal", F16, F16, F16, instruction="fmlal", rate=1.0),
    Product("fmla_f16", F16, F16, F16, instruction="fmla", latency=8.0, half_sums=True),
    Product("converted", F16, F16, F32, parts=2, rate=2.0, broadcasts=0.75),
    Product("pairs", U8, S16, S16, parts=2, latency=1.0),
)
MATRIX: tuple[Product, ...] = (
    Product("tdpbusd", U8, S8, S8, instruction="tdpbusd", feature="amx-int8"),
    Product("tdpbssd", S8, S8, S8, instruction="tdpbssd", feature="amx-int8"),
    Product("tdpbf16ps", BF16, BF16, BF16, instruction="tdpbf16ps", feature="amx-bf16"),
)
_TWO, _THREE = ((0, 1), (0, 0), (1, 0)), ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0))
SPLIT: dict[int, Product] = {  # float32 by bfloat16 parts, whose ranks add up to less than their number
    len(pairs): replace(MATRIX[-1], name=f"tdpbf16ps_{len(pairs)}", parts=parts, pairs=pairs)
    for parts, pairs in ((2, _TWO), (3, _THREE))
}
PAIRS: tuple[Product, ...] = (  # of int16, which is the type of transformed tiles only, not of arrays
    Product("vpdpwssd", S16, S16, S16, instruction="vpdpwssd"),
    Product("pmaddwd", S16, S16, S16, latency=1.0),
)
COMPACT = Product("vpmaddubsw_few", S8, S8, S8, instruction="vpmaddubsw", rate=0.7, latency=1.0, compact=True)
FMA = TABLE[0]
BY_NAME = {product.name: product for product in (*TABLE, *MATRIX, *SPLIT.values(), *PAIRS, COMPACT)}


def usable(isa: Isa, product: Product) -> bool:
    """Whether the target CPU has its instruction."""
    if not product.instruction or product.name == "fma":
        return True
    return any(_performs(dot, product) and has_feature(dot.feature) for dot in isa.dots)


def _performs(dot: Dot, product: Product) -> bool:
    """Whether an instruction is that of a kind; those of several types may have one name."""
    return (dot.name, dot.w) == (product.instruction, product.packed)


def rate(isa: Isa, product: Product) -> float:
    """Weight vectors multiplied by a group per cycle."""
    if product.name == "fma" or product.packed == F32:
        return isa.fma_rate
    if product.multiplied_and_added:  # both instructions share ports
        return 1 / (1 / isa.fma_rate + 1 / isa.additions)
    found = next((dot.rate for dot in isa.dots if _performs(dot, product)), 0.0)
    if product.rate:
        return product.rate * (found or isa.fma_rate) / 2
    return (2 if product.paired else 1) * found


@functools.lru_cache(maxsize=256)
def product_of(types: Types, isa: Isa) -> Product | None:
    """The fastest kind for those types on this CPU; None: there is none."""
    able = [product for product in TABLE if product.takes(types) and usable(isa, product)]
    return max(able, key=lambda each: (rate(isa, each) / each.parts, each.x == types.x), default=None)


@functools.lru_cache(maxsize=256)
def single_product_of(types: Types, isa: Isa) -> Product | None:
    """The fastest kind for those types that takes one group at a time, another in each lane; None: none."""
    able = [product for product in TABLE if product.takes(types) and usable(isa, product)]
    able = [product for product in able if not (product.paired or product.by_lane)]
    return max(able, key=lambda each: (rate(isa, each) / each.parts, each.x == types.x), default=None)


def of_few(product: Product) -> Product:
    """The replacement of a kind where at most `FEW` pixels are multiplied by each weight."""
    return COMPACT if product.flipped else product


@functools.lru_cache(maxsize=16)
def pair_product(isa: Isa) -> Product:
    """The fastest int16 kind on this CPU, two int16 per group; sums are modulo 2³²."""
    return max((each for each in PAIRS if usable(isa, each)), key=lambda each: rate(isa, each))


@functools.lru_cache(maxsize=256)
def matrix_product_of(types: Types) -> Product | None:
    """The AMX kind for those types; None: there is none, or the system does not permit AMX."""
    if not amx_permitted():
        return None
    return next(
        (each for each in MATRIX if each.x == types.x and each.w == types.w and has_feature(each.feature)), None
    )


def as_seen(isa: Isa, product: Product) -> Isa:
    """Instruction set for the tile model with this kind in place of FMA; parts of split groups take registers.

    With more integer sums than all registers but four, LLVM spills some of them (seen in machine code for AVX-512).
    """
    if product.name == "fma":
        return isa
    pixels = tuple(max(1, most - 2) for most in isa.pixels) if product.cuts > 1 else isa.pixels
    if product.sum.integer:
        pixels = tuple(min(most, isa.registers - 4) for most in pixels)
    if product.paired:  # a pair of pixels has its sums and the operands of two steps in registers
        most_pairs = [(isa.registers - 2) // (2 * v + 2) for v in range(1, len(pixels) + 1)]
        pixels = tuple(min(most, max(1, 2 * pairs)) for most, pairs in zip(pixels, most_pairs, strict=True))
    if product.half_sums:
        isa, pixels = replace(isa, sum_block=BLOCK * product.x.bytes // WORD), _HALF_PIXELS
    if product.compact:
        isa = replace(isa, efficiency=_COMPACT_REACH)
    if product.flipped and isa.registers <= _FEW_REGISTERS:  # flip masks are read from memory each time
        isa = replace(isa, efficiency=_FEW_REACH, uneven=_FEW_UNEVEN)
    if not product.by_element:
        isa = replace(isa, scalars_per_load=1)
    broadcasts = min(isa.broadcast_rate, product.broadcasts)
    fma = replace(isa.dots[0], rate=rate(isa, product))
    return replace(isa, dots=(fma, *isa.dots[1:]), pixels=pixels, broadcast_rate=broadcasts, latency=product.latency)
