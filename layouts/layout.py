"""Layout descriptions: axis order and number of channels per block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Strides(NamedTuple):
    """Strides of a layout: element (n, c, h, w) is at ``n*S.n + (c//block)*S.cb + (c%block)*S.c + h*S.h + w*S.w``."""

    n: int
    block: int
    cb: int
    c: int
    h: int
    w: int


@dataclass(frozen=True)
class Layout:
    """A memory layout of a 4-D activation.

    Attributes
    ----------
    name : str
        "NCHW", "NHWC" or "NCHW<b>c" with blocks of b channels, one of 4, 8, 16, 32 and 64.
    block : int
        Channels per block, adjacent in memory as the innermost axis; 1 where channels are not blocked.
    axes : str
        One letter per physical axis, outermost first; "c" is the axis of channel blocks, "b" the axis inside a block.
    """

    name: str
    block: int
    axes: str

    @property
    def rank(self) -> int:
        """Number of physical axes."""
        return len(self.axes)

    def shape(self, n: int, c: int, h: int, w: int) -> tuple[int, ...]:
        """Return the physical shape of a logical (n, c, h, w) activation; the last block is padded."""
        size = {"n": n, "c": -(-c // self.block), "h": h, "w": w, "b": self.block}
        return tuple([size[axis] for axis in self.axes])

    def strides(self, physical: Sequence[int]) -> Strides:
        """Return logical strides from the strides of the physical array, in the same unit."""
        if len(physical) != self.rank:
            raise ValueError(f"Argument 'physical' must be {self.rank} strides for {self.name}, not {len(physical)}.")
        of = dict(zip(self.axes, physical, strict=True))
        return Strides(of["n"], self.block, of["c"], of.get("b", 0), of["h"], of["w"])

    def __str__(self) -> str:
        return self.name


_TABLE = {
    layout.name: layout
    for layout in (
        Layout("NCHW", 1, "nchw"),
        Layout("NHWC", 1, "nhwc"),
        Layout("NCHW4c", 4, "nchwb"),
        Layout("NCHW8c", 8, "nchwb"),
        Layout("NCHW16c", 16, "nchwb"),
        Layout("NCHW32c", 32, "nchwb"),
        Layout("NCHW64c", 64, "nchwb"),
    )
}
NAMES: tuple[str, ...] = tuple(_TABLE)
ALIASES: dict[str, str] = {"NCHW44": "NCHW4c", "NCHW44_DOT": "NCHW4c"}


def get(name: str | Layout) -> Layout:
    """Return the layout with this name or alias.

    Raises
    ------
    ValueError
        No layout has this name; the message lists all names.
    """
    if type(name) is str and name in _TABLE:
        return _TABLE[name]
    if isinstance(name, Layout):
        return name
    layout = _TABLE.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    if layout is None:
        raise ValueError(f"Argument 'name' must be one of {', '.join((*NAMES, *ALIASES))}, not {name!r}.")
    return layout


def blocked(lanes: int) -> Layout:
    """Return the layout with `lanes` channels per block.

    Raises
    ------
    ValueError
        No layout has this block size.
    """
    for layout in _TABLE.values():
        if layout.block == lanes and lanes > 1:
            return layout
    blocks = ", ".join(str(layout.block) for layout in _TABLE.values() if layout.block > 1)
    raise ValueError(f"Argument 'lanes' must be one of {blocks}, not {lanes!r}.")
