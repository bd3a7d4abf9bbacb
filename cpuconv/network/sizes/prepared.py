"""A graph for inputs of certain sizes, ready to be laid out: specialised, cut where sizes depend on data, rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from autotune.data_classes import dataclass
from cpuconv.graph.ir import Graph
from cpuconv.network.notes import Note, note
from cpuconv.network.sizes.cutting import cut
from cpuconv.network.sizes.specialise import specialise


@dataclass(frozen=True)
class Rewriting:
    """What decides how a graph is rewritten.

    Attributes
    ----------
    strict : bool
        Refuse operators that ONNX's reference evaluator would have to compute.
    skip_passes : tuple of str
        Names of rewrites to leave out.
    """

    strict: bool = False
    skip_passes: tuple[str, ...] = ()


class Prepared(NamedTuple):
    """The graph that kernels run, what the rewrites changed, and the nodes that references run behind it."""

    graph: Graph
    notes: list[Note]
    tail: Graph | None


def prepared(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    options: Rewriting,
    *,
    noted: bool = True,
    quiet: bool = False,
) -> Prepared:
    """The graph for inputs of these shapes, after all rewrites.

    `noted`: with what they did. `quiet`: without warnings, as of `specialise`.
    """
    from cpuconv.graph import passes  # a model that was saved is rewritten

    early = partial(passes.early, skip=options.skip_passes)
    rewrite = early if passes.is_early(graph) else None
    head, tail = cut(specialise(graph, shapes, strict=options.strict, quiet=quiet, early=rewrite))
    notes: list[Note] = []
    return Prepared(passes.apply(head, options.skip_passes, partial(note, notes) if noted else None), notes, tail)
