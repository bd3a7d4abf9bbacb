"""Selection of the columns of tiles by the number of pixels, where that depends on the sizes of a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cpuconv.kernels.binding.steps import MicroRef, OneOf
from cpuconv.problem.integers import divide
from cpuconv.runtime.code import at_hand, background
from cpuconv.symbolic.sizes import applied, is_symbolic, item

_BESIDE = 1  # fixed cost of a tile, in columns


class Columns(NamedTuple):
    """Numbers of columns to select from, index of the selected number, and that number."""

    options: tuple[int, ...]
    index: Any
    taken: Any

    def ref(self, make: Callable[[int], MicroRef]) -> MicroRef | OneOf:
        """The micro-kernel of the selected columns; `make` maps columns to micro-kernels."""
        if not is_symbolic(self.index):
            return make(self.options[self.index])
        return OneOf(tuple(map(make, self.options)), self.index, ready=1)  # the kernels of other options are at hand


def columns_for(
    first: int, others: Iterable[int], pixels: Any, kernels: Callable[[int], Iterable[MicroRef]]
) -> Columns:
    """Select the columns of tiles that cover `pixels` pixels.

    The first option's kernels may be compiled. For traced pixels, other options are included if their kernels are at
    hand; they serve where the first is too wide or leaves a larger remainder.

    Parameters
    ----------
    first : int
    others : iterable of int
    pixels : int or Size
    kernels : callable
        Maps a number of columns to the micro-kernels of such tiles.
    """
    if not is_symbolic(pixels):
        return Columns((first,), 0, first)
    options = [first]
    for each in others:
        lacking = at_hand.missing((ref.kernel, ref.tile) for ref in kernels(each)) if each != first else []
        if lacking:
            background.request(lacking)
        elif each != first:
            options.append(each)
    index = applied(functools.partial(_best, tuple(options)), pixels)
    return Columns(tuple(options), index, item(tuple(options), index))


def _best(options: tuple[int, ...], pixels: int) -> int:
    able = [at for at, columns in enumerate(options) if columns <= pixels] or [options.index(min(options))]
    return min(able, key=lambda at: divide(pixels, options[at]) * (options[at] + _BESIDE))
