"""The parameters of GEMM tiles, and where one reads and writes: what the parts of the emitter have in common."""

from __future__ import annotations

import itertools
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.kernels.elementwise.ending import Ending
from cpuconv.kernels.emit.product import BY_NAME

LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class GemmTile:
    """Parameters of a GEMM tile; strides in words of four bytes."""

    lanes: int
    v: int  # weight vectors (of complex tiles: pairs): v·lanes output channels
    rows: int  # of complex tiles: 2
    cols: int
    unroll: int  # scalars of a segment
    xs: int  # from a pixel of x to the next in its tile row; 0, of planar tiles: an equal share of `xrow`
    ys: int  # the same in y
    ks: int = 1  # from a scalar of a segment to the next; 0: given at run time
    stream: bool = False  # prefetch weights into L1, just ahead of their use
    fetch: int = 0  # cache lines prefetched into L2 beside a scalar (AMX: a segment), of what takes the vectors' place
    resume: bool = False  # sums start from those of the part before
    suspend: bool = False  # sums go to the buffer, without epilogue
    valid: int = 0  # lanes of the last vector that are channels, the others stored as zero; 0: all
    planar: bool = False  # lanes are pixels, and columns output channels
    masked: bool = False  # of planar tiles: the last vector has as many pixels as is said at run time
    loose: int = 0  # of planar tiles, pixels after the vectors; then `cols` is at most `lanes`
    epilogue: bool = True  # False: store the plain sums
    residual: bool = False
    activation: tuple[Any, ...] | None = None
    complex: bool = False  # rows are real and imaginary parts
    tail: int = 0  # scalars of each of the last segments, at run time so many, after longer ones; 0: there are none
    product: str = "fma"  # a name in `product.TABLE`
    x: Element = F32  # of the pixels
    y: Element = F32
    absent: int = 0  # of the weight vectors, the last so many hold no channel: they are packed, but not multiplied
    pitch: int = 0  # of a row that is a whole plane: from the start of a row to the next, of which `inside` are outputs
    inside: int = 0  # (AMX only); 0: all are
    zeros: int = 0  # output vectors that are stored as zero behind the others

    @property
    def vectors(self) -> int:
        """Weight vectors read for each scalar of the reduction."""
        return self.v * (2 if self.complex else BY_NAME[self.product].parts)

    @property
    def used(self) -> int:
        """Weight vectors that are multiplied with each pixel."""
        return self.v - self.absent

    @property
    def ending(self) -> Ending:
        """What happens to sums."""
        return Ending(BY_NAME[self.product].sum, self.y, self.residual, self.activation)

    @property
    def pieces(self) -> int:
        """Output vectors that lie side by side in a pixel of a block."""
        return 4 // self.y.bytes

    @property
    def sums(self) -> int:
        """Vectors of sums: column by column, then the loose pixels."""
        return self.used * len(self.pixels) + self.loose

    @property
    def parked(self) -> int:
        """Vectors of a tile's sums between parts: all tiles of a panel have as many, whatever they multiply of them."""
        return self.v * len(self.pixels) + self.loose

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """(row, column) of each pixel."""
        return list(itertools.product(range(self.rows), range(self.cols)))


@dataclass(frozen=True)
class Memory:
    """Where a tile reads and writes: addresses, counts and byte strides, all LLVM values of a word."""

    x: Any
    xrow: Any  # from a tile row to the next; of planar tiles, from the weights of a tile to those of the next
    table: Any
    segments: Any
    tails: Any  # of these, the last so many are shorter
    kstep: Any  # between the scalars of a segment when `ks` is 0, and between the vectors of pixels of planar tiles
    w: Any
    y: Any
    yrow: Any  # from a tile row to the next; of planar tiles, from an output channel to the next
    yvec: Any  # from an output vector to the next
    bias: Any
    residual: Any  # distance from y to the residual
    parked: Any  # the tile's sums between parts
    upcoming: Any  # what to fetch, `fetch_step` on for each scalar
    fetch_step: Any
    valid: Any  # pixels of the last vector of a masked tile
