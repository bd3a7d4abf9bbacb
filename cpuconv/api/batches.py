"""Models of any batch, `compile(..., batches=...)`: a model per batch size, checked and timed on random data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Graph, Value
from cpuconv.network.batched_model import BatchedModel
from cpuconv.network.model import Model
from cpuconv.network.precision.errors import relative_rms
from cpuconv.network.saved.reading import BatchedParts
from cpuconv.network.sizes.batches import Batches
from cpuconv.network.thread_count import random_array
from cpuconv.runtime.threads import maximum_threads

_TOLERANCE = 0.01  # relative RMS difference of an item's results at another place of a batch


def with_batches(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    batches: Sequence[int],
    source: Callable[[], Graph],
    compile_at: Callable[..., Model],
) -> BatchedModel:
    """Return a model that runs any batch by programs of these batch sizes.

    Parameters
    ----------
    graph : Graph
    shapes : mapping of str to sequence of int
        Sizes of inputs by name; first axes that are the batch are ignored.
    batches : sequence of int
    source : callable
        Returns the graph again, for `save`, after it has been released.
    compile_at : callable
        Compiles a graph: ``compile_at(graph, shapes=..., source=...)``.

    Raises
    ------
    ArgumentError
        `batches` is no sequence of sizes, or the network does not compute the items of a batch separately.
    """
    sizes = _checked(batches)
    opened = Batches(graph, shapes)
    models = {}
    for size in sizes:
        at = opened.at(size)
        models[size] = compile_at(at.graph, shapes=at.shapes, source=partial(_again, source, shapes, size))
    for size, model in models.items():
        _check_items(model, size, opened)
    return BatchedModel(models, opened.inputs, opened.outputs)


def with_saved_batches(
    batches: BatchedParts, shapes: Mapping[str, Sequence[int]], threads: int | None, load: Callable[..., Model]
) -> BatchedModel:
    """Return the model of saved models of several batch sizes; times are measured again unless layouts are used.

    Parameters
    ----------
    batches : BatchedParts
    shapes : mapping of str to sequence of int
        Sizes of inputs that the user gave: none.
    threads : int or None
        Threads of a run; None: the saved number of each batch size.
    load : callable
        Makes the model of a part: ``load(part, shapes=..., threads=...)``.

    Raises
    ------
    ArgumentError
        `shapes` are given.
    """
    if shapes:
        raise ArgumentError(must("input_shapes", "left out for a model saved with 'batches'", "given"))
    models = {}
    for size, part in batches.parts.items():
        own = min(part.settings.threads if threads is None else threads, maximum_threads())
        models[size] = load(part, shapes=shapes, threads=own)
    follows = all(model._definition.follows for model in models.values())
    timed = all(model.has_run for model in models.values())  # not where inputs decide branches
    return BatchedModel(models, batches.inputs, batches.outputs, batches.seconds if follows or not timed else None)


def _again(source: Callable[[], Graph], shapes: Mapping[str, Sequence[int]], size: int) -> Graph:
    return Batches(source(), shapes).at(size).graph


def _checked(batches: Sequence[int]) -> list[int]:
    wanted = "a sequence of different integers of at least 1"
    try:
        sizes = [*batches]
    except TypeError:
        raise ArgumentError(must("batches", wanted, repr(batches))) from None
    wrong = any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes)
    if wrong or not sizes or len({*sizes}) < len(sizes):
        raise ArgumentError(must("batches", wanted, repr(batches)))
    return sorted(sizes)


def _check_items(model: Model, size: int, opened: Batches) -> None:
    """Check on random data that items have the same results at other places, next to other items."""
    feeds: tuple[dict[str, np.ndarray], ...] = ({}, {})
    for seed, port in enumerate(model.inputs):
        batched, shape = port.name in opened.inputs, port.shape or ()
        rows = random_array(Value((size + 1, *shape[1:]) if batched else shape, port.dtype), seed)
        for feed, moved in zip(feeds, (slice(0, -1), slice(1, None)), strict=True):
            feed[port.name] = rows[moved] if batched else rows
    first, second = (model.run(feed) for feed in feeds)
    for name in opened.outputs:
        if relative_rms({name: first[name][1:]}, {name: second[name][:-1]}) > _TOLERANCE:
            reason = f"items of a batch are not separate: output {name!r} of one changes with its place or other items"
            raise ArgumentError(must("batches", f"left out, as {reason}", "given"))
