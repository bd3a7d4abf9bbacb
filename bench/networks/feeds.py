"""Random inputs of networks; imports only NumPy, because processes that measure memory use it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

_LETTER, _DOT = (7, 4), 3  # rows and columns of dots in a letter; pixels per side of a dot


def feed(inputs: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, np.ndarray]:
    """Make unit-normal float32 arrays for inputs of these shapes."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in inputs.items()}


def page(inputs: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, np.ndarray]:
    """Make arrays as `feed` does, but with lines of random letters: a text network finds nothing in noise."""
    rng = np.random.default_rng(seed)
    pages = {}
    for name, (n, c, h, w) in inputs.items():
        high, wide = (size * _DOT for size in _LETTER)
        ink = np.zeros((n, 1, h, w), np.float32)
        for top in range(_DOT, h - high, 2 * high):
            for left in range(_DOT, w - wide, wide + _DOT):
                dots = rng.integers(0, 2, (n, 1, *_LETTER)).repeat(_DOT, 2).repeat(_DOT, 3)
                ink[..., top : top + high, left : left + wide] = dots
        noise = rng.standard_normal((n, c, h, w), np.float32)
        pages[name] = 1 - 2 * ink + np.float32(0.1) * noise
    return pages
