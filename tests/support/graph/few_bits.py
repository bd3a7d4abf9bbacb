"""Weights of a few bits each, with a scale for each block, as NumPy and Python's integers have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """One number after the other, as Python's integers have them."""
    flat = packed.reshape(-1, packed.shape[-1])
    whole = [int.from_bytes(row.tobytes(), "little") for row in flat]
    count = packed.shape[-1] * 8 // bits
    rows = [[each >> bits * at & (1 << bits) - 1 for at in range(count)] for each in whole]
    return np.float32(rows).reshape(*packed.shape[:-1], count)


def few(bits: int, columns: int, depth: int, size: int, packed_zeros: bool) -> Callable[..., np.ndarray]:
    blocks = -(-depth // size)

    def apply(x, packed, scales, points=None, order=None, bias=0):
        units = _unpacked(packed.reshape(columns, -1), bits).reshape(columns, blocks, size)
        zeros = np.float32(1 << bits - 1)
        if points is not None:
            flat = points.reshape(columns, -1)
            zeros = (_unpacked(flat, bits)[:, :blocks] if packed_zeros else flat)[..., None]
        weights = ((units - zeros) * scales.reshape(columns, blocks, 1)).reshape(columns, -1)[:, :depth]
        return x @ weights.T + bias

    return apply


def fours(table: Sequence[float], size: int) -> Callable[..., np.ndarray]:
    def apply(x, packed, largest):
        halves = [half for byte in packed.ravel() for half in (byte >> 4, byte & 15)]
        weights = np.float32([table[half] * largest[at // size] for at, half in enumerate(halves)])
        return x @ weights.reshape(-1, x.shape[-1]).T

    return apply


FLOATS = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
FLOATS += [-each for each in FLOATS]
_OUTERMOST = 0.9677083  # the probability of the last quantile


def quantiles() -> list[float]:
    """Sixteen quantiles of a normal distribution, zero among them, the largest being one."""
    of = NormalDist().inv_cdf
    above, below = (np.linspace(_OUTERMOST, 0.5, count)[:-1] for count in (9, 8))
    points = sorted([*map(of, above), 0.0, *(-of(part) for part in below)])
    return [point / points[-1] for point in points]


def gathered(bits: int, size: int) -> Callable[..., np.ndarray]:
    def apply(table, rows, scales, points=None):
        units = _unpacked(table, bits)
        zeros = 1 << bits - 1 if points is None else _unpacked(points, bits)[..., : scales.shape[-1]]
        parts = units.reshape(*scales.shape, size) - np.broadcast_to(np.float32(zeros), scales.shape)[..., None]
        return (parts * scales[..., None]).reshape(units.shape)[rows]

    return apply
