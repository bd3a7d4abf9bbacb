"""Prepare a graph for layout planning: specialise it for input sizes, cut it where sizes depend on data, rewrite it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from baselib.data_classes import dataclass
from cpuconv.graph.ir import Graph
from cpuconv.network.notes import Note, note
from cpuconv.network.sizes.cutting import cut
from cpuconv.network.sizes.specialise import specialise


@dataclass(frozen=True)
class Rewriting:
    """Options for rewriting a graph.

    Attributes
    ----------
    strict : bool
        Whether to reject operators that only ONNX's reference evaluator computes.
    skip_passes : tuple of str
        Names of rewrites to skip.
    """

    strict: bool = False
    skip_passes: tuple[str, ...] = ()


class Prepared(NamedTuple):
    """The graph for kernels, notes on its rewrites, and the nodes that references run after it."""

    graph: Graph
    notes: list[Note]
    suffix: Graph | None


def prepared(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    options: Rewriting,
    *,
    noted: bool = True,
    quiet: bool = False,
) -> Prepared:
    """Specialise, cut and rewrite a graph for inputs of these shapes.

    `noted`: record notes on the rewrites. `quiet`: no warnings, as in `specialise`.
    """
    from cpuconv.graph import passes  # deferred: saved models are already rewritten

    early = partial(passes.early, skip=options.skip_passes)
    rewrite = early if passes.is_early(graph) else None
    head, suffix = cut(specialise(graph, shapes, strict=options.strict, quiet=quiet, early=rewrite))
    notes: list[Note] = []
    return Prepared(passes.apply(head, options.skip_passes, partial(note, notes) if noted else None), notes, suffix)
