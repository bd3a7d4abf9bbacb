"""Kernels for a network of open sizes where none are there: no pack serves, and the cache folder is empty.

Its first run would compile for long, and so would the next sizes. Instead `compile` compiles what the network calls at
usual sizes, and small tiles of the same families, by several processes at a time. Later sizes are served by these until
better ones come (`runtime.code.background`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from cpuconv.errors import CpuconvError
from cpuconv.graph.ir import Value
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.runtime.code.together import Wanted, compiled_together

Shapes = tuple[tuple[int, ...], ...]  # of inputs

USUAL_SIZES = (320, 64, 224, 128, 32)
"""Sizes of axes that are open, the first that the network takes; a batch is 1."""
SMALL_COLUMNS = (1,)
"""Pixels of small tiles: every plane is large enough for one."""


def compile_base(inputs: Sequence[Value], kernels: Callable[[Shapes], list[Wanted]]) -> None:
    """Have a network's kernels for usual sizes on disk, with small tiles of their families.

    Parameters
    ----------
    inputs : sequence of Value
        Of which some leave sizes open.
    kernels : callable
        What the network calls for inputs of some shapes; it raises a `CpuconvError` where it takes none of these.
    """
    wanted = next(filter(None, (_called(kernels, shapes) for shapes in _shapes(inputs))), None)
    if wanted is None:
        return  # it takes none of the sizes: what it calls is compiled when it runs
    wanted = list(dict.fromkeys((*wanted, *_small(wanted))))
    compiled_together(wanted)
    for kernel, tile in wanted:
        kernel.entry(tile)


def _shapes(inputs: Sequence[Value]) -> Iterator[Shapes]:
    for size in USUAL_SIZES:
        yield tuple(_sized(value, size) for value in inputs)


def _sized(value: Value, size: int) -> tuple[int, ...]:
    shape = value.shape or ()
    return tuple(axis if isinstance(axis, int) else size if at else 1 for at, axis in enumerate(shape))


def _called(kernels: Callable[[Shapes], list[Wanted]], shapes: Shapes) -> list[Wanted]:
    """What the network calls for inputs of these shapes; nothing if it does not take them."""
    try:
        return kernels(shapes)
    except CpuconvError:
        return []


def _small(wanted: Iterable[Wanted]) -> Iterator[Wanted]:
    for (kernel, tile), cols in itertools.product(wanted, SMALL_COLUMNS):
        if kernel is gemm_strip and _is_of_pixels(tile) and tile.rows * tile.cols > cols:
            yield kernel, replace(tile, rows=1, cols=cols)


def _is_of_pixels(tile: GemmTile) -> bool:
    return not (tile.planar or tile.complex)
