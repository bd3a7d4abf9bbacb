"""The kernel call of quantised attention: softmax(q k) v of int8 or uint8, rounded where a quantised file rounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cpuconv.elements import F32, S8, S32, U8, Element
from cpuconv.isa import Isa
from cpuconv.kernels.attention.int8_driver import Int8AttentionTile, attention_int8
from cpuconv.kernels.attention.int8_packing import PackTile, pack_groups, pack_rows, shift
from cpuconv.kernels.attention.int8_softmax import TABLE, OutputTile, ScoresTile, store_rows, weigh_rows
from cpuconv.kernels.attention.step import broadcast_rows, fit_blocks, odd_lines, strip_args, workspace
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.partition import parts_if_shared
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, Ref, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.emit.product import WORD, as_seen, pair_product, single_product_of
from cpuconv.kernels.emit.product import Product as MacInstruction
from cpuconv.kernels.products.matrices import Matrices, byte_offsets, sizes_of
from cpuconv.kernels.products.row_strips import best_tile, row_strips
from cpuconv.problem.attention import QuantizedAttention
from cpuconv.problem.integers import broadcast_shapes, divide
from cpuconv.problem.types import Types
from cpuconv.symbolic.sizes import applied, now

_MAX_ROWS = 48  # queries of a block
_WEIGHT_CYCLES = 24.0  # cycles to compute a vector of weights from products
_MASK_CYCLES = 6.0  # cycles to add and round a vector of a mask
_PACK_CYCLES = 2.0  # cycles to pack a vector of elements
_BLOCK_CYCLES = 400.0  # overhead of a block of queries


def _numbers(given: QuantizedAttention, weights_point: int) -> np.ndarray:
    """`numbers` of `weigh_rows`."""
    first = given.scores[0]
    numbers: list[float | np.float32] = [given.factors[0], *first.limits, first.scale]
    for at, each in enumerate(given.scores[1:], 1):
        numbers += [given.inverse(at), *each.limits, each.scale]
    numbers += [1 / given.weights.scale, *given.weights.limits, weights_point]
    below = np.arange(TABLE) * given.scores[-1].scale
    return np.array([*numbers, *np.exp(-TABLE * below), *np.exp(-below)], np.float32)


def instruction(isa: Isa) -> MacInstruction:
    """The product of groups of four int8, or of two int16 where the CPU has none that is exact."""
    found = single_product_of(Types(U8, S8, S32, S32), isa)
    return pair_product(isa) if found is None or found.parts > 1 or found.flipped else found


def seconds(
    processor: Processor, q: Sequence[int], k: Sequence[int], v: Sequence[int], masks: int, y: Element
) -> float:
    """Modelled time of a quantised attention of operands of these shapes, in seconds."""
    stack, rows, depth, keys = sizes_of(tuple(q), tuple(k), (False, False))
    width, items = v[-1], now(math.prod(broadcast_shapes(stack, tuple(v[:-2]))))
    rows, depth, keys, width = map(now, (rows, depth, keys, width))
    found = instruction(processor.isa)
    isa, count, lanes = as_seen(processor.isa, found), WORD // found.x.bytes, processor.isa.lanes
    block, blocks = fit_blocks(_MAX_ROWS, rows, keys)
    each = best_tile(isa, block, divide(depth, count), keys)[0] + best_tile(isa, block, divide(keys, count), width)[0]
    each += block * divide(keys, lanes) * (_WEIGHT_CYCLES + _MASK_CYCLES * masks) + _BLOCK_CYCLES
    packed = _PACK_CYCLES * (rows * divide(depth, lanes) + depth * divide(keys, lanes) + keys * divide(width, lanes))
    moved = items * (rows * depth + keys * (depth + width) + rows * width * y.bytes)
    return machine().seconds(items * (blocks * each + packed), processor.threads) + processor.moving(moved)


def attention_int8_step(
    processor: Processor,
    space: Space,
    operands: tuple[TensorView, TensorView, TensorView],
    masks: Sequence[TensorView],
    y: TensorView,
    given: QuantizedAttention,
) -> Step:
    """One kernel call that computes a quantised attention for all items.

    Parameters
    ----------
    operands
        Queries (S..., rows, depth), contiguous along their rows; keys (S..., depth, keys) and values (S..., keys,
        width), contiguous along rows or columns. Stacks broadcast.
    masks
        At most two float32 tensors that broadcast to (S..., rows, keys), contiguous along their rows.
    y
        (S..., rows, width), contiguous along its rows.
    """
    found = instruction(processor.isa)
    isa = replace(as_seen(processor.isa, found), closed=False)
    lanes, count = isa.lanes, WORD // found.x.bytes
    vector = lanes * WORD
    stack = broadcast_shapes(*(each.shape[:-2] for each in operands))
    of = functools.partial(Matrices.of, rank=len(stack))
    q, k, v, goal = (of(each) for each in (*operands, y))
    added = [broadcast_rows(of(each, row=len(each.shape) > 1), each) for each in masks]
    absent = Matrices(Ref(""), (0,) * len(stack), 0, 0)
    mask, other = [*added, absent, absent][:2]
    (rows, depth), (keys, width) = operands[0].shape[-2:], operands[2].shape[-2:]
    block, blocks = fit_blocks(_MAX_ROWS, rows, keys)
    tile = Int8AttentionTile(lanes, k.column != 1 and keys != 1, v.column != 1 and width != 1)
    key_words, value_words = divide(depth, count), divide(keys, count)
    padded = (
        divide(depth, lanes) * found.x.bytes,
        divide(keys, lanes) * found.x.bytes,
        divide(keys, lanes) * S32.bytes,
    )
    queries_row, weights_row, scores_row = (applied(odd_lines, lanes * size) for size in padded)
    sums_row = divide(width, lanes) * vector
    strips = functools.partial(row_strips, isa, block, column=WORD, product=found.name)
    columns = [divide(size, lanes) * lanes for size in (keys, width)]  # to vectors: no part of the scratch is masked
    score, weigh = strips(key_words, columns[0], queries_row), strips(value_words, columns[1], weights_row)
    key_row, value_row = score.v * vector, weigh.v * vector
    key_panels, value_panels = divide(keys, score.v * lanes), divide(width, weigh.v * lanes)
    # transposed blocks of 32-bit groups end at whole vectors
    key_panel, value_panel = divide(key_words, lanes) * lanes * key_row, divide(value_words, lanes) * lanes * value_row
    key_line, value_line = (divide(words, lanes) * vector for words in (key_words, value_words))
    items = math.prod(stack)
    starts, size = workspace(
        queries=block * queries_row,
        keys=key_panels * key_panel,
        values=value_panels * value_panel,
        scores=block * scores_row,
        weights=block * weights_row,
        sums=block * sums_row,
        terms=block * S32.bytes,
        key_terms=key_panels * key_row,
        value_terms=value_panels * value_row,
        weight_terms=block * S32.bytes,
        lines=score.v * lanes * key_line + weigh.v * lanes * value_line,
    )
    types = {"queries": operands[0].element, "keys": operands[1].element, "values": operands[2].element}
    left, right = found.x, found.w
    points = {
        "q_point": given.q.zero + shift(types["queries"], left),
        "k_point": given.k.zero + shift(types["keys"], right),
        "v_point": given.v.zero + shift(types["values"], right),
        "weights_point": given.weights.zero + shift(given.weights.element, left),
    }
    scores_tile = ScoresTile(
        lanes, 4 if isa.registers >= 32 else 2, len(masks), given.scores[0].element != F32, found.x
    )

    def pack(name: str, by_row: bool, y: Element) -> MicroRef:
        return MicroRef(pack_rows if by_row else pack_groups, PackTile(lanes, types[name], y, found.name))

    args: Args = {
        "pack_queries": pack("queries", True, left),
        "pack_keys": pack("keys", tile.keys_by_column, right),
        "pack_values": pack("values", tile.values_by_column, right),
        "weigh": MicroRef(weigh_rows, scores_tile),
        "store": MicroRef(store_rows, OutputTile(lanes, given.y.element)),
        "q": q.ref,
        "k": k.ref,
        "v": v.ref,
        "y": goal.ref,
        "mask": mask.ref if masks else 0,
        "other_mask": other.ref if len(masks) > 1 else 0,
        "offsets": byte_offsets(stack, (q, k, v, goal, mask, other)),
        "items": items,
        "blocks": blocks,
        "rows": rows,
        "keys": keys,
        "depth": depth,
        "width": width,
        "block_rows": block,
        **points,
        "numbers": _numbers(given, points["weights_point"]),
        "output_numbers": np.array([given.factors[1], *given.y.limits, given.y.zero], np.float32),
        "q_row": q.row,
        "k_row": k.row,
        "k_column": k.column,
        "v_row": v.row,
        "v_column": v.column,
        "y_row": goal.row,
        "mask_row": mask.row,
        "other_mask_row": other.row,
        "key_words": key_words,
        "value_words": value_words,
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
        **strip_args("weigh", isa, weigh),
    }
    flops = 2 * items * rows * keys * (depth + width)
    return Step(attention_int8, tile, args, parts_if_shared(flops) if processor.threads > 1 else 0)
