"""Shapes of outputs as far as they follow from those of inputs, for programs that read them before a run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from cpuconv.errors import CpuconvError
from cpuconv.graph.ir import Graph
from cpuconv.network.sizes.specialise import specialise

Shape = Sequence[int | str | None]
_CHOICES = ((1, 320), (2, 224)), ((1, 64), (2, 128)), ((1, 32), (2, 48))  # sizes of first and of other open axes


def output_shapes(graph: Graph) -> dict[str, Shape]:
    """Return the shape of each output that the model leaves open: sizes, symbols of inputs, and None.

    A size is fixed if it is equal for two choices of the open sizes of the inputs; it is a symbol if it is equal to
    this symbol's size in both. An output is omitted if its rank stays unknown, or if its shape is stated by sizes and
    symbols of inputs alone.
    """
    inputs = [(name, shape) for name in graph.inputs if (shape := graph.value(name).shape) is not None]
    symbols = {size for _, shape in inputs for size in shape if isinstance(size, str)}
    stated = {name: graph.value(name).shape for name in graph.outputs}
    unknown = [
        name
        for name, shape in stated.items()
        if shape is None or not all(isinstance(size, int) or size in symbols for size in shape)
    ]
    if not unknown or all(isinstance(size, int) for _, shape in inputs for size in shape):
        return {}
    for choices in _CHOICES:
        with contextlib.suppress(CpuconvError):  # these sizes do not fit
            pairs, chosen = _chosen(inputs, choices)
            one, other = (specialise(graph, sizes, quiet=True) for sizes in chosen)
            both = ((name, one.value(name).shape, other.value(name).shape) for name in unknown)
            return {name: _common(stated[name], a, b, pairs) for name, a, b in both if a is not None and b is not None}
    return {}


def _chosen(
    inputs: Sequence[tuple[str, Shape]], choices: Sequence[tuple[int, int]]
) -> tuple[dict[str, tuple[int, ...]], list[dict[str, tuple[int, ...]]]]:
    """Return both sizes of each symbol, and the shapes of all inputs for each choice."""
    pairs: dict[str, tuple[int, ...]] = {}
    for _, shape in inputs:
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                pairs.setdefault(size, tuple(sizes[axis > 0] for sizes in choices))

    def sized(shape: Shape, at: int) -> tuple[int, ...]:
        named = (pairs[size][at] if isinstance(size, str) else size for size in shape)
        return tuple(choices[at][axis > 0] if size is None else size for axis, size in enumerate(named))

    return pairs, [{name: sized(shape, at) for name, shape in inputs} for at in range(len(choices))]


def _common(stated: Shape | None, first: Shape, second: Shape, pairs: dict[str, tuple[int, ...]]) -> Shape:
    """Return what two shapes of an output have in common; the rest as the model states it."""
    stated = (None,) * len(first) if stated is None else stated
    if not len(stated) == len(first) == len(second):
        return stated
    named: dict[tuple[object, ...], str | None] = {}
    for symbol, pair in pairs.items():
        named[pair] = None if pair in named else symbol
    return tuple(a if a == b else size or named.get((a, b)) for size, a, b in zip(stated, first, second, strict=True))
