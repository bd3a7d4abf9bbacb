"""Columns of GEMM tiles by the number of pixels, where that follows from sizes of a run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from cpuconv.kernels.binding.steps import MicroRef, OneOf
from cpuconv.problem.integers import divide
from cpuconv.problem.sizes import applied, is_followed, item

_BESIDE = 1  # columns whose time a tile takes beside that of its own


class Columns(NamedTuple):
    """Numbers of columns that tiles may have, and which one is taken."""

    options: tuple[int, ...]
    index: Any

    def ref(self, make: Callable[[int], MicroRef]) -> MicroRef | OneOf:
        """The micro-kernel, by a function of columns."""
        if not is_followed(self.index):
            return make(self.options[self.index])
        return OneOf(tuple(map(make, self.options)), self.index)


def halves(most: int) -> tuple[int, ...]:
    """A number of columns, half of it, a quarter and so on, down to one."""
    return tuple(dict.fromkeys(divide(most, 1 << halved) for halved in range(most.bit_length() + 1)))


def columns_for(options: tuple[int, ...], pixels: Any) -> tuple[Columns, Any]:
    """Columns of tiles that cover so many pixels: the first option, or of pixels that a trace follows any, where the
    first is too wide or leaves more over."""
    if not is_followed(pixels):
        return Columns(options[:1], 0), options[0]
    index = applied(functools.partial(_best, options), pixels)
    return Columns(options, index), item(options, index)


def _best(options: tuple[int, ...], pixels: int) -> int:
    able = [at for at, columns in enumerate(options) if columns <= pixels] or [len(options) - 1]
    return min(able, key=lambda at: divide(pixels, options[at]) * (options[at] + _BESIDE))
