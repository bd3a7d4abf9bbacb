"""Tuning problems of a compiled network: the convolutions for which it queries solvers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cpuconv.conv.choice.target import PRECISION_F32, Target, precision_named
from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Graph
from cpuconv.isa import current
from cpuconv.network.selection.layout import NetworkPlan, plans
from cpuconv.network.selection.winners import winner
from cpuconv.network.sizes.prepared import Rewriting, prepared
from cpuconv.network.sizes.specialise import bound_inputs
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading.sources import Entry, merged
from cpuconv.reading.onnx_reader import read

NEAR = 1.03  # maximum ratio of a plan's modelled time to the cheapest plan's for its problems to be tuned too


def problems_of(
    source: str | os.PathLike[str],
    threads: int,
    batches: Sequence[int] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    precision: str = PRECISION_F32,
) -> list[Entry]:
    """List all convolutions and matrix multiplications that `compile` of a model would request, without duplicates.

    They are fused and have layouts. Problems of other plans are included if the models find these nearly as fast, as
    timings of whole runs will decide, or if a plan was fastest in such timings.

    Parameters
    ----------
    source : path
        An ONNX file.
    threads : int
        Number of threads of the compiled network.
    batches : sequence of int
        Values for the open first axis of inputs, each in turn; if empty, 1.
    inputs : mapping of str to sequence of int, or None
        Shapes of inputs by name, where the model leaves them open.
    precision : str
        Precision of the compiled network.

    Raises
    ------
    ArgumentError
        `batches` or `inputs` do not fit the model, or the precision is unknown.
    SourceError
        The model cannot be read, or some sizes stay open.
    """
    precision = precision_named(precision)
    graph = read(source)
    target = Target(current(), threads, precision=precision)
    entries = []
    for batch in batches or (None,):
        name = graph.name if batch is None else f"{graph.name}, batch {batch}"
        found = _near_best(graph, target, with_batch(graph, batch, inputs or {}))
        entries += [Entry(problem, label, 1, name) for problem, label in found]
    return merged(entries)


def with_batch(graph: Graph, batch: int | None, inputs: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The stated shapes, and those of inputs with only an open first axis, which becomes `batch`, or 1.

    Raises
    ------
    ArgumentError
        A batch is given, but no input leaves it open; or shapes do not fit the model.
    """
    shapes = {name: tuple(sizes) for name, sizes in inputs.items()}
    stated = len(shapes)
    for name, value in bound_inputs(graph, inputs).items():
        rest = value.shape[1:] if value.shape else ()
        if value.shape and not value.concrete and all(isinstance(size, int) for size in rest):
            shapes[name] = (batch or 1, *(int(size or 0) for size in rest))
    if batch is not None and len(shapes) == stated:
        raise ArgumentError(must("batches", "left out: the model fixes its batch", batch))
    return shapes


def _near_best(graph: Graph, target: Target, shapes: Mapping[str, Sequence[int]]) -> Iterator[tuple[ConvProblem, str]]:
    head = prepared(graph, shapes, Rewriting()).graph
    layouts, won = plans(head, replace(target, strategy="heuristic")), winner(head, target)
    first = {problem for problem, _ in _problems_in(layouts[0])}
    yield from _problems_in(layouts[0])
    for rival in layouts[1:]:
        if rival.plan == won or rival.seconds <= NEAR * layouts[0].seconds:
            yield from (found for found in _problems_in(rival) if found[0] not in first)


def _problems_in(network_plan: NetworkPlan) -> Iterator[tuple[ConvProblem, str]]:
    for node in network_plan.nodes:
        problem = getattr(node.offer.detail, "problem", None) if node.offer is not None else None
        if problem is not None:
            yield problem, node.node.origin or node.node.outputs[0]
