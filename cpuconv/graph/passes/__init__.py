"""Rewrites of specialised graphs; each documents its patterns and why results are equal.

`PASSES` lists them; their order follows from what each needs and undoes. Each rewrite can be disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Graph
from cpuconv.graph.passes import (
    affine,
    attention,
    channel_mixing,
    convolutions,
    deformable,
    elementwise,
    epilogues,
    equal,
    forms,
    formulas,
    halves,
    integers,
    linear,
    noops,
    pads,
    quantised,
    signs,
    tables,
    transposed,
    views,
    volumes,
    weights,
)
from cpuconv.graph.passes.rewriting import Pass, scheduled
from cpuconv.graph.passes.scaled import QUANTISATION

__all__ = ["NAMES", "PASSES", "apply", "apply_without_sizes"]

Watch = Callable[[str, Graph, Graph], None]  # called per rewrite with its name and the graphs before and after

PASSES = {
    each.name: each
    for each in (
        affine.run,
        attention.run,
        channel_mixing.run,
        convolutions.run,
        deformable.run,
        elementwise.run,
        epilogues.run,
        equal.constants,
        equal.nodes,
        forms.decomposed,
        forms.run,
        formulas.hard_sigmoids,
        formulas.run,
        halves.run,
        integers.run,
        linear.run,
        noops.run,
        pads.run,
        quantised.run,
        signs.run,
        tables.run,
        transposed.run,
        views.run,
        views.shuffles,
        volumes.run,
        weights.run,
    )
}
_ORDER, _EARLY = scheduled(PASSES.values()), scheduled(each for each in PASSES.values() if each.early)
NAMES = tuple(dict.fromkeys(each.name for each in _ORDER))


def apply_without_sizes(graph: Graph, skip: Collection[str] = (), watch: Watch | None = None) -> Graph:
    """Apply the rewrites that need no sizes to a graph of open sizes.

    They run once for all sizes, so that weights are folded once.
    """
    return _apply([weights.run_without_sizes], graph, skip, watch)


def is_early(graph: Graph) -> bool:
    """Whether the graph has QuantizeLinear or DequantizeLinear."""
    return any(node.op in QUANTISATION for node in graph.nodes)


def early(graph: Graph, skip: Collection[str] = ()) -> Graph:
    """Apply the rewrites that need integer weights before their DequantizeLinear is folded."""
    return _apply(_EARLY, graph, skip)


def apply(graph: Graph, skip: Collection[str] = (), watch: Watch | None = None) -> Graph:
    """Apply all rewrites.

    Parameters
    ----------
    graph : Graph
        Result of `specialise`.
    skip : Collection[str]
        Names of rewrites to skip.
    watch : Watch or None

    Raises
    ------
    ArgumentError
        A name in `skip` is not a rewrite.
    """
    for name in skip:
        if name not in NAMES:
            raise ArgumentError(must("skip", f"names of rewrites ({', '.join(NAMES)})", repr(name)))
    return _apply(_ORDER, graph, skip, watch)


def _apply(passes: Iterable[Pass], graph: Graph, skip: Collection[str], watch: Watch | None = None) -> Graph:
    for each in passes:
        if each.name not in skip:
            before, graph = graph, each(graph)
            if watch is not None:
                watch(each.name, before, graph)
    return graph
