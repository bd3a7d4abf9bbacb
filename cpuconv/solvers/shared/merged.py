"""Small groups merged into larger ones for AMX: weights are block diagonal, zero between groups.

As many groups are merged as fill the channel blocks that AMX reads and writes. The cost is products with zeros: with 4
channels per group AMX does 16 times the work, at 30 times the rate of float32's FMA. Other instructions read spans of
32-bit groups instead (`spans.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.kernels.packing.packing import Packing, Room, room
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32

Refusal = Callable[[ConvProblem, Isa], str | None]
"""Function that returns why a kernel cannot run groups unmerged, or None: `blocked.aligned_groups`."""


@dataclass(frozen=True)
class DiagonalPanels(Packing):
    """Packed form of merged groups, with zero weights between the original groups.

    Attributes
    ----------
    form : Packing
    groups, together : int
            Groups of the weights, and how many are merged into one.
    """

    form: Packing
    groups: int
    together: int

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """Pack weights as `Packing.pack`."""
        k, channels, r, s = weight.shape
        given = weight.reshape(-1, self.together, k // self.groups, channels, r, s)
        filled = np.zeros((*given.shape[:3], self.together, channels, r, s), weight.dtype)
        for group in range(self.together):
            filled[:, group, :, group] = given[:, group]
        return self.form.pack(filled.reshape(k, self.together * channels, r, s), threads, place)


def together(problem: ConvProblem, isa: Isa, why_not: Refusal) -> int:
    """Number of groups merged into one: 1 in float32, whose kernels support groups, and for depthwise convolutions."""
    if problem.types == ALL_F32 or problem.cg * problem.kg == 1:
        return 1
    counts = (count for count in range(1, problem.groups) if problem.groups % count == 0)
    fits = (count for count in counts if why_not(replace(problem, groups=problem.groups // count), isa) is None)
    return next(fits, problem.groups)


def merged(problem: ConvProblem, isa: Isa, why_not: Refusal) -> ConvProblem:
    """Problem with the groups that the kernel runs."""
    count = together(problem, isa, why_not)
    return problem if count == 1 else replace(problem, groups=problem.groups // count)


def packed(form: Packing, problem: ConvProblem, isa: Isa, why_not: Refusal) -> Packing:
    """Packed form of a problem's weights, given that of the merged groups."""
    count = together(problem, isa, why_not)
    return form if count == 1 else DiagonalPanels(form, problem.groups, count)
