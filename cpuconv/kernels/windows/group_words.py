"""Words of narrow elements for groups that share a vector of sums: a lane takes the words of its own group.

The input channels of a vector of sums lie side by side in a pixel: they are loaded as they lie, and word i of its group
is shuffled to every lane. With four channels of bytes a group, one product adds all channels of a pixel's tap.
"""

from __future__ import annotations

from typing import Any

from autotune.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.isa.vector import I32, Vector
from cpuconv.kernels.emit.product import BY_NAME, WORD, Product
from cpuconv.runtime.code.llvm import ir

_FLIP = -0x7F7F7F80  # 0x80 in each byte: the other sign


@dataclass(frozen=True)
class GroupWords:
    """Groups of `c` input and `k` output channels in a vector of `lanes` sums.

    Attributes
    ----------
    name : str
        The product's, in `product.TABLE`.
    x : Element
        Of the input.
    """

    lanes: int
    c: int
    k: int
    name: str
    x: Element

    @property
    def product(self) -> Product:
        """What multiplies words."""
        return BY_NAME[self.name]

    @property
    def elements(self) -> int:
        """Channels of a word."""
        return WORD // self.x.bytes

    @property
    def chunk(self) -> int:
        """Words of the input channels of a vector of sums; 0: they are no whole words, or blocks cut them."""
        words, rest = divmod(self.lanes // self.k * self.c, self.elements)
        whole = self.lanes % self.k == 0 and rest == 0 and words > 0 and self.lanes % words == 0
        whole &= self.c % self.elements == 0 or self.elements % self.c == 0
        return words if whole else 0

    @property
    def count(self) -> int:
        """Words that a lane takes."""
        return max(1, self.c // self.elements)

    def first(self, lane: int) -> int:
        """The first input channel of a lane's group, from that of the vector on."""
        return lane // self.k * self.c

    @property
    def starts(self) -> tuple[int, ...]:
        """Of each lane, the element of its first word that is its group's first channel."""
        return tuple(self.first(lane) % self.elements for lane in range(self.lanes))

    def load(self, vec: Vector, address: Any) -> Any:
        """The words of a pixel, of the sign that the product takes."""
        kind: Any = ir.VectorType(I32, self.chunk) if self.chunk > 1 else I32
        value = vec.builder.load(vec.builder.bitcast(address, kind.as_pointer()))
        value.align = 1
        if not self.product.flips(self.x):
            return value
        flip = [_FLIP] * self.chunk if self.chunk > 1 else _FLIP
        return vec.builder.xor(value, ir.Constant(kind, flip))

    def spread(self, vec: Vector, words: Any, i: int) -> list[Any]:
        """Word i of its group in each lane, in the parts that the product takes."""
        if self.chunk == 1:
            word = vec.splat(words)
        else:
            word = vec.shuffle(words, words, [self.first(lane) // self.elements + i for lane in range(self.lanes)])
        return self.product.split(vec, word, self.x)
