"""ONNX's Attention and RotaryEmbedding as matrix multiplications, Softmax and elementwise operators.

Source: ONNX operators Attention (opsets 23 to 25) and RotaryEmbedding (23). Rewrites make
ScaledDotProductAttention of the former (`cpuconv.graph.passes.attention`).
"""

from __future__ import annotations

import math

import numpy as np

from cpuconv.errors import ArgumentError, must
from cpuconv.reading.contrib_attention import (
    restored,
    rotated,
    split_heads,
    tokens_first,
    usual_scale,
)
from cpuconv.reading.contrib_nodes import Builder

_UNBOUNDED = -1  # size of a side of a window


def attention(
    made: Builder, scale: float | None = None, is_causal: int = 0, q_num_heads: int = 0, kv_num_heads: int = 0,
    softcap: float = 0.0, qk_matmul_output_mode: int = 0, softmax_precision: int | None = None,
    left_window_size: int = _UNBOUNDED, right_window_size: int = _UNBOUNDED,
) -> None:  # fmt: skip
    """Attention of heads, which keys and values may share; past keys and values come before the given ones."""
    q, k, v, mask, past_key, past_value, lengths = map(made.input, range(7))
    rank = made.reader.rank(q) or (3 if q_num_heads else 4)
    if made.node.outputs[3:] or softmax_precision not in (None, 1):
        raise ArgumentError(must("outputs", "without scores, of Softmax in float32", made.node.outputs))
    if rank == 3:
        q, k, v = (split_heads(made, x, heads) for x, heads in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    offset = ""
    if past_key:
        offset = made.add("Gather", made.add("Shape", past_key), made.array(np.array(2)))
        k, v = made.add("Concat", past_key, k, axis=2), made.add("Concat", past_value, v, axis=2)
    for name, tensor in zip(made.node.outputs[1:], (k, v), strict=False):
        if name:
            made.add("Identity", tensor, outputs=(name,))
    if lengths:
        lengths = made.add("Reshape", lengths, made.integers(-1, 1, 1, 1))
        offset = made.add("Sub", lengths, made.add("Gather", made.add("Shape", q), made.array(np.array(2))))
    windows = left_window_size, right_window_size
    hidden = _bias(made, q, k, mask, lengths, offset, is_causal, windows)
    always = not mask and not lengths and windows[0] == _UNBOUNDED
    if rank == 4 or q_num_heads != kv_num_heads:
        k, v = _repeated(made, k, q), _repeated(made, v, q)
    y = _attended(made, (q, k, v), hidden, scale, softcap)
    if hidden and not always:  # rows without any key are zero
        most = made.add("ReduceMax", hidden, made.integers(-1), keepdims=1)
        seen = made.add("Greater", most, _number(made, -math.inf))
        y = made.add("Where", seen, y, _number(made, 0.0))
    if rank == 3:
        rows = made.add("Transpose", y, perm=[0, 2, 1, 3])
        made.add("Reshape", rows, made.integers(0, 0, -1), outputs=made.node.outputs[:1])
    else:
        made.add("Identity", y, outputs=made.node.outputs[:1])


def _bias(
    made: Builder, q: str, k: str, mask: str, lengths: str, offset: str, is_causal: int, windows: tuple[int, int]
) -> str:
    """What is added to scores: -inf for hidden keys, and a mask of numbers; "" for nothing."""
    keys = made.arange(k, 2)
    queries = made.add("Unsqueeze", made.arange(q, 2), made.integers(1))
    queries = made.add("Add", queries, offset) if offset else queries
    behind = made.add("Sub", queries, keys)  # keys from a key to the query's own
    seen = [made.add("GreaterOrEqual", behind, made.array(np.array(0)))] if is_causal else []
    for bound, away in zip(windows, (behind, made.add("Neg", behind)), strict=True):
        if bound != _UNBOUNDED:
            seen.append(made.add("LessOrEqual", away, made.array(np.array(bound))))
    if lengths:
        seen.append(made.add("Less", keys, lengths))
    if mask and made.reader.type_of(mask) == np.bool_:
        mask = _shown(made, mask)
    bias = _padded(made, mask, k) if mask else ""
    for each in seen:
        bias = made.add("Add", bias, _shown(made, each)) if bias else _shown(made, each)
    return bias


def _shown(made: Builder, seen: str) -> str:
    """0 for keys that are seen, -inf for others."""
    return made.add("Where", seen, _number(made, 0.0), _number(made, -math.inf))


def _padded(made: Builder, mask: str, k: str) -> str:
    """A mask of all keys: those behind its end are hidden."""
    keys = made.add("Slice", made.add("Shape", k), made.integers(2), made.integers(3))
    own = made.add("Slice", made.add("Shape", mask), made.integers(-1), made.integers(np.iinfo(np.int64).max))
    lacking = made.add("Max", made.add("Sub", keys, own), made.integers(0))
    pads = made.add("Concat", made.integers(0), lacking, axis=0)
    return made.add("Pad", mask, pads, _number(made, -math.inf), made.integers(-1))


def _number(made: Builder, value: float) -> str:
    """A number of the queries' type."""
    return _alike(made, made.number(value))


def _alike(made: Builder, number: str) -> str:
    """Convert a float32 to the queries' type."""
    queries = made.input(0)
    return number if made.reader.type_of(queries) == np.float32 else made.add("CastLike", number, queries)


def _repeated(made: Builder, x: str, q: str) -> str:
    """Repeat each head of keys or values for the queries' heads that share it."""
    heads, own = (made.add("Slice", made.add("Shape", each), made.integers(1), made.integers(2)) for each in (q, x))
    group = made.add("Concat", made.integers(1, 1), made.add("Div", heads, own), made.integers(1, 1), axis=0)
    apart = made.add("Expand", made.add("Unsqueeze", x, made.integers(2)), group)
    ends = made.add("Slice", made.add("Shape", x), made.integers(2), made.integers(4))
    return made.add("Reshape", apart, made.add("Concat", made.integers(0), heads, ends, axis=0))


def _attended(made: Builder, tensors: tuple[str, str, str], bias: str, scale: float | None, softcap: float) -> str:
    """softmax(cap(q kᵀ · scale) + bias) v of each head."""
    q, k, v = tensors
    factor = _number(made, scale) if scale is not None else _alike(made, usual_scale(made, q))
    products = made.add("MatMul", q, made.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = made.add("Mul", products, factor)
    if softcap:
        cap = _number(made, softcap)
        scores = made.add("Mul", made.add("Tanh", made.add("Div", scores, cap)), cap)
    scores = made.add("Add", scores, bias) if bias else scores
    return made.add("MatMul", made.add("Softmax", scores, axis=-1), v)


def rotary_embedding(made: Builder, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0) -> None:
    """Rotary embedding: tables of cosines and sines are gathered by position, or have a row per token."""
    x, *tables, positions = map(made.input, range(4))
    rank = made.reader.rank(x) or (3 if num_heads else 4)
    whole = tokens_first(made, x, rank, num_heads, -1)
    tables = [made.add("Gather", table, positions) if positions else table for table in tables]
    tables = [made.add("Unsqueeze", table, made.integers(2)) for table in tables]
    restored(made, rotated(made, whole, tables, interleaved, rotary_embedding_dim), rank)
