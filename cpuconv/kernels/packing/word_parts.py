"""32-bit groups of weights in the order of a dot-product kind: in parts, or as magnitudes and flip masks."""

from __future__ import annotations

import numpy as np

from cpuconv.elements import S8, U8
from cpuconv.kernels.emit.product import Product

_HIGHEST = -0x80  # the sign bit of a byte: flipping it subtracts 128 and makes uint8 int8


def in_parts(words: np.ndarray, product: Product) -> np.ndarray:
    """Reorder groups of weights (..., elements of a group) to (..., elements of a part, parts)."""
    if not product.flipped:
        return words.reshape(*words.shape[:-1], -1, product.parts)
    magnitudes = np.abs(words).view(U8.dtype).view(S8.dtype)  # abs(-128) is -128, which is 128 as uint8
    flips = np.where(words < 0, S8.dtype.type(-1), S8.dtype.type(0))
    return np.stack([magnitudes, flips ^ S8.dtype.type(_HIGHEST) if product.x == U8 else flips], -1)
