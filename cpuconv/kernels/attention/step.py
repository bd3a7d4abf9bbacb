"""The kernel call of attention: sizes of blocks, tiles of both products, and a worker's memory."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32, Element
from cpuconv.isa import Isa
from cpuconv.kernels.attention.dots import DotsTile, multiply_keys
from cpuconv.kernels.attention.driver import ZERO_ROWS, AttentionTile, RowsTile, attention, scale_rows
from cpuconv.kernels.attention.softmax import softmax_rows, weights_tile
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.partition import parts_if_shared
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.movement import OPEN, count_l1_sets
from cpuconv.kernels.copies.rounding import PAIR
from cpuconv.kernels.emit.product import FMA, as_seen
from cpuconv.kernels.emit.product import Product as MacInstruction
from cpuconv.kernels.products import matrix_rows
from cpuconv.kernels.products.closed.closed_set import closed_step
from cpuconv.kernels.products.matrices import Matrices, byte_offsets
from cpuconv.kernels.products.panels import (
    COPIED,
    IN_PLACE,
    PAIRED_COLUMNS,
    PAIRED_ROWS,
    ROUNDED,
    paired_packing,
    panel_packing,
)
from cpuconv.kernels.products.row_strips import RowStrips, best_tile, row_strips
from cpuconv.problem.integers import broadcast_shapes, divide
from cpuconv.symbolic.sizes import applied, greatest, items_of, now

_LINE = 64  # bytes of a cache line
_MAX_ROWS = 96  # queries of a block; of bfloat16, the rows of two tiles
_SHARE = 2  # L2 over the scores of a block
_WEIGHT_CYCLES = 18.0  # cycles to compute a vector of weights from scores
_PACK_CYCLES = 4.0  # cycles to pack a vector
_FOLD_CYCLES = 4.0  # cycles to fold the lanes of the products of a key and a query
_FAR = 3  # time to load a vector from L2 over that from L1
_BLOCK_CYCLES = 400.0  # overhead of a block of queries

Kinds = tuple[MacInstruction, ...]  # of the product that computes scores, and of that of weights and values
IN_FLOAT32: Kinds = FMA, FMA


@dataclass(frozen=True)
class AttentionProblem:
    """A stack of attentions: `rows` queries of `depth` elements, `keys` keys and values of `width` elements."""

    stack: tuple[int, ...]
    rows: int
    keys: int
    depth: int
    width: int
    q: Matrices
    k: Matrices  # (depth, keys)
    v: Matrices
    mask: Matrices | None  # (rows, keys)
    y: Matrices
    scale: float = 1.0
    zero_rows: str = ""  # which rows are zero: a key of `ZERO_ROWS`
    x_type: Element = F32  # of queries, keys and values
    y_type: Element = F32

    @classmethod
    def of(
        cls, q: TensorView, k: TensorView, v: TensorView, mask: TensorView | None, y: TensorView, scale: float,
        zero_rows: str = "",
    ) -> AttentionProblem:  # fmt: skip
        """Build it from tensors (S..., rows, depth), (S..., depth, keys), (S..., keys, width), (S..., rows, keys)."""
        stack = broadcast_shapes(*(each.shape[:-2] for each in (q, k, v)))
        (rows, depth), (keys, width) = q.shape[-2:], v.shape[-2:]
        of = functools.partial(Matrices.of, rank=len(stack))
        hidden = None if mask is None else broadcast_rows(of(mask, row=len(mask.shape) > 1), mask)
        types = q.element, y.element
        return cls(stack, rows, keys, depth, width, of(q), of(k), of(v), hidden, of(y), scale, zero_rows, *types)

    @property
    def offsets(self) -> Any:
        """Byte offsets of the five matrices of each item, int64; 0 for an absent mask."""
        absent = replace(self.q, stack=(0,) * len(self.stack))
        return byte_offsets(self.stack, (self.q, self.k, self.v, self.mask or absent, self.y))

    @property
    def flops(self) -> int:
        """Operations of both products, a multiplication and an addition counted as two."""
        return 2 * math.prod(self.stack) * self.rows * self.keys * (self.depth + self.width)


def broadcast_rows(mask: Matrices, view: TensorView) -> Matrices:
    """The mask with a row stride of 0, if all rows share one row of it."""
    return replace(mask, row=0) if len(view.shape) < 2 or view.shape[-2] == 1 else mask


def fit_blocks(limit: int, rows: int, keys: int) -> tuple[Any, Any]:
    """Queries of a block, at most `limit`, and blocks: as many as keep scores in a share of L2, in equal shares."""
    fitting = functools.partial(_block, limit, machine().l2 // _SHARE)
    block, blocks = items_of(applied(fitting, rows, keys))
    return block, blocks


def _block(limit: int, most: int, rows: int, keys: int) -> tuple[int, int]:
    """Queries of a block, at most `limit`, and blocks: as many as keep scores in `most` bytes; equal shares of rows."""
    able = max(8, min(limit, most // (F32.bytes * keys)))
    blocks = divide(rows, able)
    return divide(rows, blocks), blocks


def odd_lines(size: int) -> int:
    """Round up to an odd number of cache lines, so that rows are spread over the cache's sets."""
    return (divide(size, _LINE) | 1) * _LINE


def workspace(**sizes: Any) -> tuple[Args, Any]:
    """Starts of parts of a worker's memory, by name with "_at", and the bytes of all."""
    starts: Args = {}
    size: Any = 0
    for name, taken in sizes.items():
        starts[f"{name}_at"] = size
        size += divide(taken, _LINE) * _LINE
    return starts, size


def _blocks(isa: Isa, problem: AttentionProblem, found: MacInstruction) -> tuple[Any, Any]:
    rows = min(_MAX_ROWS, 2 * (matrix_rows.MAX_ROWS if found.matrix else isa.pixels[1]))
    return fit_blocks(_MAX_ROWS if found == FMA else rows, problem.rows, problem.keys)


def _tile_rows(block: Any) -> int:
    """Rows of an AMX tile for blocks of queries, which are padded to whole tiles."""
    return matrix_rows.MAX_ROWS if now(block) > matrix_rows.ROWS else matrix_rows.ROWS


def seconds(processor: Processor, problem: AttentionProblem, found: Kinds = IN_FLOAT32) -> float:
    """Modelled time, in seconds, where `found` multiply."""
    score, weigh = found
    isa, items = as_seen(processor.isa, score), now(math.prod(problem.stack))
    rows, keys, depth, width = map(now, (problem.rows, problem.keys, problem.depth, problem.width))
    block, blocks = map(now, _blocks(isa, problem, score))
    vectors = divide(keys, isa.lanes)
    each = _product_cycles(isa, weigh, block, keys, width) + block * vectors * _WEIGHT_CYCLES + _BLOCK_CYCLES
    keys_in_place, values_in_place = _in_place(isa, problem, score)
    each += _dots_cycles(isa, problem, block) if keys_in_place else _product_cycles(isa, score, block, depth, keys)
    packed = (not keys_in_place) * _pack_cycles(isa, score, depth, keys)
    packed += (not values_in_place) * _pack_cycles(isa, weigh, keys, width)
    if score.matrix:
        each += matrix_rows.narrowing_cycles(score, isa, block, depth)
        each += matrix_rows.narrowing_cycles(weigh, isa, block, keys)
    read, written = rows * depth + keys * (depth + width), rows * width
    moved = items * (problem.x_type.bytes * read + problem.y_type.bytes * written)
    cycles = items * (blocks * each + packed)
    return machine().seconds(cycles, processor.threads) + processor.moving(moved)


def _product_cycles(isa: Isa, found: MacInstruction, rows: int, depth: int, columns: int) -> float:
    """Modelled cycles to multiply `rows` rows by a packed matrix."""
    if found.matrix:
        return matrix_rows.cycles(found, isa, rows, depth, columns, _tile_rows(rows))
    return best_tile(isa, rows, depth if found == FMA else divide(depth, PAIR), columns)[0]


def _dots_cycles(isa: Isa, problem: AttentionProblem, rows: int) -> float:
    """Modelled cycles to multiply `rows` queries by keys in place: products, and shuffles that fold their lanes."""
    vectors = divide(now(problem.depth), isa.lanes)
    if rows > 1 and OPEN * count_l1_sets(now(problem.k.column)) < isa.lanes:
        vectors *= _FAR  # keys evict each other from L1 before the next query reads them
    return rows * divide(now(problem.keys), isa.lanes) * isa.lanes * (vectors / isa.load_rate + _FOLD_CYCLES)


def _pack_cycles(isa: Isa, found: MacInstruction, rows: int, columns: int) -> float:
    """Modelled cycles to pack a matrix of an item."""
    if found.matrix:
        return matrix_rows.packing_cycles(found, isa, rows, columns)
    return _PACK_CYCLES * rows * divide(columns, isa.lanes)


def _in_place(isa: Isa, problem: AttentionProblem, found: MacInstruction) -> tuple[bool, bool]:
    """Whether keys, and whether values, are read where they are: in float32, for few queries, as their strides allow.

    Values are read once if a tile has a row for each query; keys are multiplied without a transposition.
    """
    rows, keys, depth = map(now, (problem.rows, problem.keys, problem.depth))
    if found != FMA or problem.x_type != F32 or rows > isa.pixels[1]:
        return False, False
    packed = _product_cycles(isa, FMA, rows, depth, keys) + _pack_cycles(isa, FMA, depth, keys)
    in_place = problem.k.row == F32.bytes and _dots_cycles(isa, problem, rows) < packed
    return in_place, problem.v.column == F32.bytes


def takes_bf16(problem: AttentionProblem) -> bool:
    """Whether products can be of bfloat16: rows or columns of keys and of values are contiguous."""
    size = problem.x_type.bytes
    if None in (paired_packing(each.row, each.column, size) for each in (problem.k, problem.v)):
        return False
    if problem.x_type != F32 and problem.q.column != size:
        return False
    return problem.y_type == F32 or problem.y.column == BF16.bytes


def attention_step(processor: Processor, space: Space, problem: AttentionProblem, found: Kinds = IN_FLOAT32) -> Step:
    """One kernel call that computes softmax(q k · scale + mask) v for all items.

    `found`: the kinds of both products. Where they multiply bfloat16, sums and softmax are float32, and `takes_bf16`
    must hold.
    """
    scoring, weighing = found
    rounded, matrix = scoring != FMA, scoring.matrix
    assert not rounded or takes_bf16(problem)
    isa = replace(as_seen(processor.isa, scoring), closed=processor.isa.closed and not rounded)
    lanes = isa.lanes
    rows, keys, depth, width = problem.rows, problem.keys, problem.depth, problem.width
    q, k, v, mask, y = problem.q, problem.k, problem.v, problem.mask, problem.y
    block, blocks = _blocks(isa, problem, scoring)
    tile = _tile(isa, problem, found)
    vector = lanes * F32.bytes
    queries_row, scores_row = (applied(odd_lines, size * F32.bytes) for size in (depth, keys))
    sums_row = divide(width, lanes) * vector
    query_part, weight_part, weights_row, padded = 0, 0, scores_row, block
    if matrix:
        tile_rows = _tile_rows(block)
        padded = divide(block, tile_rows) * tile_rows
        query_part, weight_part = map(matrix_rows.part_bytes, (depth, keys))
        queries_row = greatest(queries_row, applied(odd_lines, scoring.parts * query_part))
        weights_row = applied(odd_lines, weighing.parts * weight_part)
    score = _strips(isa, scoring, padded, depth, keys, queries_row)
    weigh = _strips(isa, weighing, padded, keys, width, weights_row)
    key_row, value_row = score.v * vector, weigh.v * vector
    key_panels, value_panels = divide(keys, score.v * lanes), divide(width, weigh.v * lanes)
    key_panel, value_panel = _panel_rows(scoring, depth) * key_row, _panel_rows(weighing, keys) * value_row
    key_line, key_lines = _lines(scoring, tile.keys, depth, score.v * lanes, lanes)
    value_line, value_lines = _lines(weighing, tile.values, keys, weigh.v * lanes, lanes)
    if tile.keys == IN_PLACE:
        key_panel = 0
    if tile.values == IN_PLACE:
        value_row, value_panel = v.row, weigh.v * vector
    lines = greatest(key_lines * key_line, value_lines * value_line)
    starts, size = workspace(
        queries=padded * queries_row,
        keys=key_panels * key_panel,
        values=0 if tile.values == IN_PLACE else value_panels * value_panel,
        scores=padded * scores_row,
        sums=padded * sums_row,
        factors=block * F32.bytes,
        lines=greatest(lines, block * queries_row) if matrix and tile.queries != ROUNDED else lines,
        weights=padded * weights_row if matrix else 0,
    )
    weights = weights_tile(isa, mask is not None, problem.scale, BF16 if rounded and not matrix else F32)
    args: Args = {
        "softmax": MicroRef(softmax_rows, weights),
        "scale_rows": MicroRef(scale_rows, RowsTile(lanes, problem.y_type)),
        "round_rows": matrix_rows.narrowing(scoring, lanes, problem.x_type) if rounded else 0,
        "round_values": matrix_rows.narrowing(weighing, lanes, problem.x_type) if rounded else 0,
        "narrow_weights": matrix_rows.narrowing(weighing, lanes, F32) if matrix else 0,
        "configuration": matrix_rows.registers(_tile_rows(block)) if matrix else 0,
        "padded_rows": padded,
        "query_part": query_part,
        "weight_part": weight_part,
        "q": q.ref,
        "k": k.ref,
        "v": v.ref,
        "mask": mask.ref if mask else 0,
        "y": y.ref,
        "offsets": problem.offsets,
        "items": math.prod(problem.stack),
        "blocks": blocks,
        "rows": rows,
        "keys": keys,
        "depth": depth,
        "width": width,
        "block_rows": block,
        "scale": np.array([problem.scale], np.float32),
        "zeroed": ZERO_ROWS[problem.zero_rows],
        "vectors": divide(width, lanes),
        "valid": width - (divide(width, lanes) - 1) * lanes,
        "q_row": q.row,
        "q_column": q.column,
        "k_row": k.row,
        "k_column": k.column,
        "v_row": v.row,
        "v_column": v.column,
        "mask_row": mask.row if mask else 0,
        "y_row": y.row,
        "y_column": y.column,
        "queries_row": queries_row,
        "scores_row": scores_row,
        "weights_row": weights_row,
        "sums_row": sums_row,
        "panel_keys": score.v * lanes,
        "key_panels": key_panels,
        "key_row": key_row,
        "key_panel": key_panel,
        "key_line": key_line,
        "panel_values": weigh.v * lanes,
        "value_panels": value_panels,
        "value_row": value_row,
        "value_panel": value_panel,
        "value_line": value_line,
        **worker_args("space", space, size, processor.threads),
        **starts,
        **strip_args("score", isa, score),
        **({"score_gemm": MicroRef(multiply_keys, DotsTile(lanes))} if tile.keys == IN_PLACE else {}),
        **strip_args("weigh", isa, weigh),
    }
    parts = parts_if_shared(problem.flops) if processor.threads > 1 else 0
    return Step(attention, tile, args, parts)


def _strips(isa: Isa, found: MacInstruction, block: Any, depth: Any, columns: Any, row: Any) -> RowStrips:
    """Strips that multiply a block of queries, or of their weights, whose rows are `row` bytes apart."""
    if found.matrix:
        return matrix_rows.strips(found, isa, block, depth, columns, row, _tile_rows(block))
    words = depth if found == FMA else divide(depth, PAIR)
    return row_strips(isa, block, words, columns, row, F32.bytes, found.name)


def _tile(isa: Isa, problem: AttentionProblem, found: Kinds) -> AttentionTile:
    """How operands are packed, and the output is stored."""
    q, k, v = problem.q, problem.k, problem.v
    scoring, rounded = found[0], found[0] != FMA
    if rounded:
        keys, values = (paired_packing(each.row, each.column, problem.x_type.bytes, scoring.matrix) for each in (k, v))
        assert keys is not None and values is not None
    else:
        ways = zip((k, v), _in_place(isa, problem, scoring), strict=True)
        keys, values = (IN_PLACE if in_place else panel_packing(each.row, each.column) for each, in_place in ways)
    queries = ROUNDED if rounded and q.column == problem.x_type.bytes else panel_packing(q.row, q.column)
    output = COPIED if problem.y_type != F32 else panel_packing(problem.y.row, problem.y.column)
    parts = (each.parts for each in found if each.matrix)
    return AttentionTile(isa.lanes, queries, keys, values, output, rounded, *parts)


def _panel_rows(found: MacInstruction, depth: Any) -> Any:
    """Rows of a packed panel."""
    if found.matrix:
        return matrix_rows.panel_rows(found, depth)
    return depth if found == FMA else divide(depth, PAIR)


def _lines(found: MacInstruction, packing: int, rows: int, columns: int, lanes: int) -> tuple[Any, Any]:
    """Bytes and number of the rounded rows or columns of a panel of `columns` columns."""
    if found.matrix:
        return matrix_rows.lines(found, rows, packing)
    if packing == PAIRED_ROWS:
        return divide(columns, lanes) * lanes * BF16.bytes, rows + 1
    return (divide(rows, lanes) * lanes * BF16.bytes, columns) if packing == PAIRED_COLUMNS else (0, 0)


def strip_args(name: str, isa: Isa, strips: RowStrips) -> Args:
    """Arguments of a product, of the closed set where the instruction set uses it."""
    args = strips.args
    if isa.closed:
        closed = closed_step(Step(attention, None, args))
        assert closed is not None
        args = closed.args
    return {f"{name}_{key}": value for key, value in args.items()}
