"""Classes of sizes, which share algorithms and templates, and the sizes that represent them."""

from __future__ import annotations

HALF, AXIS, BATCH = 1, 2, 4
"""Bits of a step from the largest size of a class to that of the next: a power of 2, of 4, or of 16."""

_USUAL = {0: 1, 1: 2, 2: 3, 4: 12, 6: 48, 8: 224, 10: 640}  # by bits of the largest size


def size_class(size: int, step: int = AXIS) -> int:
    """The class of a size: the bits of its largest size, the least multiple of `step` that is enough."""
    return -(-max(0, size - 1).bit_length() // step) * step


def representative_size(of: int, batched: bool = False) -> int:
    """The size for which the algorithms of a class are chosen: the one that people use most, which most is known of; of
    batches, half the largest."""
    return 2**of // 2 or 1 if batched else _USUAL.get(of, 7 * 2**of // 8)
