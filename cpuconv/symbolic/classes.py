"""Classes of sizes, which share algorithms and templates, and the sizes that represent them."""

from __future__ import annotations

HALF_STEP, AXIS, BATCH = 1, 2, 4
"""Bits between the largest sizes of adjacent classes: a power of 2, of 4, or of 16."""

_USUAL = {0: 1, 1: 2, 2: 3, 4: 12, 6: 48, 8: 224, 10: 640}  # representative by bits of the class's largest size


def size_class(size: int, step: int = AXIS) -> int:
    """The class of a size: the bits of the class's largest size, a multiple of `step`."""
    return -(-max(0, size - 1).bit_length() // step) * step


def representative_size(of: int, batched: bool = False) -> int:
    """The size for which a class's algorithms are selected: its most common one, which has been measured most often.

    For a batch, half the largest size of the class.
    """
    return 2**of // 2 or 1 if batched else _USUAL.get(of, 7 * 2**of // 8)
