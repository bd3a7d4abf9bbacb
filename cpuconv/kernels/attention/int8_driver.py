"""Driver of quantised attention: the two products of a block of queries, and the weights between them.

Keys and values of an item are packed once per worker. The int32 products of a block, its weights and its sums stay in
L2. `driver.py` has the same for floating-point operands.
"""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.kernels.attention.int8_packing import call_pack_groups, call_pack_rows
from cpuconv.kernels.attention.int8_softmax import call_store_rows, call_weigh_rows
from cpuconv.kernels.emit.intrinsics import word
from cpuconv.kernels.emit.parts import last_unit
from cpuconv.kernels.emit.transpose import transpose_block, transpose_part
from cpuconv.kernels.products.row_strips import multiply_rows
from cpuconv.runtime.driver_functions import specialise_on_tile
from cpuconv.runtime.kernel import kernel


@dataclass(frozen=True)
class Int8AttentionTile:
    """Tile: the vector width, and whether keys and values are contiguous along their columns, not their rows."""

    lanes: int
    keys_by_column: bool
    values_by_column: bool


def _pack_rows(tile, pack, x, row, column, rows, columns, words, y, y_row, lines, line, terms, factor):
    call_pack_groups(pack, x=x, x_row=row, rows=rows, columns=columns, y=y, y_row=y_row, terms=terms, factor=factor)


def _pack_columns(tile, pack, x, row, column, rows, columns, words, y, y_row, lines, line, terms, factor):
    call_pack_rows(
        pack, x=x, x_row=column, rows=columns, depth=rows, y=lines, y_row=line, terms=terms, factor=factor, constant=0
    )
    for first in range(0, columns, tile.lanes):
        present = min(tile.lanes, columns - first)
        for at in range(0, words, tile.lanes):
            source = lines + first * line + 4 * at
            goal = y + at * y_row + 4 * first
            if present == tile.lanes:
                transpose_block(tile, source, line, goal, y_row)
            else:
                transpose_part(tile, source, line, present, goal, y_row, tile.lanes)


@specialise_on_tile(lambda tile: _pack_columns if tile.keys_by_column else _pack_rows)
def _pack_keys(tile, pack, x, row, column, rows, columns, words, y, y_row, lines, line, terms, factor):
    """Pack a panel of keys; terms = factor · sum of each column. `lines` and `line`: memory for columns."""


@specialise_on_tile(lambda tile: _pack_columns if tile.values_by_column else _pack_rows)
def _pack_values(tile, pack, x, row, column, rows, columns, words, y, y_row, lines, line, terms, factor):
    """`_pack_keys` for values."""


@kernel(
    "score_gemm score_gemm_last weigh_gemm weigh_gemm_last pack_queries pack_keys pack_values weigh store q k v y "
    "mask other_mask offsets items blocks rows keys depth width block_rows q_point k_point weights_point v_point "
    "numbers output_numbers q_row k_row k_column v_row v_column y_row mask_row other_mask_row key_words value_words "
    "queries_row scores_row weights_row sums_row panel_keys key_panels key_row key_panel panel_values value_panels "
    "value_row value_panel key_line value_line space space_step queries_at keys_at values_at scores_at weights_at "
    "sums_at terms_at key_terms_at value_terms_at weight_terms_at lines_at score_table score_segments score_tails "
    "score_tiles score_whole_tiles score_valid score_a_tile score_a_overlap weigh_table weigh_segments weigh_tails "
    "weigh_tiles weigh_whole_tiles weigh_valid weigh_a_tile weigh_a_overlap"
)
def attention_int8(tile, worker, before, part, parts, args):
    """y = quantised softmax(q k) v for each item; its six words of `offsets` are its matrices' byte offsets.

    Units are (item, block of queries); the last block of an item overlaps the one before.
    """
    memory = args.space + worker * args.space_step
    queries, keys, values = memory + args.queries_at, memory + args.keys_at, memory + args.values_at
    scores, weights, sums = memory + args.scores_at, memory + args.weights_at, memory + args.sums_at
    terms, key_terms = memory + args.terms_at, memory + args.key_terms_at
    value_terms, weight_terms = memory + args.value_terms_at, memory + args.weight_terms_at
    lines, vector = memory + args.lines_at, 4 * tile.lanes
    units = args.items * args.blocks
    packed = last_unit(units, before, parts) // args.blocks
    for unit in range(units * part // parts, units * (part + 1) // parts):
        item = unit // args.blocks
        offsets = args.offsets + 48 * item
        if packed != item:
            packed = item
            for panel in range(args.key_panels):
                first = panel * args.panel_keys
                _pack_keys(
                    tile, args.pack_keys, args.k + word(tile, offsets, 1) + first * args.k_column, args.k_row,
                    args.k_column, args.depth, min(args.panel_keys, args.keys - first), args.key_words,
                    keys + panel * args.key_panel, args.key_row, lines, args.key_line, key_terms + 4 * first,
                    -args.q_point,
                )  # fmt: skip
            for panel in range(args.value_panels):
                first = panel * args.panel_values
                _pack_values(
                    tile, args.pack_values, args.v + word(tile, offsets, 2) + first * args.v_column, args.v_row,
                    args.v_column, args.keys, min(args.panel_values, args.width - first), args.value_words,
                    values + panel * args.value_panel, args.value_row, lines, args.value_line, value_terms + 4 * first,
                    -args.weights_point,
                )  # fmt: skip
        first = min((unit - item * args.blocks) * args.block_rows, args.rows - args.block_rows)
        call_pack_rows(
            args.pack_queries,
            x=args.q + word(tile, offsets, 0) + first * args.q_row,
            x_row=args.q_row,
            rows=args.block_rows,
            depth=args.depth,
            y=queries,
            y_row=args.queries_row,
            terms=terms,
            factor=-args.k_point,
            constant=args.depth * args.q_point * args.k_point,
        )
        for panel in range(args.key_panels):
            multiply_rows(
                args.score_gemm if panel + 1 < args.key_panels else args.score_gemm_last, queries, args.score_a_tile,
                args.score_a_overlap, args.score_table, args.score_segments, args.score_tails, args.key_row,
                keys + panel * args.key_panel, scores + 4 * panel * args.panel_keys, args.scores_row, vector, scores,
                args.score_valid, args.block_rows, 0, args.score_tiles, args.score_whole_tiles,
            )  # fmt: skip
        call_weigh_rows(
            args.weigh,
            x=scores,
            x_row=args.scores_row,
            rows=args.block_rows,
            keys=args.keys,
            row_terms=terms,
            key_terms=key_terms,
            mask=args.mask + word(tile, offsets, 4) + first * args.mask_row,
            mask_row=args.mask_row,
            other_mask=args.other_mask + word(tile, offsets, 5) + first * args.other_mask_row,
            other_mask_row=args.other_mask_row,
            numbers=args.numbers,
            y=weights,
            y_row=args.weights_row,
            terms=weight_terms,
            factor=-args.v_point,
            constant=args.keys * args.weights_point * args.v_point,
        )
        for panel in range(args.value_panels):
            multiply_rows(
                args.weigh_gemm if panel + 1 < args.value_panels else args.weigh_gemm_last, weights, args.weigh_a_tile,
                args.weigh_a_overlap, args.weigh_table, args.weigh_segments, args.weigh_tails, args.value_row,
                values + panel * args.value_panel, sums + 4 * panel * args.panel_values, args.sums_row, vector, sums,
                args.weigh_valid, args.block_rows, 0, args.weigh_tiles, args.weigh_whole_tiles,
            )  # fmt: skip
        call_store_rows(
            args.store,
            x=sums,
            x_row=args.sums_row,
            rows=args.block_rows,
            columns=args.width,
            row_terms=weight_terms,
            column_terms=value_terms,
            numbers=args.output_numbers,
            y=args.y + word(tile, offsets, 3) + first * args.y_row,
            y_row=args.y_row,
        )
