"""Classes of sizes: those of a class share algorithms and templates."""

from __future__ import annotations


def size_class(size: int) -> int:
    """The class of a size: powers of four."""
    return (max(0, size - 1).bit_length() + 1) // 2


def representative_size(of: int) -> int:
    """The size for which the algorithms of a class are chosen: three quarters of its largest."""
    return 3 * 4**of // 4 if of else 1
