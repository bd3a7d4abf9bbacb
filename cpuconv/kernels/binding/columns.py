"""Columns of tiles by the number of pixels, where that follows from sizes of a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cpuconv.following.sizes import applied, is_followed, item
from cpuconv.kernels.binding.steps import MicroRef, OneOf
from cpuconv.problem.integers import divide
from cpuconv.runtime.code import at_hand, background

_BESIDE = 1  # columns whose time a tile takes beside that of its own


class Columns(NamedTuple):
    """Numbers of columns that tiles may have, which of them is taken, and its columns."""

    options: tuple[int, ...]
    index: Any
    taken: Any

    def ref(self, make: Callable[[int], MicroRef]) -> MicroRef | OneOf:
        """The micro-kernel, by a function of columns."""
        if not is_followed(self.index):
            return make(self.options[self.index])
        return OneOf(tuple(map(make, self.options)), self.index, ready=1)  # the others are at hand


def columns_for(
    first: int, others: Iterable[int], pixels: Any, kernels: Callable[[int], Iterable[MicroRef]]
) -> Columns:
    """Columns of tiles that cover so many pixels.

    They are the first, whose kernels may be compiled; of pixels that a trace follows also any other one whose kernels
    are at hand, where the first is too wide or leaves more over.

    Parameters
    ----------
    first : int
    others : iterable of int
    pixels : int or Size
    kernels : callable
        Gives the micro-kernels of tiles of so many columns.
    """
    if not is_followed(pixels):
        return Columns((first,), 0, first)
    options = [first]
    for each in others:
        lacking = at_hand.missing((ref.kernel, ref.tile) for ref in kernels(each)) if each != first else []
        if lacking:
            background.want(lacking)
        elif each != first:
            options.append(each)
    index = applied(functools.partial(_best, tuple(options)), pixels)
    return Columns(tuple(options), index, item(tuple(options), index))


def _best(options: tuple[int, ...], pixels: int) -> int:
    able = [at for at, columns in enumerate(options) if columns <= pixels] or [options.index(min(options))]
    return min(able, key=lambda at: divide(pixels, options[at]) * (options[at] + _BESIDE))
