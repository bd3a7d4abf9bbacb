"""Sizes of blocked convolutions in vectors, their modelled cycles, and the fastest tiles."""

from __future__ import annotations

from dataclasses import replace

from baselib.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.kernels.emit.product import Product
from cpuconv.kernels.products.matrix_strip import PIXEL_CYCLES, matrix_cycles
from cpuconv.kernels.products.tiling import Tile, cycles, tiles
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import segments, spans, words
from cpuconv.solvers.shared.gemm_call import ending_cycles
from cpuconv.solvers.shared.split_products import PART_CYCLES
from cpuconv.symbolic.sizes import memoised, now

_ALONE = 1.35  # cycles of sign-flipped products of segments of one 32-bit group, over those of longer segments


@dataclass(frozen=True)
class Geometry:
    """Sizes of a group in vectors: output vectors, and weight vectors per sum; the dot product and the problem."""

    vectors: int
    reduction: int
    product: Product
    seen: Isa  # instruction set for the tile model, in which the problem's dot product replaces the FMA
    problem: ConvProblem  # problem of the kernel: groups that share channel blocks are merged
    share: float = 1.0  # mean share of the weight vectors that a panel reads
    rows_first: bool = False  # tiles skip padding

    def cycles(self, isa: Isa, params: Params, v: int = 0) -> float:
        """Modelled cycles of a tile; `v`: number of its weight vectors that are multiplied (0: all)."""
        v, rows, cols = v or params.v, params.rows, now(params.cols)
        if self.product.matrix:
            y = self.problem.types.y
            pixel = PIXEL_CYCLES + (PART_CYCLES * y.parts if y.parts > 1 else 0.0)
            return matrix_cycles(v, rows, cols, self.reduction * self.product.multiplications / isa.lanes, pixel)
        epilogue = v * rows * cols * ending_cycles(self.problem, v)
        alone = _ALONE if self.product.flipped and words.words(self.problem) == 1 else 1.0
        return alone * cycles(self.seen, v, rows * cols, round(self.multiplied(rows))) + epilogue

    def multiplied(self, rows: int = 1) -> float:
        """Mean number of weight vectors per sum that a tile of this many rows multiplies; smallest for one row."""
        return self.share * self.reduction * (segments.share(self.problem, rows) if self.rows_first else 1.0)

    def panel_cycles(self, isa: Isa, params: Params) -> float:
        """Modelled cycles of the tiles of all panels at one position; the last panel of types other than float32 does
        not multiply vectors without channels."""
        panels, rest = divmod(self.vectors, params.v)
        if not rest or self.product.matrix or self.problem.types == ALL_F32:
            return divide(self.vectors, params.v) * self.cycles(isa, params)
        return panels * self.cycles(isa, params) + self.cycles(isa, params, rest)


@dataclass(frozen=True)
class Params:
    """Tile of v weight vectors × rows × cols output pixels; `block`: tile rows per band, or tiles per block of a plane
    that is one row (0: all)."""

    v: int
    rows: int
    cols: int
    block: int


def geometry(problem: ConvProblem, isa: Isa, product: Product | None = None, v: int = 1) -> Geometry:
    """Sizes of one group with a dot product, by default the problem's; of merged groups, with `v` weight vectors."""
    return _geometry(problem, isa, product, v if spans.needed(problem, isa) else 1)


@memoised(64)  # called for all candidates of a problem
def _geometry(problem: ConvProblem, isa: Isa, product: Product | None, v: int) -> Geometry:
    product = product or words.product(problem, isa)
    seen = words.seen(isa, product)
    taps = problem.r * problem.s * product.parts
    if (parts := spans.spans(problem, isa, v)) is not None:
        whole = replace(problem, groups=1)
        return Geometry(divide(problem.k, isa.lanes), parts.most * taps, product, seen, whole, parts.share)
    reduction = words.words(problem, product.words_at_once(isa.lanes)) * taps
    rows_first = segments.rows_first(problem, isa, product)
    return Geometry(divide(problem.kg, isa.lanes), reduction, product, seen, problem, rows_first=rows_first)


def best_tiles(problem: ConvProblem, isa: Isa, height: int, width: int, most: int) -> tuple[Tile, ...]:
    """The `most` fastest tiles for an output plane, fastest first; for merged groups, some of each number of
    vectors."""
    if spans.needed(problem, isa):
        return tuple(
            tile
            for v in words.vector_counts(replace(problem, groups=1), isa) or ()
            for tile in _tiles(problem, isa, height, width, divide(most, 2), (v,), v)
        )
    return _tiles(problem, isa, height, width, most, words.vector_counts(problem, isa))


def _tiles(
    problem: ConvProblem, isa: Isa, height: int, width: int, most: int, counts: tuple[int, ...] | None, v: int = 1
) -> tuple[Tile, ...]:
    sizes = geometry(problem, isa, v=v)
    return tiles(sizes.seen, sizes.vectors, height, width, sizes.reduction, most, counts)


def inner_tiles(
    stride: int, reach: int, pad_left: int, cols: int, outputs: int, width: int, band_width: int
) -> tuple[int, int, int, int]:
    """First tile of a row that reads no padding, and the one after the last; and the columns up to which, and from
    which on, the band is needed."""
    starts = [min(tile * cols, outputs - cols) * stride for tile in range(divide(outputs, cols))]  # in the band
    span = (cols - 1) * stride + reach
    inner = [tile for tile, start in enumerate(starts) if start >= pad_left and start + span <= pad_left + width]
    if not inner:
        return 0, 0, 0, starts[0] if starts else band_width
    first, end = inner[0], inner[-1] + 1
    return first, end, starts[first - 1] + span if first else 0, starts[end] if end < len(starts) else band_width
