"""32-bit groups of narrow elements for convolution groups that share a vector of sums, one shuffle per group.

The input channels of a vector of sums are adjacent in a pixel. They are loaded once, and 32-bit group i of each
convolution group is shuffled to its lanes. With four int8 channels per convolution group, one dot product adds all
channels of a tap.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.isa.vector import I32, Vector
from cpuconv.kernels.emit.product import BY_NAME, WORD, Product
from cpuconv.runtime.code.llvm import ir

_FLIP = -0x7F7F7F80  # 0x80 in each byte: converts between int8 and uint8


@dataclass(frozen=True)
class GroupWords:
    """Convolution groups of `c` input and `k` output channels in a vector of `lanes` sums.

    Attributes
    ----------
    name : str
        Name of the dot-product kind in `product.TABLE`.
    x : Element
        Element type of the input.
    """

    lanes: int
    c: int
    k: int
    name: str
    x: Element

    @property
    def product(self) -> Product:
        """The dot-product kind."""
        return BY_NAME[self.name]

    @property
    def elements(self) -> int:
        """Channels per 32-bit group."""
        return WORD // self.x.bytes

    @property
    def chunk(self) -> int:
        """32-bit groups in the input channels of a vector of sums; 0: not a whole number, or blocks split them."""
        words, rest = divmod(self.lanes // self.k * self.c, self.elements)
        whole = self.lanes % self.k == 0 and rest == 0 and words > 0 and self.lanes % words == 0
        whole &= self.c % self.elements == 0 or self.elements % self.c == 0
        return words if whole else 0

    @property
    def count(self) -> int:
        """32-bit groups per lane."""
        return max(1, self.c // self.elements)

    def first(self, lane: int) -> int:
        """The first input channel of a lane's convolution group, relative to the vector's."""
        return lane // self.k * self.c

    @property
    def starts(self) -> tuple[int, ...]:
        """For each lane, the element of its first 32-bit group that is the first channel of its convolution group."""
        return tuple(self.first(lane) % self.elements for lane in range(self.lanes))

    def load(self, vec: Vector, address: Any) -> Any:
        """Load the 32-bit groups of a pixel, with the sign that the dot-product kind takes."""
        kind: Any = ir.VectorType(I32, self.chunk) if self.chunk > 1 else I32
        value = vec.builder.load(vec.builder.bitcast(address, kind.as_pointer()))
        value.align = 1
        if not self.product.flips(self.x):
            return value
        flip = [_FLIP] * self.chunk if self.chunk > 1 else _FLIP
        return vec.builder.xor(value, ir.Constant(kind, flip))

    def spread(self, vec: Vector, words: Any, i: int) -> list[Any]:
        """Shuffle 32-bit group i of its convolution group to each lane, and split it to the kind's parts."""
        if self.chunk == 1:
            word = vec.splat(words)
        else:
            word = vec.shuffle(words, words, [self.first(lane) // self.elements + i for lane in range(self.lanes)])
        return self.product.split(vec, word, self.x)
