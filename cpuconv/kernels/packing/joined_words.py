"""Joint packing of two groups of int8 weights, whose dot products are added in int16 (`products/gemm_maddubs.py`)."""

from __future__ import annotations

import numpy as np

from cpuconv.elements import S8
from cpuconv.kernels.emit.product import JOINED, JOINED_WORDS

_PAIR = 128  # upper bound of the sum of a pair's positive weights, and of its negative ones: 255·128 < 2¹⁵
_ALL = 256  # upper bound of the sum of the magnitudes of two groups' pairs: 128·256 = 2¹⁵
_AT_LEAST_ZERO, _BELOW = -128, -127  # offsets that flip masks add to uint8 pixels for weights >= 0, and for others


def join(words: np.ndarray, packed: np.ndarray) -> None:
    """Join two groups of each segment that allows it, in place.

    Parameters
    ----------
    words : int8 array, (panels, v, lanes, words of a segment, R, S, 4)
        Weights of the segments of each tap.
    packed : int8 array, (panels, R, S, words, 2, v, lanes, 4)
        Their magnitudes and flip masks.
    """
    panels, v, lanes, count, r, s, _ = words.shape
    whole = count // JOINED_WORDS * JOINED_WORDS
    if not whole:
        return
    given = np.ascontiguousarray(words[:, :, :, :whole].transpose(0, 4, 5, 3, 1, 2, 6))  # [panel][R][S][word][v][lane]
    first, second = (given[..., at::2].astype(np.int16) for at in range(2))  # of pairs
    above = np.maximum(first, 0) + np.maximum(second, 0)
    below = above - (first + second)
    twos = (above + below)[:, :, :, ::2] + (above + below)[:, :, :, 1::2]
    small = _most(np.maximum(above, below)) <= _PAIR
    small &= _most(twos) <= _ALL
    if not small.any():
        return
    each = above * np.int16(_AT_LEAST_ZERO) - below * np.int16(_BELOW)
    added = np.ascontiguousarray(each[:, :, :, ::2] + each[:, :, :, 1::2]).view(S8.dtype)
    pairs = packed[:, :, :, :whole].reshape(panels, r, s, whole // JOINED_WORDS, 2 * JOINED_WORDS, v, lanes, 4)
    joined = pairs[small]
    joined[:, :, :JOINED_WORDS] = given.reshape(panels, r, s, -1, JOINED_WORDS, v, lanes, 4)[small]
    joined[:, :, JOINED_WORDS] = added[small]
    joined[:, :, JOINED_WORDS + 1] = 0
    joined[:, :, JOINED_WORDS + 1, -1, -1, -1] = JOINED
    pairs[small] = joined
    packed[:, :, :, :whole] = pairs.reshape(panels, r, s, whole, 2, v, lanes, 4)


def _most(array: np.ndarray) -> np.ndarray:
    """The maximum of each segment."""
    return array.reshape(*array.shape[:3], -1).max(-1)
