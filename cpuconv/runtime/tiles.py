"""Tiles: frozen dataclasses whose values a kernel is compiled for."""

from __future__ import annotations

import dataclasses
from typing import Any


def tile_text(tile: Any) -> str:
    """Return all values of a tile in one line: its identity in caches."""
    fields = (f"{f.name}={getattr(tile, f.name)!r}" for f in dataclasses.fields(tile))
    return f"{type(tile).__name__}({','.join(fields)})"
