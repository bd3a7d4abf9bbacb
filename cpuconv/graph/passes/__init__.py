"""Rewrites of specialised graphs, each with the pattern and the reason why the result is equal.

`PASSES` gives their order and names; a name that occurs again runs again. Each can be switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Graph
from cpuconv.graph.passes import (
    affine,
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

Watch = Callable[[str, Graph, Graph], None]  # told of each rewrite: its name, and the graphs before and after

PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("halves", halves.run),
    ("noops", noops.run),
    ("signs", signs.run),
    ("quantised", quantised.run),
    ("noops", noops.run),
    ("formulas", formulas.run),
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
    """A graph of open sizes after the rewrites that need none.

    They are done once for all sizes, so that weights are folded once.
    """
    return graph if "weights" in skip else _run("weights", weights.run_without_sizes, graph, watch)


def is_early(graph: Graph) -> bool:
    """Whether it has operators by which integers stand for numbers."""
    return any(node.op in quantised.OPERATORS for node in graph.nodes)


def early(graph: Graph, skip: Collection[str] = ()) -> Graph:
    """The graph after the rewrites that see the integers which weights are dequantised from."""
    for name, run in _EARLY:
        graph = graph if name in skip else run(graph)
    return graph


def apply(graph: Graph, skip: Collection[str] = (), watch: Watch | None = None) -> Graph:
    """The graph after all rewrites.

    Parameters
    ----------
    graph : Graph
        What `specialise` returned.
    skip : Collection[str]
        Names of rewrites to leave out.
    watch : Watch or None

    Raises
    ------
    ArgumentError
        There is no rewrite of a name in `skip`.
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
