"""Words of weights as a product reads them: in parts, or as magnitudes and what is flipped of pixels."""

from __future__ import annotations

import numpy as np

from cpuconv.elements import S8, U8
from cpuconv.kernels.emit.product import Product

_HIGHEST = -0x80  # the bit of a byte that makes a signed one, 128 less, of an unsigned one


def in_parts(words: np.ndarray, product: Product) -> np.ndarray:
    """Words of weights (..., elements of a word) as (..., elements of a part, parts)."""
    if not product.flipped:
        return words.reshape(*words.shape[:-1], -1, product.parts)
    magnitudes = np.abs(words).view(U8.dtype).view(S8.dtype)  # that of -128 is -128, which is 128 of unsigned bytes
    flips = np.where(words < 0, S8.dtype.type(-1), S8.dtype.type(0))
    return np.stack([magnitudes, flips ^ S8.dtype.type(_HIGHEST) if product.x == U8 else flips], -1)
