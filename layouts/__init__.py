"""Memory layouts of 4-D activations: names, shapes, strides and conversions, and the layout planner.

>>> import layouts
>>> layouts.get("NCHW16c").shape(1, 20, 7, 7)
(1, 2, 7, 7, 16)
"""

from __future__ import annotations

from .convert import convert, from_nchw, to_nchw
from .layout import ALIASES, NAMES, Layout, Strides, blocked, get
from .planner import Link, least, solve

__all__ = [
    "ALIASES",
    "NAMES",
    "Link",
    "Layout",
    "Strides",
    "blocked",
    "convert",
    "from_nchw",
    "get",
    "least",
    "solve",
    "to_nchw",
]
