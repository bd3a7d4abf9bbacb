"""The convolutions that a compiled network asks solvers for: what there is to tune."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cpuconv.conv.choice.target import FULL, Target, precision_named
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

NEAR = 1.03  # most modelled time over the cheapest plan's of one whose problems are tuned too, so that it may win


def problems_of(
    source: str | os.PathLike[str],
    threads: int,
    batches: Sequence[int] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    precision: str = FULL,
) -> list[Entry]:
    """Every convolution and product that `compile` of a model would ask for, fused and laid out, equal ones merged.

    Those of other plans that the models find nearly as fast are among them, as a race will decide, and those of a plan
    that has won one.

    Parameters
    ----------
    source : path
        An ONNX file.
    threads : int
        Of the compiled network.
    batches : sequence of int
        Sizes to take in turn for the first axis of inputs, where it is open; without them 1.
    inputs : mapping of str to sequence of int, or None
        Shapes of inputs by name, as far as the model leaves them open.
    precision : str
        Of the compiled network.

    Raises
    ------
    ArgumentError
        `batches` or `inputs` do not fit the model; an unknown precision.
    SourceError
        The model cannot be read, or sizes stay open.
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
    """Shapes of the inputs of which only the first axis is open, with `batch`, or 1, there; and those stated.

    Raises
    ------
    ArgumentError
        A batch is given, and no input leaves it open; or shapes do not fit the model.
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
