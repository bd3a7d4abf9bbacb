"""What `compile` does for a network of open sizes: a program for usual sizes, with its kernels.

So kernels of what the network fuses, which no pack has, are compiled with the network and not in the first run. Where
no kernel is on disk, in no pack and not in the cache folder, small tiles of the same families are compiled too: later
sizes are served by these until better ones come (`runtime.code.background`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from cpuconv.graph.ir import Value
from cpuconv.kernels.products.closed.closed_strip import closed_strip
from cpuconv.kernels.products.closed.closed_tile import LINES, MATRIX, PIXELS, PLANES
from cpuconv.runtime.code.together import Wanted, compiled_together

Shapes = tuple[tuple[int, ...], ...]  # of inputs

USUAL_SIZES = (320, 48, 64, 224, 128, 32)
"""Sizes of axes that are open, the first that the network takes; a batch is 1."""


def usual_shapes(inputs: Sequence[Value], fits: Callable[[Shapes], bool]) -> Iterator[Shapes]:
    """The shapes of inputs at each usual size that `fits`."""
    return filter(fits, (tuple(_sized(value, size) for value in inputs) for size in USUAL_SIZES))


def compile_with_small_tiles(wanted: Sequence[Wanted]) -> None:
    """Have these kernels on disk, with small tiles of their families."""
    wanted = list(dict.fromkeys((*wanted, *_small(wanted))))
    compiled_together(wanted)
    for kernel, tile in wanted:
        kernel.entry(tile)


def _sized(value: Value, size: int) -> tuple[int, ...]:
    shape = value.shape or ()
    return tuple(axis if isinstance(axis, int) else size if at else 1 for at, axis in enumerate(shape))


def _small(wanted: Iterable[Wanted]) -> Iterator[Wanted]:
    """Strips of one pixel, which every plane is large enough for, and of last panels of all widths."""
    for kernel, tile in wanted:
        if kernel is not closed_strip:
            continue
        if tile.form in (PIXELS, LINES):
            yield kernel, replace(tile, cols=1)
        elif tile.form in (PLANES, MATRIX):
            yield from ((kernel, replace(tile, v=v, last=True)) for v in range(1, tile.v + 1))
