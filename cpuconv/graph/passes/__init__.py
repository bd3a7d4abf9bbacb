"""Rewrites of specialised graphs; each documents its patterns and why results are equal.

`PASSES` has their order and names; a repeated name runs again. Each rewrite can be disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Graph
from cpuconv.graph.passes import (
    affine,
    attention,
    convolutions,
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

__all__ = ["NAMES", "PASSES", "apply", "apply_without_sizes"]

Watch = Callable[[str, Graph, Graph], None]  # called per rewrite with its name and the graphs before and after

PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("halves", halves.run),
    ("noops", noops.run),
    ("signs", signs.run),
    ("quantised", quantised.run),
    ("noops", noops.run),
    ("formulas", formulas.run),
    ("attention", attention.run),
    ("forms", forms.run),
    ("decomposed", forms.decomposed),
    ("pads", pads.dynamic),
    ("pads", pads.run),
    ("integers", integers.run),
    ("integers", integers.dynamic),
    ("linear", linear.run),
    ("views", views.run),
    ("weights", weights.run),
    ("hard_sigmoids", formulas.hard_sigmoids),
    ("weights", weights.run),
    ("affine", affine.run),
    ("transposed", transposed.run),
    ("views", views.run),
    ("shuffles", views.shuffles),
    ("equal_constants", equal.constants),
    ("common", equal.nodes),
    ("epilogues", epilogues.run),
    ("quantised", quantised.run),
    ("convolutions", convolutions.run),
    ("volumes", volumes.run),
    ("views", views.run),
    ("elementwise", quantised.apart),
    ("elementwise", elementwise.run),
    ("tables", tables.run),
)
NAMES = tuple(dict.fromkeys(name for name, _ in PASSES))
_EARLY = (("signs", signs.run), ("quantised", quantised.run))


def apply_without_sizes(graph: Graph, skip: Collection[str] = (), watch: Watch | None = None) -> Graph:
    """Apply the rewrites that need no sizes to a graph of open sizes.

    They run once for all sizes, so that weights are folded once.
    """
    return graph if "weights" in skip else _run("weights", weights.run_without_sizes, graph, watch)


def is_early(graph: Graph) -> bool:
    """Whether the graph has QuantizeLinear or DequantizeLinear."""
    return any(node.op in quantised.OPERATORS for node in graph.nodes)


def early(graph: Graph, skip: Collection[str] = ()) -> Graph:
    """Apply the rewrites that need integer weights before their DequantizeLinear is folded."""
    for name, run in _EARLY:
        graph = graph if name in skip else run(graph)
    return graph


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
    for name, run in PASSES:
        if name not in skip:
            graph = _run(name, run, graph, watch)
    return graph


def _run(name: str, run: Callable[[Graph], Graph], graph: Graph, watch: Watch | None) -> Graph:
    after = run(graph)
    if watch is not None:
        watch(name, graph, after)
    return after
