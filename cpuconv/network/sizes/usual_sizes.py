"""Build a program for common sizes when a network with open sizes is compiled, with its kernels.

Fused kernels of the network, which no pack contains, are thus compiled with the network and not in the first run. If no
kernels exist in packs or in the cache folder, small tiles of the same families are compiled too. They serve later sizes
until better tiles have been compiled (`runtime.code.background`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from cpuconv.graph.ir import Value
from cpuconv.kernels.products.closed.closed_strip import closed_strip
from cpuconv.kernels.products.closed.closed_tile import LINES, MATRIX, PIXELS, PLANES
from cpuconv.runtime.code.parallel_compile import Wanted, compile_in_parallel

Shapes = tuple[tuple[int, ...], ...]  # shapes of the inputs

USUAL_SIZES = (320, 48, 64, 224, 128, 32)
"""Candidates for the size of open axes; the first that the network accepts is used. The batch size is 1."""


def usual_shapes(inputs: Sequence[Value], fits: Callable[[Shapes], bool]) -> Iterator[Shapes]:
    """Yield the shapes of the inputs for each common size, if they satisfy `fits`."""
    return filter(fits, (tuple(_sized(value, size) for value in inputs) for size in USUAL_SIZES))


def compile_with_small_tiles(wanted: Sequence[Wanted]) -> None:
    """Compile these kernels to the cache folder, with small tiles of their families."""
    wanted = list(dict.fromkeys((*wanted, *_small(wanted))))
    compile_in_parallel(wanted)
    for kernel, tile in wanted:
        kernel.entry(tile)


def _sized(value: Value, size: int) -> tuple[int, ...]:
    shape = value.shape or ()
    return tuple(axis if isinstance(axis, int) else size if at else 1 for at, axis in enumerate(shape))


def _small(wanted: Iterable[Wanted]) -> Iterator[Wanted]:
    """Strips of one pixel, which fit all planes, and last panels of all widths."""
    for kernel, tile in wanted:
        if kernel is not closed_strip:
            continue
        if tile.form in (PIXELS, LINES):
            yield kernel, replace(tile, cols=1)
        elif tile.form in (PLANES, MATRIX):
            yield from ((kernel, replace(tile, v=v, last=True)) for v in range(1, tile.v + 1))
