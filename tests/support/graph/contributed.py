"""Operators of com.microsoft by their formulas: operands drawn once, and what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

from support.graph import few_bits
from support.graphs import close, one_node

RNG = np.random.default_rng(7)


class Formula(NamedTuple):
    """One node: its inputs (None: left out), attributes, positions of constants, and its outputs by a formula."""

    op: str
    arrays: Sequence[np.ndarray | None]
    attributes: dict[str, Any]
    fixed: Sequence[int]
    outputs: Callable[..., Sequence[np.ndarray | None] | np.ndarray]
    limit: float = 1e-5
    domain: str = "com.microsoft"
    served: bool = True  # by ONNX Runtime on a CPU

    def expected(self) -> list[np.ndarray | None]:
        """The outputs; None: not asked for."""
        made = self.outputs(*self.arrays)
        return [made] if isinstance(made, np.ndarray) else [*made]

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """A model of the node, and what to feed it."""
        asked = [array is not None for array in self.expected()]
        model, feed = one_node(self.op, self.arrays, len(asked), 17, self.fixed, self.domain, **self.attributes)
        for at in reversed([at for at, wanted in enumerate(asked) if not wanted]):
            model.graph.node[0].output[at] = ""
            del model.graph.output[at]
        return model, feed


def agree(got: Sequence[np.ndarray], case: Formula) -> None:
    """See that outputs are those of a formula."""
    wanted = [array for array in case.expected() if array is not None]
    for array, right in zip(got, wanted, strict=True):
        close(array, right.astype(np.float32) if right.dtype.kind == "f" else right, case.limit)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def some(kind: type, *shape: int) -> np.ndarray:
    ends = np.iinfo(kind)
    return RNG.integers(ends.min, ends.max, shape, kind, endpoint=True)


def _normal(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, epsilon: float) -> np.ndarray:
    apart = x - x.mean(-1, keepdims=True)
    return apart / np.sqrt((apart**2).mean(-1, keepdims=True) + epsilon) * scale + bias


def _root(x: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + epsilon) * scale


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


# --- embeddings -----------------------------------------------------------------------------------------------------

_TOKENS = RNG.integers(0, 9, (2, 5)).astype(np.int32)
_SEGMENTS = RNG.integers(0, 2, (2, 5)).astype(np.int32)
_SEEN = np.int32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
_TABLES = [floats(9, 8), floats(7, 8), floats(2, 8), floats(8), floats(8)]
_BYTES = [some(np.uint8, *table.shape) for table in _TABLES]
_SCALES = [np.float32(step) for step in (0.02, 0.03, 0.01, 0.02, 0.04)]
_ZEROS = [np.uint8(zero) for zero in (120, 128, 130, 90, 127)]


def _embedded(tokens, segments, words, places, parts, scale, bias, mask=None, positions=None):
    rows = words[tokens] + places[np.arange(5) if positions is None else positions]
    rows = rows if segments is None else rows + parts[segments]
    counted = np.zeros(2, np.int32) if mask is None else mask.sum(1, dtype=np.int32)
    return _normal(rows, scale, bias, 1e-5), counted, rows


def _embedded_bytes(tokens, segments, *tensors):
    tables, mask, scales, zeros = tensors[:5], tensors[5], tensors[6:11], tensors[11:]
    wide = [(table - np.float32(zero)) * unit for table, unit, zero in zip(tables, scales, zeros, strict=True)]
    return _embedded(tokens, segments, *wide, mask)[:2]


# --- attention ------------------------------------------------------------------------------------------------------


def _heads(x: np.ndarray, count: int) -> np.ndarray:
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def _persistent(queries, keys, values, heads, hidden=None, scale=None):
    """`hidden` is added to scores."""
    q, k, v = (_heads(each, heads).astype(np.float64) for each in (queries, keys, values))
    scores = q @ k.swapaxes(2, 3) * (scale or q.shape[-1] ** -0.5)
    scores = scores if hidden is None else scores + hidden
    y = (_softmax(scores) @ v).swapaxes(1, 2)
    return y.reshape(*y.shape[:2], -1), k, v


def _self_attended(hidden, heads=2):
    def apply(x, w, bias, *_):
        return _persistent(*np.split(x @ w + bias, 3, -1), heads, hidden)[0]

    return apply


def _counted(counts: np.ndarray, keys: int) -> np.ndarray:
    return np.where(np.arange(keys) < counts[:, None], 0.0, -10000.0)[:, None, None]


_LATER = np.triu(np.full((5, 5), -1e30), 1)
_SELF = [floats(2, 5, 8), floats(8, 24), floats(24)]
_QUERY, _KEY, _VALUE = floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 8)
_BIAS, _ADDED = floats(24), floats(1, 2, 3, 5)
_PACKED, _PAIR = floats(2, 5, 2, 3, 4), floats(2, 5, 2, 2, 4)


def _cross(query, key, value, bias, mask, added):
    q, k, v = (each + part for each, part in zip((query, key, value), np.split(bias, 3), strict=True))
    seen = np.where(mask, 0, -10000.0)[:, None, None]
    return _persistent(q, k, v, 2, seen + added, 0.3)


def _packed(x, *_):
    q, k, v = (x[:, :, :, at].swapaxes(1, 2) for at in range(3))
    return _persistent(q, k, v, 2, _LATER)[0]


def _packed_pair(query, pair, *_):
    return _persistent(query, *(pair[:, :, :, at].swapaxes(1, 2) for at in range(2)), 2)[0]


# --- rotations ------------------------------------------------------------------------------------------------------

_ANGLES = RNG.uniform(0, 3, (9, 2))
_ROTATION = [np.cos(_ANGLES).astype(np.float32), np.sin(_ANGLES).astype(np.float32)]


def _rotated(x, positions, cosines, sines, *, heads, interleaved=False):
    whole, half = x if x.ndim == 4 else _heads(x, heads), cosines.shape[1]
    at = positions + np.arange(whole.shape[2]) if positions.ndim == 1 else positions
    cos, sin = (np.broadcast_to(table[at], (len(x), *table[at].shape[-2:]))[:, None] for table in (cosines, sines))
    y = whole.copy()
    places = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    first, second = (whole[..., place] for place in places)
    y[..., places[0]], y[..., places[1]] = first * cos - second * sin, first * sin + second * cos
    return y if x.ndim == 4 else y.swapaxes(1, 2).reshape(x.shape)


def _sizes(rows: int, columns: int, block: int, bits: int) -> dict[str, int]:
    return {"K": rows, "N": columns, "block_size": block, "bits": bits}


def _nearest(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    columns, rows = np.rint((places[0] + 1) * (x.shape[2] - 1) / 2).astype(int).transpose(2, 0, 1)
    return x[:, :, rows, columns]


FORMULAS = [
    Formula(
        "EmbedLayerNormalization",
        [_TOKENS, _SEGMENTS, *_TABLES, _SEEN],
        {"epsilon": 1e-5},
        range(2, 7),
        _embedded,
    ),
    Formula(
        "EmbedLayerNormalization",
        [_TOKENS, None, *_TABLES[:2], None, *_TABLES[3:], None, RNG.integers(0, 7, (2, 5)).astype(np.int32)],
        {"epsilon": 1e-5},
        (2, 3, 5, 6),
        lambda *arrays: _embedded(*arrays)[:2],
    ),
    Formula(
        "QEmbedLayerNormalization",
        [_TOKENS, _SEGMENTS, *_BYTES, _SEEN, *_SCALES, *_ZEROS],
        {"epsilon": 1e-5},
        [*range(2, 7), *range(8, 18)],
        _embedded_bytes,
    ),
    Formula(
        "SkipSimplifiedLayerNormalization",
        [floats(2, 5, 8), floats(2, 5, 8), floats(8), floats(8)],
        {"epsilon": 1e-5},
        (2, 3),
        lambda x, skip, scale, bias: (_root(x + skip + bias, scale, 1e-5), None, None, x + skip + bias),
    ),
    Formula(
        "SimplifiedLayerNormalization",
        [floats(2, 5, 8), floats(8)],
        {"axis": -1, "epsilon": 1e-6},
        (1,),
        lambda x, scale: _root(x, scale, 1e-6),
        domain="",
    ),
    Formula(
        "Attention",
        [*_SELF, np.int32([3, 5])],
        {"num_heads": 2},
        (1, 2),
        _self_attended(_counted(np.int32([3, 5]), 5)),
    ),
    Formula("Attention", _SELF, {"num_heads": 2, "unidirectional": 1}, (1, 2), _self_attended(_LATER)),
    Formula(
        "MultiHeadAttention",
        [_QUERY, _KEY, _VALUE, _BIAS, _SEEN, _ADDED],
        {"num_heads": 2, "scale": 0.3},
        (3,),
        _cross,
    ),
    Formula(
        "MultiHeadAttention",
        [_QUERY, _heads(_KEY, 2), _heads(_VALUE, 2)],
        {"num_heads": 2},
        (),
        lambda *arrays: _persistent(*arrays, 2)[0],
    ),
    Formula("MultiHeadAttention", [_PACKED], {"num_heads": 2, "unidirectional": 1}, (), _packed, served=False),
    Formula("MultiHeadAttention", [_QUERY, _PAIR], {"num_heads": 2}, (), _packed_pair, served=False),
    Formula(
        "RotaryEmbedding",
        [floats(2, 5, 8), RNG.integers(0, 9, (2, 5)), *_ROTATION],
        {},
        (2, 3),
        lambda *arrays: _rotated(*arrays, heads=2),
    ),
    Formula(
        "RotaryEmbedding",
        [floats(2, 5, 12), np.int64([3]), *_ROTATION],
        {"interleaved": 1, "num_heads": 2, "rotary_embedding_dim": 4},
        (2, 3),
        lambda *arrays: _rotated(*arrays, heads=2, interleaved=True),
    ),
    Formula(
        "RotaryEmbedding",
        [floats(2, 3, 5, 4), np.int64([2]), *_ROTATION],
        {},
        (2, 3),
        lambda *arrays: _rotated(*arrays, heads=3),
    ),
    Formula(
        "MatMulNBits",
        [floats(2, 3, 40), some(np.uint8, 6, 3, 8), floats(18) ** 2 / 9],
        _sizes(40, 6, 16, 4),
        (1, 2),
        few_bits.few(4, 6, 40, 16, True),
    ),
    Formula(
        "MatMulNBits",
        [floats(3, 40), some(np.uint8, 6, 3, 8), floats(18) ** 2 / 9, some(np.uint8, 6 * 2), None, floats(6)],
        _sizes(40, 6, 16, 4),
        (1, 2, 3, 5),
        few_bits.few(4, 6, 40, 16, True),
    ),
    Formula(
        "MatMulNBits",
        [floats(1, 32), some(np.uint8, 5, 2, 8), floats(5, 2) ** 2 / 9, RNG.uniform(5, 9, (5, 2)).astype(np.float32)],
        _sizes(32, 5, 16, 4),
        (1, 2, 3),
        few_bits.few(4, 5, 32, 16, False),
    ),
    Formula(
        "MatMulNBits",
        [floats(1, 32), some(np.uint8, 5, 2, 16), floats(5, 2) ** 2 / 99, some(np.uint8, 5, 2)],
        _sizes(32, 5, 16, 8),
        (1, 2, 3),
        few_bits.few(8, 5, 32, 16, True),
    ),
    *[
        Formula(
            "MatMulBnb4",
            [floats(3, 32), some(np.uint8, 5 * 32 // 2), floats(10) ** 2],
            {"K": 32, "N": 5, "block_size": 16, "quant_type": kind},
            (1, 2),
            few_bits.fours(table, 16),
        )
        for kind, table in enumerate((few_bits.FLOATS, few_bits.quantiles()))
    ],
    Formula(
        "GatherBlockQuantized",
        [some(np.uint8, 7, 16), np.int64([[1, 6], [0, 1]]), floats(7, 2) ** 2, some(np.uint8, 7, 1)],
        {"block_size": 16},
        (0, 2, 3),
        few_bits.gathered(4, 16),
    ),
    Formula(
        "GatherBlockQuantized",
        [some(np.uint8, 7, 32), np.int32([1, 6]), floats(7, 2) ** 2],
        {"block_size": 16, "bits": 8, "quantize_axis": -1},
        (0, 2),
        few_bits.gathered(8, 16),
    ),
    Formula(
        "MatMulInteger16",
        [some(np.int16, 3, 4), some(np.int16, 4, 5) // 4],
        {},
        (1,),
        lambda a, b: a.astype(np.int32) @ b.astype(np.int32),
        0,
    ),
    Formula(
        "TransposeMatMul",
        [floats(2, 3, 4), floats(2, 5, 4)],
        {"transB": 1, "alpha": 0.5},
        (),
        lambda a, b: a @ b.swapaxes(1, 2) / 2,
    ),
    *[
        Formula(
            "CDist",
            [floats(3, 4), floats(5, 4)],
            {"metric": metric},
            (),
            lambda a, b, power=power: ((a[:, None] - b) ** 2).sum(-1) ** power,
        )
        for metric, power in (("euclidean", 0.5), ("sqeuclidean", 1))
    ],
    Formula("ExpandDims", [floats(3, 4), np.int32(-1)], {}, (1,), lambda x, axis: x[..., None], 0),
    Formula(
        "GatherND",
        [floats(3, 4, 2), np.int64([[0, 1], [2, 3]])],
        {},
        (1,),
        lambda x, at: x[at[:, 0], at[:, 1]],
        0,
    ),
    Formula(
        "GridSample",
        [floats(1, 2, 4, 4), (RNG.integers(0, 4, (1, 3, 3, 2)) / 1.5 - 1).astype(np.float32)],
        {"mode": "nearest", "align_corners": 1},
        (),
        _nearest,
        0,
    ),
    Formula(
        "Pad",
        [floats(3, 4), np.int64([0, 1, 2, 0]), np.float32(2)],
        {"mode": "constant"},
        (1, 2),
        lambda x, *_: np.pad(x, [(0, 2), (1, 0)], constant_values=2),
        0,
    ),
    Formula("Range", [np.int64(2), np.int64(7)], {}, (0, 1), lambda start, end: np.arange(start, end), 0),
    Formula(
        "Range",
        [np.float32(2), np.float32(7), np.float32(1.5)],
        {},
        (0, 1, 2),
        lambda start, end, step: np.arange(start, end, step, np.float32),
        0,
    ),
    Formula("Trilu", [floats(3, 4), np.int64(1)], {"upper": 0}, (1,), lambda x, k: np.tril(x, 1), 0),
]
