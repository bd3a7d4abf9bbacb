"""Groups that are too small for a kernel, as fewer and larger ones: weights are block diagonal, zero between groups.

So many groups are merged as fill what AMX reads and writes at once, whole channel blocks. Products with zeros are the
price: with 4 channels a group, AMX does 16 times the work, at 30 times the speed of float32's FMA. Other products read
spans of words (`spans.py`).
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
"""Why a kernel cannot run groups as they are, or None: `blocked.aligned_groups`."""


@dataclass(frozen=True)
class DiagonalPanels(Packing):
    """The form of merged groups, of weights that are zero between the groups.

    Attributes
    ----------
    form : Packing
    groups, together : int
        Groups of the weights, and how many become one.
    """

    form: Packing
    groups: int
    together: int

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """As `Packing` says."""
        k, channels, r, s = weight.shape
        given = weight.reshape(-1, self.together, k // self.groups, channels, r, s)
        filled = np.zeros((*given.shape[:3], self.together, channels, r, s), weight.dtype)
        for group in range(self.together):
            filled[:, group, :, group] = given[:, group]
        return self.form.pack(filled.reshape(k, self.together * channels, r, s), threads, place)


def together(problem: ConvProblem, isa: Isa, why_not: Refusal) -> int:
    """How many groups become one: 1 of float32, whose kernels have groups, and of depthwise convolutions."""
    if problem.types == ALL_F32 or problem.cg * problem.kg == 1:
        return 1
    counts = (count for count in range(1, problem.groups) if problem.groups % count == 0)
    fits = (count for count in counts if why_not(replace(problem, groups=problem.groups // count), isa) is None)
    return next(fits, problem.groups)


def merged(problem: ConvProblem, isa: Isa, why_not: Refusal) -> ConvProblem:
    """The problem with groups that the kernel runs."""
    count = together(problem, isa, why_not)
    return problem if count == 1 else replace(problem, groups=problem.groups // count)


def packed(form: Packing, problem: ConvProblem, isa: Isa, why_not: Refusal) -> Packing:
    """The form of the weights of a problem, where that of merged groups is `form`."""
    count = together(problem, isa, why_not)
    return form if count == 1 else DiagonalPanels(form, problem.groups, count)
