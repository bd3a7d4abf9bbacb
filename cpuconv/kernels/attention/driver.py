"""Driver of attention: for a block of queries, scores of all keys, their softmax, and the weighted sum of values.

Keys and values of a matrix are packed once per worker, as panels of GEMM tiles whose lanes are keys, then columns of
values. The scores of a block stay in L2 between the two products, so the softmax is exact and nothing is rescaled.
Sums of weights divide the outputs, of which there are fewer than weights.

Source: the two products tiled over queries as in Rabe and Staats, "Self-attention Does Not Need O(n²) Memory" (2021);
Dao et al., "FlashAttention" (2022), tile over keys too, as their caches are smaller.
"""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F32 as F32_ELEMENT
from cpuconv.elements import Element
from cpuconv.isa.typed import store_float
from cpuconv.isa.vector import F32, I32, I64, Vector
from cpuconv.kernels.attention.dots import call_multiply_keys
from cpuconv.kernels.attention.softmax import call_softmax_rows
from cpuconv.kernels.copies.rounding import call_round_rows
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.intrinsics import copy_float, word
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.emit.transpose import first_lanes, transpose_block, transpose_part
from cpuconv.kernels.products.matrix_strip import load_configuration, release_tiles
from cpuconv.kernels.products.panels import (
    ANY,
    COPIED,
    IN_PLACE,
    ROUNDED,
    TRANSPOSED,
    PanelTile,
    clear_ends,
    narrow_rows,
    pack_panel,
)
from cpuconv.kernels.products.row_strips import multiply_rows
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.runtime.microkernel import MicroKernel

_INFINITY = 0x7F800000  # bits of the inverse of a sum without weights; those of NaN, with either sign, are more
ZERO_ROWS = {"": 0, "hidden": 1, "nan": 2**32 - _INFINITY}
"""Bits of inverse sums from `_INFINITY` on whose rows are zero: none, rows without keys, also rows of NaN."""


@dataclass(frozen=True)
class RowsTile:
    """Tile of `scale_rows`: the vector width, and the type of the results."""

    lanes: int
    y: Element = F32_ELEMENT


@MicroKernel
def scale_rows(
    tile: RowsTile,
    builder: ir.IRBuilder,
    x: Any,
    x_row: Any,
    y: Any,
    y_row: Any,
    rows: Any,
    vectors: Any,
    valid: Any,
    factors: Any,
    zeroed: Any,
) -> None:
    """y = x · factors[row] for `rows` rows of `vectors` vectors, of which the last has `valid` lanes; 0 for factors of
    the first `zeroed` bit patterns from infinity on.
    """
    vec = Vector(builder, tile.lanes)
    mask, last = first_lanes(vec, valid), builder.sub(vectors, I64(1))
    factors = builder.inttoptr(factors, F32.as_pointer())

    def one(row: Any) -> None:
        source = vec.offset(vec.pointer(x), builder.mul(row, x_row))
        target = vec.offset(vec.pointer(y), builder.mul(row, y_row))
        factor = builder.load(builder.gep(factors, [row]))
        bits = builder.zext(builder.bitcast(factor, I32), I64)
        zero = builder.icmp_unsigned("<", builder.sub(bits, I64(_INFINITY)), zeroed)
        zeros, factor = vec.constant(0.0), vec.splat(factor)

        def scale(index: Any, mask: Any = None) -> None:
            value = vec.mul(vec.load(vec.offset(source, builder.mul(index, I64(vec.size)))), factor)
            place = vec.offset(target, builder.mul(index, I64(vec.lanes * tile.y.bytes)))
            store_float(vec, tile.y, builder.select(zero, zeros, value), place, mask)

        def whole(index: Any, values: list[Any]) -> list[Any]:
            scale(index)
            return values

        repeat(vec, I64(0), last, [], whole)
        scale(last, mask)

    loop(builder, 0, rows, one)


_call_scale_rows = scale_rows.caller()


@dataclass(frozen=True)
class AttentionTile:
    """How operands are packed, and how the output is stored: to contiguous rows (`COPIED`), to contiguous columns
    (`TRANSPOSED`), or by elements (`ANY`). `keys` and `values` may be `IN_PLACE`, contiguous along columns and along
    rows. `rounded`: products are of bfloat16. For AMX, `score_parts` and `value_parts` are the parts of bfloat16 of
    queries and keys, and of weights and values; 0: other products.
    """

    lanes: int
    queries: int
    keys: int
    values: int
    output: int
    rounded: bool = False
    score_parts: int = 0
    value_parts: int = 0

    @property
    def matrix(self) -> bool:
        """Whether AMX multiplies."""
        return self.score_parts > 0

    @property
    def query_panel(self) -> PanelTile:
        """How a block of queries is packed."""
        return PanelTile(self.lanes, self.queries, self.score_parts)

    @property
    def key_panel(self) -> PanelTile:
        """How panels of keys are packed."""
        return PanelTile(self.lanes, self.keys, self.score_parts)

    @property
    def value_panel(self) -> PanelTile:
        """How panels of values are packed, and the parts of their weights."""
        return PanelTile(self.lanes, self.values, self.value_parts)


@inline
def _scale(tile, args, sums, factors, y, y_row, valid):
    _call_scale_rows(
        args.scale_rows,
        x=sums,
        x_row=args.sums_row,
        y=y,
        y_row=y_row,
        rows=args.block_rows,
        vectors=args.vectors,
        valid=valid,
        factors=factors,
        zeroed=args.zeroed,
    )


def _store_rows(tile, args, sums, factors, y):
    _scale(tile, args, sums, factors, y, args.y_row, args.valid)


def _store_columns(tile, args, sums, factors, y):
    _scale(tile, args, sums, factors, sums, args.sums_row, tile.lanes)
    if args.block_rows < tile.lanes:
        _copy_elements(tile, args, sums, y)
    else:
        for column in range(0, args.width, tile.lanes):
            columns = min(tile.lanes, args.width - column)
            for row in range(0, args.block_rows, tile.lanes):
                row = min(row, args.block_rows - tile.lanes)
                source = sums + row * args.sums_row + 4 * column
                target = y + 4 * row + column * args.y_column
                if columns == tile.lanes:
                    transpose_block(tile, source, args.sums_row, target, args.y_column)
                else:
                    transpose_part(tile, source, args.sums_row, tile.lanes, target, args.y_column, columns)


def _store_elements(tile, args, sums, factors, y):
    _scale(tile, args, sums, factors, sums, args.sums_row, tile.lanes)
    _copy_elements(tile, args, sums, y)


@inline
def _copy_elements(tile, args, sums, y):
    for row in range(args.block_rows):
        for column in range(args.width):
            source = sums + row * args.sums_row + 4 * column
            copy_float(tile, source, y + row * args.y_row + column * args.y_column)


_STORES = {COPIED: _store_rows, TRANSPOSED: _store_columns, ANY: _store_elements}


@specialise_on_tile(lambda tile: _STORES[tile.output])
def _store(tile, args, sums, factors, y):
    """Store the sums of a block of queries, each row times its factor."""


def _pack_keys(tile, args, k, keys, lines):
    for panel in range(args.key_panels):
        first = panel * args.panel_keys
        count = min(args.panel_keys, args.keys - first)
        k_first = k + first * args.k_column
        target = keys + panel * args.key_panel
        pack_panel(
            tile.key_panel, k_first, args.k_row, args.k_column, args.depth, count, target, args.key_row,
            args.round_rows, lines, args.key_line,
        )  # fmt: skip


def _pack_values(tile, args, v, values, lines):
    for panel in range(args.value_panels):
        first = panel * args.panel_values
        count = min(args.panel_values, args.width - first)
        v_first = v + first * args.v_column
        target = values + panel * args.value_panel
        pack_panel(
            tile.value_panel, v_first, args.v_row, args.v_column, args.keys, count, target, args.value_row,
            args.round_values, lines, args.value_line,
        )  # fmt: skip


def _pack_nothing(tile, args, matrix, target, lines):
    pass


@specialise_on_tile(lambda tile: _pack_nothing if tile.keys == IN_PLACE else _pack_keys)
def _prepare_keys(tile, args, k, keys, lines):
    """Pack all panels of the keys of an item, unless they are read in place."""


@specialise_on_tile(lambda tile: _pack_nothing if tile.values == IN_PLACE else _pack_values)
def _prepare_values(tile, args, v, values, lines):
    """Pack all panels of the values of an item, unless they are read in place."""


def _multiply_in_place(tile, args, queries, k, keys, scores):
    call_multiply_keys(
        args.score_gemm,
        q=queries,
        q_row=args.queries_row,
        rows=args.block_rows,
        k=k,
        k_column=args.k_column,
        keys=args.keys,
        depth=args.depth,
        y=scores,
        y_row=args.scores_row,
    )


def _multiply_packed(tile, args, queries, k, keys, scores):
    for panel in range(args.key_panels):
        multiply_rows(
            args.score_gemm if panel + 1 < args.key_panels else args.score_gemm_last, queries, args.score_a_tile,
            args.score_a_overlap, args.score_table, args.score_segments, args.score_tails,
            args.query_part if tile.matrix else args.key_row, keys + panel * args.key_panel,
            scores + panel * args.key_row, args.scores_row, 4 * tile.lanes, scores, args.score_valid,
            args.padded_rows if tile.matrix else args.block_rows, 0, args.score_tiles, args.score_whole_tiles,
        )  # fmt: skip


@specialise_on_tile(lambda tile: _multiply_in_place if tile.keys == IN_PLACE else _multiply_packed)
def _score(tile, args, queries, k, keys, scores):
    """Multiply a block of queries by all keys."""


@inline
def _differ(tile, args, a, b):
    """Whether items a and b read different keys or values; heads of a group read the same."""
    a, b = args.offsets + 40 * a, args.offsets + 40 * b
    return word(tile, a, 1) != word(tile, b, 1) or word(tile, a, 2) != word(tile, b, 2)


@inline
def _pack_block(tile, args, q, queries, lines):
    """Pack a block of queries, so that its rows are not pages apart; round or split it for products of bfloat16."""
    row, rows, depth, panel = args.queries_row, args.block_rows, args.depth, tile.query_panel
    if tile.matrix and tile.queries == ROUNDED:
        narrow_rows(panel, args.round_rows, q, args.q_row, depth, rows, queries, row, args.query_part)
    elif tile.matrix:
        pack_panel(panel, q, args.q_row, args.q_column, rows, depth, lines, row, 0, 0, 0)
        narrow_rows(panel, args.round_rows, lines, row, depth, rows, queries, row, args.query_part)
    else:
        pack_panel(panel, q, args.q_row, args.q_column, rows, depth, queries, row, args.round_rows, 0, 0)
        if tile.rounded and tile.queries != ROUNDED:
            call_round_rows(args.round_rows, x=queries, x_step=row, depth=depth, rows=rows, y=queries, y_step=row)


@kernel(
    "score_gemm score_gemm_last softmax weigh_gemm weigh_gemm_last scale_rows round_rows round_values q k v mask y "
    "offsets items blocks rows keys depth width block_rows scale vectors valid q_row q_column k_row k_column v_row "
    "v_column mask_row y_row y_column queries_row scores_row sums_row panel_keys key_panels key_row key_panel "
    "panel_values value_panels value_row value_panel key_line value_line space space_step queries_at keys_at "
    "values_at scores_at sums_at factors_at lines_at zeroed score_table score_segments score_tails score_tiles "
    "score_whole_tiles score_valid score_a_tile score_a_overlap weigh_table weigh_segments weigh_tails weigh_tiles "
    "weigh_whole_tiles weigh_valid weigh_a_tile weigh_a_overlap weights_at weights_row query_part weight_part "
    "padded_rows narrow_weights configuration"
)
def attention(tile, worker, before, part, parts, args):
    """y = softmax(q k · scale + mask) v for each item; its five words of `offsets` are its matrices' byte offsets.

    Units are (item, block of queries); the last block of an item overlaps the one before.
    """
    memory = args.space + worker * args.space_step
    queries = memory + args.queries_at
    keys = memory + args.keys_at
    values = memory + args.values_at
    scores = memory + args.scores_at
    sums = memory + args.sums_at
    factors = memory + args.factors_at
    lines = memory + args.lines_at
    vector = 4 * tile.lanes
    if tile.matrix:
        load_configuration(tile, args.configuration)
        rows, padded = args.block_rows, args.padded_rows
        clear_ends(tile.query_panel, queries, args.queries_row, args.query_part, rows, padded)
        clear_ends(tile.value_panel, memory + args.weights_at, args.weights_row, args.weight_part, rows, padded)
    units = args.items * args.blocks
    packed = last_unit(units, before, parts) // args.blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        item = unit // args.blocks
        offsets = args.offsets + 40 * item
        if packed < 0 or _differ(tile, args, packed, item):
            packed = item
            _prepare_keys(tile, args, args.k + word(tile, offsets, 1), keys, lines)
            _prepare_values(tile, args, args.v + word(tile, offsets, 2), values, lines)
        first = min((unit - item * args.blocks) * args.block_rows, args.rows - args.block_rows)
        q = args.q + word(tile, offsets, 0) + first * args.q_row
        _pack_block(tile, args, q, queries, lines)
        _score(tile, args, queries, args.k + word(tile, offsets, 1), keys, scores)
        mask = args.mask + word(tile, offsets, 3) + first * args.mask_row
        call_softmax_rows(
            args.softmax,
            x=scores,
            row_bytes=args.scores_row,
            rows=args.block_rows,
            keys=args.keys,
            mask=mask,
            mask_row=args.mask_row,
            scale=args.scale,
            factors=factors,
        )
        if tile.matrix:
            narrow_rows(
                tile.value_panel, args.narrow_weights, scores, args.scores_row, args.keys, args.block_rows,
                memory + args.weights_at, args.weights_row, args.weight_part,
            )  # fmt: skip
        panels = args.v + word(tile, offsets, 2) if tile.values == IN_PLACE else values
        for panel in range(args.value_panels):
            multiply_rows(
                args.weigh_gemm if panel + 1 < args.value_panels else args.weigh_gemm_last,
                memory + args.weights_at if tile.matrix else scores, args.weigh_a_tile, args.weigh_a_overlap,
                args.weigh_table, args.weigh_segments, args.weigh_tails,
                args.weight_part if tile.matrix else args.value_row, panels + panel * args.value_panel,
                sums + 4 * panel * args.panel_values, args.sums_row, vector, sums, args.weigh_valid,
                args.padded_rows if tile.matrix else args.block_rows, 0, args.weigh_tiles, args.weigh_whole_tiles,
            )  # fmt: skip
        y = args.y + word(tile, offsets, 4) + first * args.y_row
        _store(tile, args, sums, factors, y)
    if tile.matrix:
        release_tiles(tile)
