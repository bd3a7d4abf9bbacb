"""Integer weights in a transform's domain: int16, in 32-bit groups of two input channels."""

from __future__ import annotations

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, S16
from cpuconv.kernels.packing.packing import Filters, Packing, Room, room
from cpuconv.problem.integers import divide

GROUP = F32.bytes // S16.bytes  # channels per 32-bit group


@dataclass(frozen=True)
class TransformedWords(Packing):
    """Form [group][plane][panel][32-bit group of C][v][lanes of K][2] of down·w·acrossᵀ; missing channels are zero.

    Attributes
    ----------
    filters : Filters
    c, r, s : int
        Input channels of a group, kernel height and width.
    down, across : matrices
        Integer matrices, such that all results fit int16.
    """

    filters: Filters
    c: int
    r: int
    s: int
    down: tuple[tuple[float, ...], ...]
    across: tuple[tuple[float, ...], ...]

    @property
    def planes(self) -> int:
        """Components of the transform."""
        return len(self.down) * len(self.across)

    @property
    def words(self) -> int:
        """32-bit groups of a convolution group's input channels."""
        return divide(self.c, GROUP)

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        filters = self.filters
        return filters.groups * self.planes * filters.panels * self.words * filters.row

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; `weight` is int8 or int16, the result uint8."""
        filters = self.filters
        packed = place(self.size)
        target = packed.view(S16.dtype).reshape(
            filters.groups, self.planes, filters.panels, self.words, filters.v, filters.lanes, GROUP
        )
        matrix = np.kron(np.array(self.down), np.array(self.across)).astype(F32.dtype)  # exact: results fit int16
        first = np.minimum(np.arange(filters.panels) * filters.v, filters.vectors - filters.v) * filters.lanes
        panel = filters.v * filters.lanes
        for group in range(filters.groups):
            taps = weight[group * filters.k : (group + 1) * filters.k].reshape(filters.k, self.c, -1)
            shape = self.planes, filters.vectors * filters.lanes, self.words * GROUP
            filled = np.zeros(shape, S16.dtype)
            filled[:, : filters.k, : self.c] = np.moveaxis(taps.astype(F32.dtype) @ matrix.T, 2, 0)
            for at, start in enumerate(first.tolist()):
                piece = filled[:, start : start + panel].reshape(self.planes, filters.v, filters.lanes, -1, GROUP)
                target[group, :, at] = piece.transpose(0, 3, 1, 2, 4)
        return packed
