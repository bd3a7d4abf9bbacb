"""com.microsoft operators of transformers: attention, embeddings, skip normalisations, rotary embeddings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, must
from cpuconv.reading.contrib_nodes import Builder

_FLOAT, _INTEGER = np.dtype(np.float32), np.dtype(np.int64)
_NEVER = -1e30  # added to scores of masked keys


# --- attention ------------------------------------------------------------------------------------------------------


def attention(made: Builder, num_heads: int, scale: float = 0.0, **attributes: Any) -> None:
    """Self-attention with a float32 projection to queries, keys and values, and a bias."""
    x, w, bias, mask, past, added = map(made.input, range(6))
    _self_attention(made, made.add("MatMul", x, w), (bias, mask, past, added), num_heads, scale, **attributes)


def quantised_attention(made: Builder, num_heads: int, scale: float = 0.0, **attributes: Any) -> None:
    """Self-attention with an int8 projection."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = map(made.input, range(9))
    product = made.scaled_product((x, x_scale, x_zero), (w, w_scale, w_zero))
    _self_attention(made, product, (bias, mask, past, ""), num_heads, scale, **attributes)


def _self_attention(
    made: Builder, product: str, inputs: tuple[str, str, str, str], num_heads: int, scale: float,
    mask_filter_value: float = -10000.0, unidirectional: int = 0, **others: Any,
) -> None:  # fmt: skip
    """Self-attention; `product` (B, S, 3H) has the concatenated queries, keys and values."""
    bias, mask, past, added = inputs
    for name, value in others.items():
        if value:
            raise ArgumentError(must(name, "left out", value))
    if past or any(made.node.outputs[1:]):
        raise ArgumentError(must("inputs", "without a past, and outputs without a present", made.node.inputs))
    product = made.add("Add", product, bias) if bias else product
    queries, keys, values = (split_heads(made, part, num_heads) for part in made.split(product, 2, 3))
    hidden = _hidden(made, keys, mask, mask_filter_value, unidirectional, queries)
    _attended(
        made, queries, keys, values, [*hidden, added], made.number(scale) if scale else usual_scale(made, queries)
    )


def multi_head_attention(
    made: Builder, num_heads: int, mask_filter_value: float = -10000.0, scale: float = 0.0, unidirectional: int = 0
) -> None:
    """Multi-head attention; by their ranks, keys and values have heads, or tensors are packed into one."""
    query, key, value, bias, mask, added, *past = map(made.input, range(8))
    if any(past):
        raise ArgumentError(must("inputs", "without a past", made.node.inputs))
    apart, together = made.reader.rank(key) == 5, made.reader.rank(query) == 5
    if bias and (apart or together):
        raise ArgumentError(must("bias", "left out where tensors are packed", bias))
    if together:  # (B, S, heads, 3, size)
        tensors = _unpacked(made, query, 3)
    else:
        biases = made.split(bias, 0, 3) if bias else ["", "", ""]
        keys = _unpacked(made, key, 2) if apart else [key, value]
        tensors = [
            tensor if apart and at else split_heads(made, made.add("Add", tensor, each) if each else tensor, num_heads)
            for at, (tensor, each) in enumerate(zip([query, *keys], biases, strict=True))
        ]
    queries, keys_, values = tensors
    hidden = _hidden(made, keys_, mask, mask_filter_value, unidirectional, queries)
    _attended(
        made, queries, keys_, values, [*hidden, added], made.number(scale) if scale else usual_scale(made, queries)
    )
    for name, tensor in zip(made.node.outputs[1:], (keys_, values), strict=False):
        if name:
            made.add("Identity", tensor, outputs=(name,))


def _unpacked(made: Builder, x: str, count: int) -> list[str]:
    """Split (B, S, heads, count, size) into `count` tensors (B, heads, S, size)."""
    parts = (made.add("Squeeze", part, made.integers(3)) for part in made.split(x, 3, count))
    return [made.add("Transpose", part, perm=[0, 2, 1, 3]) for part in parts]


def split_heads(made: Builder, x: str, num_heads: int) -> str:
    """Reshape (B, S, H) to (B, heads, S, H / heads); a tensor of rank 4 is that already."""
    if made.reader.rank(x) == 4:
        return x
    return made.add("Transpose", made.add("Reshape", x, made.integers(0, 0, num_heads, -1)), perm=[0, 2, 1, 3])


def _scale(made: Builder, scale: float, queries: str) -> str:
    return made.number(scale) if scale else usual_scale(made, queries)


def usual_scale(made: Builder, queries: str) -> str:
    """Default scale: 1 / sqrt(head size)."""
    size = made.add("Gather", made.add("Shape", queries), made.array(np.array(3)))
    return made.add("Reciprocal", made.add("Sqrt", made.add("Cast", size, to=_FLOAT)))


def _hidden(made: Builder, keys: str, mask: str, value: float, unidirectional: int, queries: str) -> list[str]:
    """Masks to add to scores: `value` where `mask` hides a key, and -1e30 where a causal mask does.

    A mask (B, T) or (B, S, T) is 1 for visible keys; a mask (B) has the number of visible keys.
    """
    added = []
    if mask:
        rank = made.reader.rank(mask)
        if rank is not None and rank > 3:
            raise ArgumentError(must("mask", "of (B), (B, T) or (B, S, T)", rank))
        mask, rank = (mask, rank) if rank in (2, 3) else (_seen_of_counts(made, keys, mask, rank), 2)
        seen = made.add("Cast", mask, to=_FLOAT)
        hidden = made.add("Mul", made.add("Sub", made.number(1.0), seen), made.number(value))
        added.append(made.add("Unsqueeze", hidden, made.integers(*([1, 2] if rank == 2 else [1]))))
    if unidirectional:
        rows = made.add("Unsqueeze", made.arange(queries, 2), made.integers(1))
        later = made.add("Cast", made.add("Greater", made.arange(keys, 2), rows), to=_FLOAT)
        added.append(made.add("Mul", later, made.number(_NEVER)))
    return added


def _seen_of_counts(made: Builder, keys: str, mask: str, rank: int | None) -> str:
    """Convert a mask (B) of counts of visible keys to (B, T); if the rank is unknown, also one that is (B, T) already.

    Of one column, both forms are the same; flags of more columns are compared with 0 instead of the keys' indices.
    """
    batch = made.add("Slice", made.add("Shape", keys), made.integers(0), made.integers(1))
    rows = made.add("Concat", batch, made.integers(1 if rank else -1), axis=0)
    counts, index = made.add("Reshape", made.add("Cast", mask, to=_INTEGER), rows), made.arange(keys, 2)
    if rank is None:
        size = made.add("Gather", made.add("Shape", counts), made.array(np.array(1)))
        is_count = made.add("Equal", size, made.array(np.array(1)))
        index = made.add("Mul", index, made.add("Cast", is_count, to=_INTEGER))
    return made.add("Less", index, counts)


def _attended(made: Builder, queries: str, keys: str, values: str, added: Sequence[str], scale: str) -> None:
    """Compute softmax(queries · keysᵀ · scale + masks) · values per head, and concatenate the heads."""
    transposed = made.add("Transpose", keys, perm=[0, 1, 3, 2])
    scores = made.add("Mul", made.add("MatMul", queries, transposed), scale)
    for mask in [*itertools.accumulate(filter(None, added), lambda a, b: made.add("Add", a, b))][-1:]:
        scores = made.add("Add", scores, mask)
    together = made.add("MatMul", made.add("Softmax", scores, axis=-1), values)
    rows = made.add("Transpose", together, perm=[0, 2, 1, 3])
    made.add("Reshape", rows, made.integers(0, 0, -1), outputs=made.node.outputs[:1])


def rotary_embedding(
    made: Builder, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0,
    is_packed_batching: int = 0,
) -> None:  # fmt: skip
    """Rotary embedding: rotate pairs of elements of each head, either the two halves or adjacent elements.

    Input is (B, S, H) or (B, heads, S, H / heads), with a position per token, or that of the first token.
    """
    x, positions, cosines, sines = map(made.input, range(4))
    half, rank, at = made.constant(2, "cos_cache").shape[1], made.reader.rank(x) or 3, made.reader.rank(positions)
    if is_packed_batching or scale != 1.0 or at is None:
        raise ArgumentError(must("attributes", "without scale and packed batches, positions of a known rank", scale))
    if rotary_embedding_dim and rank == 3 and not num_heads:
        raise ArgumentError(must("num_heads", "stated", num_heads))
    size = [num_heads, -1] if rotary_embedding_dim else [-1, 2 * half]
    whole = tokens_first(made, x, rank, *size)
    if at == 1:
        positions = made.add("Add", made.arange(whole, 1), positions)
    axes = made.integers(*([0, 2] if at == 1 else [2]))
    cos, sin = (made.add("Unsqueeze", made.add("Gather", table, positions), axes) for table in (cosines, sines))
    result = rotated(made, whole, (cos, sin), interleaved, 2 * half if rotary_embedding_dim else 0)
    restored(made, result, rank)


def tokens_first(made: Builder, x: str, rank: int, heads: int, size: int) -> str:
    """Convert (B, S, H) or (B, heads, S, size) to (B, S, heads, size)."""
    if rank == 3:
        return made.add("Reshape", x, made.integers(0, 0, heads, size))
    return made.add("Transpose", x, perm=[0, 2, 1, 3])


def restored(made: Builder, x: str, rank: int) -> None:
    """Write the output: convert (B, S, heads, size) back to the shape of the input, of this rank."""
    if rank == 3:
        made.last("Reshape", x, made.integers(0, 0, -1))
    else:
        made.last("Transpose", x, perm=[0, 2, 1, 3])


def rotated(made: Builder, whole: str, tables: Sequence[str], interleaved: int, count: int) -> str:
    """Rotate pairs of the first `count` elements of heads (B, S, heads, size), or of all if `count` is 0.

    `tables`: cosines and sines of each pair, broadcast to (B, S, heads, pairs).
    """
    cos, sin = tables
    ends = made.array(np.array([np.iinfo(np.int64).max]))

    def part(x: str, start: int, stop: str, step: int = 1) -> str:
        return made.add("Slice", x, made.integers(start), stop, made.integers(3), made.integers(step))

    taken = part(whole, 0, made.integers(count)) if count else whole
    if interleaved:
        first, second = part(taken, 0, ends, 2), part(taken, 1, ends, 2)
    else:
        first, second = made.split(taken, 3, 2)
    real = made.add("Sub", made.add("Mul", first, cos), made.add("Mul", second, sin))
    other = made.add("Add", made.add("Mul", first, sin), made.add("Mul", second, cos))
    rest = [part(whole, count, ends)] if count else []
    if not interleaved:
        return made.add("Concat", real, other, *rest, axis=3)
    pairs = [made.add("Unsqueeze", each, made.integers(4)) for each in (real, other)]
    result = made.add("Reshape", made.add("Concat", *pairs, axis=4), made.integers(0, 0, 0, -1))
    return made.add("Concat", result, *rest, axis=3) if rest else result


# --- skip normalisation ---------------------------------------------------------------------------------------------


def skip_layer_normalization(made: Builder, epsilon: float = 1e-12) -> None:
    """Layer normalisation of a sum; the sum is the fourth output."""
    x, skip, scale, bias, more = map(made.input, range(5))
    x = _skipped(made, [x, skip, more])
    made.add("LayerNormalization", x, scale, bias, outputs=made.node.outputs[:1], axis=-1, epsilon=epsilon)


def skip_simplified_layer_normalization(made: Builder, epsilon: float = 1e-12) -> None:
    """RMS normalisation of a sum; the sum is the fourth output."""
    x, skip, scale, more = map(made.input, range(4))
    _by_root(made, _skipped(made, [x, skip, more]), scale, epsilon)


def simplified_layer_normalization(made: Builder, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> None:
    """RMS normalisation of rows, times a scale."""
    x, scale = made.input(0), made.input(1)
    if axis != -1 and axis + 1 != made.reader.rank(x) or any(made.node.outputs[1:]):
        raise ArgumentError(must("axis", "the last, and one output asked for", axis))
    _by_root(made, x, scale, epsilon)


def _skipped(made: Builder, added: Sequence[str]) -> str:
    """Add tensors; the sum is also the fourth output."""
    x, *others = filter(None, added)
    for each in others:
        x = made.add("Add", x, each)
    rest = made.node.outputs[1:]
    if any(rest[:2]):
        raise ArgumentError(must("outputs", "the first and the fourth", rest))
    if any(rest[2:]):
        made.add("Identity", x, outputs=(rest[2],))
    return x


def _by_root(made: Builder, x: str, scale: str, epsilon: float) -> None:
    mean = made.add("ReduceMean", made.add("Mul", x, x), made.integers(-1), keepdims=1)
    root = made.add("Sqrt", made.add("Add", mean, made.number(epsilon)))
    made.add("Mul", made.add("Div", x, root), scale, outputs=made.node.outputs[:1])


# --- embeddings -----------------------------------------------------------------------------------------------------


def embed_layer_normalization(made: Builder, epsilon: float = 1e-12, mask_index_type: int = 0) -> None:
    """Sum of word, position and segment embeddings, normalised; also counts the tokens of the mask."""
    tokens, segments, words, places, parts, scale, bias, mask, positions = map(made.input, range(9))
    _embedded(made, (tokens, segments, positions), [(words,), (places,), (parts,)], (scale, bias), mask, epsilon)


def quantised_embed_layer_normalization(made: Builder, epsilon: float = 1e-12) -> None:
    """Embedding with int8 tables, scale and bias."""
    tokens, segments, *tensors = map(made.input, range(18))
    tables = list(zip(tensors[:5], tensors[6:11], tensors[11:], strict=True))
    scale, bias = (made.dequantised(table, unit, zero) for table, unit, zero in tables[3:])
    _embedded(made, (tokens, segments, ""), tables[:3], (scale, bias), tensors[5], epsilon)


def _embedded(
    made: Builder, inputs: tuple[str, str, str], tables: Sequence[tuple[str, ...]], affine: tuple[str, str], mask: str,
    epsilon: float,
) -> None:  # fmt: skip
    """Sum the embeddings and normalise; rows are gathered before dequantisation."""
    tokens, segments, positions = inputs
    chosen = tokens, positions or made.arange(tokens, 1), segments
    rows = [
        made.dequantised(row, scales[0], scales[1]) if scales else row
        for index, (table, *scales) in zip(chosen, tables, strict=True)
        if index and table
        for row in [made.add("Gather", table, index)]
    ]
    *_, x = itertools.accumulate(rows, lambda a, b: made.add("Add", a, b))
    y, counted, summed = (*made.node.outputs, "", "")[:3]
    made.add("LayerNormalization", x, *affine, outputs=(y,), axis=-1, epsilon=epsilon)
    if counted:
        seen = made.add("Equal", mask, made.array(np.array(1, np.int32))) if mask else ""
        ones = made.add("Cast", seen, to=np.dtype(np.int32)) if mask else made.add("Sub", tokens, tokens)
        made.add("ReduceSum", ones, made.integers(1), outputs=(counted,), keepdims=0)
    if summed:
        made.add("Identity", x, outputs=(summed,))
