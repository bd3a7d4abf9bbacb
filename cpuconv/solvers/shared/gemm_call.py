"""GEMM tiles of convolution drivers: the tile of a problem, and the arguments that all drivers take."""

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

_BYTES_CYCLES = (1.1, 0.5)  # cycles per vector of sums of the int8 epilogue, and per stored vector (Zen 5)


@dataclass(frozen=True)
class Params:
    """Tile of adjacent pixels.

    Attributes
    ----------
    v : int
            Weight vectors per tile.
    n : int
            Pixels per tile.
    block : int
            Tiles per block (`row_patches`: output rows), which all weights are applied to before the next block.
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
    """Tile of `v` weight vectors and rows x cols pixels for a problem; `fields`: further fields.

    `reduction`: weight vectors per sum. `alone`: one tile has all pixels, so weights are read as one stream, which the
    hardware prefetcher follows better than prefetch instructions do.
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
    """Prefetches of the weights that the next tiles read.

    Attributes
    ----------
    lines : int
            Cache lines per scalar.
    step : int
            Bytes between the prefetches of two scalars; several may be in one cache line.
    shares : int
            Tiles that divide the prefetches.
    """

    lines: int = 1
    step: int = 0
    shares: int = 1

    @classmethod
    def shared(cls, scalar: int, scalars: int, tiles: int) -> Fetching:
        """Equal shares for the `tiles` of a block, so that weights arrive evenly: `scalar` bytes for each of the
        `scalars` of a segment."""
        shares = min(now(tiles), divide(scalar * scalars, LINE))
        step = divide(scalar, shares)
        return cls(divide(step, LINE), step, shares)

    @property
    def args(self) -> Args:
        """Arguments of the driver."""
        return {"fetch_step": self.step, "shares": self.shares}


def ending_cycles(problem: ConvProblem, v: int) -> float:
    """Epilogue cycles per vector of sums of tiles with `v` weight vectors, in addition to a store."""
    each, stored = _BYTES_CYCLES
    return each + stored / v if problem.types.sum.integer and Epilogue.of(problem).requantizes else 0.0


def micro(tile: GemmTile, matrix: bool = False) -> MicroRef:
    """Micro-kernel of a tile; `matrix`: on tile registers."""
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
    """Operands, tiles (`last`: of the last panel) with their columns, offsets of segments, and weight panels.

    `table`: offsets of the segments, with one row per group where these differ.
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
    """The step with other pixel strides, in 32-bit elements: the fields `xs` and `ys` of its GEMM tiles."""

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
    """Bytes of epilogue operands per vector of sums."""
    return WORD * isa.lanes * len(Epilogue.of(problem).rows)
