"""Weights of two words side by side, where their products are added in 16 bits (`products/gemm_bytes.py`)."""

from __future__ import annotations

import numpy as np

from cpuconv.elements import S8
from cpuconv.kernels.emit.product import JOINED, JOINED_WORDS

_PAIR = 128  # the most that the weights of a pair above zero add up to, and those below: 255·128 < 2¹⁵
_ALL = 256  # the most that the magnitudes of two words' pairs add up to: 128·256 = 2¹⁵
_AT_LEAST_ZERO, _BELOW = -128, -127  # what flips add to pixels that meet such weights, as unsigned bytes


def join(words: np.ndarray, packed: np.ndarray) -> None:
    """Join two words of each segment that allows it, in place.

    Parameters
    ----------
    words : int8 array, (panels, v, lanes, words of a segment, R, S, 4)
        Weights of the segments of each tap.
    packed : int8 array, (panels, R, S, words, 2, v, lanes, 4)
        Their magnitudes and flips.
    """
    panels, v, lanes, count, r, s, _ = words.shape
    whole = count // JOINED_WORDS * JOINED_WORDS
    if not whole:
        return
    given = words[:, :, :, :whole].transpose(0, 4, 5, 3, 1, 2, 6)  # (panels, R, S, words, v, lanes, 4)
    pairs = given.reshape(panels, r, s, whole // JOINED_WORDS, JOINED_WORDS, v, lanes, 2, 2).astype(np.int16)
    above, below = np.maximum(pairs, 0).sum(-1, dtype=np.int16), -np.minimum(pairs, 0).sum(-1, dtype=np.int16)
    small = (np.maximum(above, below) <= _PAIR).all((3, 4, 5, 6, 7))
    small &= ((above + below).sum(4) <= _ALL).all((3, 4, 5, 6))
    added = (above * _AT_LEAST_ZERO - below * _BELOW).sum(4, dtype=np.int16)
    target = packed[:, :, :, :whole].reshape(panels, r, s, whole // JOINED_WORDS, 2 * JOINED_WORDS, v, lanes, 4)
    joined = np.zeros_like(target)
    joined[..., :JOINED_WORDS, :, :, :] = given.reshape(panels, r, s, -1, JOINED_WORDS, v, lanes, 4)
    joined[..., JOINED_WORDS, :, :, :] = np.ascontiguousarray(added).view(S8.dtype)
    joined[..., JOINED_WORDS + 1, -1, -1, -1] = JOINED
    target[small] = joined[small]
    packed[:, :, :, :whole] = target.reshape(panels, r, s, whole, 2, v, lanes, 4)
