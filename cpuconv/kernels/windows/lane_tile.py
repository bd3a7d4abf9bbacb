"""Parameters of lane tiles: outputs of one channel block, each lane by itself (`depthwise_tile.py`)."""

from __future__ import annotations

from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F16, F32, Element
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.windows.edges import NO_EDGES, Edges
from cpuconv.kernels.windows.group_words import GroupWords


@dataclass(frozen=True)
class LaneTile:
    """Parameters of a lane tile; sizes in pixels."""

    lanes: int
    rows: int  # 0: an argument of the call, at least `rows_in_flight`
    cols: int
    r: int
    s: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    edges: Edges = NO_EDGES
    mix: int = 1  # channels (a power of two) or 32-bit groups per convolution group
    weights_in_registers: bool = False  # the whole kernel is in registers (mix 1)
    checked: bool = False  # rows of the window may be outside of the input
    residual: bool = False
    activation: tuple[Any, ...] | None = None
    x: Element = F32
    y: Element = F32
    sum: Element = F32
    words: GroupWords | None = None
    xs: int = 0  # bytes between pixels of the input, if they are not those of a vector: channels last
    ys: int = 0  # the same of the output

    @property
    def parts(self) -> int:
        """Weight vectors per input vector and tap."""
        return self.words.product.parts if self.words else 1

    @property
    def half_sums(self) -> bool:
        """Whether lanes are float16, twice as many as `lanes`: sums, input and output."""
        return self.sum == F16

    @property
    def wide(self) -> int:
        """Columns of the input window."""
        return (self.cols - 1) * self.stride[1] + (self.s - 1) * self.dilation[1] + 1

    @property
    def reach(self) -> int:
        """Input rows of an output's window."""
        return (self.r - 1) * self.dilation[0] + 1

    @property
    def rows_in_flight(self) -> int:
        """Output rows whose windows begin no later than the first one's ends."""
        return (self.reach - 1) // self.stride[0] + 1

    @property
    def skips(self) -> bool:
        """Whether taps over padding are skipped: only where padding is zero."""
        return not self.sum.integer

    @property
    def used_columns(self) -> range:
        """Columns of the window whose taps are multiplied."""
        return self.edges.inner_columns(self.wide) if self.skips else range(self.wide)

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of sums."""
        return Epilogue(self.sum, self.y, self.residual, self.activation)
