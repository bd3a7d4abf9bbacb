"""GEMM tiles as drivers of convolutions call them: the tile of a problem, and the arguments that all drivers take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F16
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args
from cpuconv.kernels.binding.columns import Columns
from cpuconv.kernels.binding.steps import Args, MicroRef, OneOf, Operands, Step
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit.product import WORD, Product
from cpuconv.kernels.products import gemm_halves
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import LINE, GemmTile
from cpuconv.kernels.products.matrix_strip import matrix_strip
from cpuconv.kernels.products.tiling import streams
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.symbolic.sizes import now

_BYTES_CYCLES = (1.1, 0.5)  # to end a vector of sums as bytes, and to store those of a pixel (Zen 5)


@dataclass(frozen=True)
class Params:
    """A tile whose pixels follow one another.

    Attributes
    ----------
    v : int
        Weight vectors of a tile.
    n : int
        Pixels of a tile.
    block : int
        Tiles of pixels (of `row_patches`: output rows) that pass under all weights before the next ones do.
    """

    v: int
    n: int
    block: int


def gemm_tile(
    problem: ConvProblem,
    isa: Isa,
    product: Product,
    v: int,
    rows: int,
    cols: int,
    reduction: int,
    alone: bool = False,
    **fields: Any,
) -> GemmTile:
    """The tile of `v` weight vectors and rows x cols pixels for a problem; `fields`: what else it has.

    `reduction`: weight vectors that a sum takes. `alone`: one tile has all pixels, so that weights are one stream,
    which hardware follows better than prefetches do.
    """
    return GemmTile(
        lanes=isa.lanes,
        v=v,
        rows=rows,
        cols=cols,
        ys=isa.lanes * problem.types.y.parts,
        stream=streams(isa, v, reduction) and not alone,
        residual=problem.residual,
        activation=problem.activation,
        product=product.name,
        x=problem.types.x,
        y=problem.types.y,
        one_block=problem.types.y == F16 and gemm_halves.is_one_block(isa, product, reduction),
        **fields,
    )


@dataclass(frozen=True)
class Fetching:
    """What tiles prefetch of the weights that take their own weights' place.

    Attributes
    ----------
    lines : int
        Cache lines beside a scalar.
    step : int
        Bytes between what is fetched beside two scalars: what a scalar's lines bring; several may be of one line.
    shares : int
        Tiles that together fetch all.
    """

    lines: int = 1
    step: int = 0
    shares: int = 1

    @classmethod
    def shared(cls, scalar: int, scalars: int, tiles: int) -> Fetching:
        """Equal shares of the `tiles` of a block, so that weights come evenly: `scalar` bytes for each of the `scalars`
        of a segment."""
        shares = min(now(tiles), divide(scalar * scalars, LINE))
        step = divide(scalar, shares)
        return cls(divide(step, LINE), step, shares)

    @property
    def args(self) -> Args:
        """The driver's."""
        return {"fetch_step": self.step, "shares": self.shares}


def ending_cycles(problem: ConvProblem, v: int) -> float:
    """Cycles to end a vector of sums in tiles of `v` weight vectors, beside those of a store."""
    each, stored = _BYTES_CYCLES
    return each + stored / v if problem.types.sum.integer and Epilogue.of(problem).requantizes else 0.0


def micro(tile: GemmTile, matrix: bool = False) -> MicroRef:
    """The micro-kernel of a tile; `matrix`: by tile registers."""
    return MicroRef(matrix_strip if matrix else gemm_strip, tile)


def gemm_args(
    operands: Operands,
    gemm: GemmTile,
    last: GemmTile,
    table: np.ndarray,
    reduction: int,
    panels: int,
    columns: Columns,
    matrix: bool = False,
) -> Args:
    """Operands, tiles (`last`: of the last panel) with so many columns, the offsets of segments, and panels of weights.

    `table`: of the segments; where groups have their own, a row for each.
    """
    return {
        "gemm": columns.ref(lambda cols: micro(replace(gemm, cols=cols), matrix)),
        "gemm_last": columns.ref(lambda cols: micro(replace(last, cols=cols), matrix)),
        "tile_vectors": gemm.v,
        **operand_args(operands),
        "table": table,
        "segments": table.shape[-1],
        "panel_bytes": reduction * gemm.v * gemm.lanes * WORD,
        "panels": panels,
    }


def with_pixel_distances(step: Step, distances: dict[str, int]) -> Step:
    """The step with other distances between pixels, in 32-bit words: the fields `xs` and `ys` of its GEMM tiles."""

    def changed(ref: MicroRef) -> MicroRef:
        return replace(ref, tile=replace(ref.tile, **distances))

    args: Args = {}
    for name, value in step.args.items():
        if isinstance(value, OneOf):
            args[name] = replace(value, refs=tuple(changed(ref) for ref in value.refs))
        elif isinstance(value, MicroRef):
            args[name] = changed(value)
    return replace(step, args=step.args | args)


def bias_bytes(problem: ConvProblem, isa: Isa) -> int:
    """Bytes of what a vector of sums ends with."""
    return WORD * isa.lanes * len(Epilogue.of(problem).rows)
