"""Parameters of GEMM tiles, and their memory operands, shared by the parts of the emitter."""

from __future__ import annotations

import itertools
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32, Element
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.product import BY_NAME

LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class GemmTile:
    """Parameters of a GEMM tile; strides in 32-bit groups (4 bytes)."""

    lanes: int
    v: int  # weight vectors (complex tiles: pairs of vectors): v·lanes output channels
    rows: int  # output rows; complex tiles: 2
    cols: int  # pixels per row
    unroll: int  # scalars of a segment
    xs: int  # stride of pixels of x within a tile row; 0 (planar tiles): xrow / cols
    ys: int  # stride of pixels of y within a tile row
    ks: int = 1  # stride of scalars within a segment; 0: a run-time argument
    stream: bool = False  # prefetch weights into L1, just ahead of their use
    fetch: int = 0  # cache lines of the next weights (planar: pixels) prefetched into L2 per scalar (AMX: per segment)
    resume: bool = False  # sums start from those of the previous part
    suspend: bool = False  # sums go to the buffer, without epilogue
    valid: int = 0  # lanes of the last vector that are channels, others are stored as zero (planar: not); 0: all
    planar: bool = False  # lanes are pixels, and columns output channels
    masked: bool = False  # planar tiles: the pixels of the last vector are a run-time count
    loose: int = 0  # of planar tiles, pixels after the vectors; then `cols` is at most `lanes`
    has_epilogue: bool = True  # False: store the plain sums
    residual: bool = False
    activation: tuple[Any, ...] | None = None
    complex: bool = False  # rows are real and imaginary parts
    tail: int = 0  # scalars of each shorter segment at the end, whose number is a run-time argument; 0: none
    product: str = "fma"  # name of the dot-product kind in `product.TABLE`
    x: Element = F32  # element type of the pixels
    y: Element = F32
    unused_vectors: int = 0  # number of weight vectors at the end without channels: packed, but not multiplied
    row_pixels: int = 0  # AMX: width in pixels of the rows of a plane that is one row of tiles; 0: other tiles
    valid_pixels: int = 0  # AMX: pixels of each such row that are outputs; 0: all
    zeros: int = 0  # vectors of zeros stored after the output vectors
    one_block: bool = False  # the whole reduction is one block of float16 sums

    @property
    def vectors(self) -> int:
        """Weight vectors read for each scalar of the reduction."""
        return self.v * (2 if self.complex else BY_NAME[self.product].parts)

    @property
    def used(self) -> int:
        """Weight vectors that are multiplied with each pixel."""
        return self.v - self.unused_vectors

    @property
    def packed(self) -> bool:
        """Whether vectors of a planar tile's pixels are packed like weights, in 32-bit groups, and both operands are in
        a cache."""
        return self.planar and self.x != F32

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of sums."""
        return Epilogue(BY_NAME[self.product].sum, self.y, self.residual, self.activation)

    @property
    def vectors_per_pixel(self) -> int:
        """Output vectors per pixel of an output block."""
        return 4 // self.y.part_bytes

    @property
    def sums(self) -> int:
        """Vectors of sums: those of each column, then those of the loose pixels."""
        return self.used * len(self.pixels) + self.loose

    @property
    def in_blocks(self) -> bool:
        """Whether sums are float16 within blocks of the reduction, and float32 across them."""
        return BY_NAME[self.product].half_sums and not self.one_block

    @property
    def accumulators(self) -> int:
        """Vector registers of sums; two vectors of float16 sums are one."""
        return len(self.pixels) * -(-self.used // 2) if BY_NAME[self.product].half_sums else self.sums

    @property
    def suspended_vectors(self) -> int:
        """Vectors of a tile's sums between parts: the same for all tiles of a panel, whichever they multiply."""
        return self.v * len(self.pixels) + self.loose

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """(row, column) of each pixel."""
        return list(itertools.product(range(self.rows), range(self.cols)))


@dataclass(frozen=True)
class Memory:
    """Memory operands of a tile: addresses, counts and byte strides, as int64 LLVM values."""

    x: Any
    xrow: Any  # stride of tile rows; planar tiles: stride of the tiles' weights
    table: Any
    segments: Any
    tails: Any  # number of shorter segments at the end
    kstep: Any  # stride of scalars within a segment where `ks` is 0, and of the pixel vectors of planar tiles
    w: Any
    y: Any
    yrow: Any  # stride of tile rows; planar tiles: stride of output channels
    yvec: Any  # stride of output vectors
    bias: Any
    residual: Any  # distance from y to the residual
    suspended_sums: Any  # the tile's sums between parts
    prefetch_address: Any  # first address to prefetch; each scalar adds `fetch_step`
    fetch_step: Any
    valid: Any  # pixels of the last vector of a masked tile
