"""Several feeds in one run of a model of any batch, for `cpuconv.map`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cpuconv.network.batched_model import BatchedModel
from cpuconv.network.model import Model

Outputs = dict[str, Any]
Run = Callable[[Mapping[str, Any]], Outputs]


def best_batch(model: Model) -> int:
    """The batch size with most items per second; 1 if the model has one size, or inputs that items cannot share."""
    if not isinstance(model, BatchedModel) or model.images or len(model.batched[0]) < len(model.inputs):
        return 1
    return min(model.batches, key=lambda size: (model.batches[size] / size, size))


def run_together(run: Run, batched: frozenset[str], feeds: Sequence[Mapping[str, Any]]) -> list[Outputs | Exception]:
    """Run feeds as one batch, or one by one if that fails; return the outputs or the exception of each.

    Parameters
    ----------
    run : callable
    batched : frozenset of str
        Outputs whose first axis is the batch.
    feeds : sequence of mapping of str to array
    """
    if len(feeds) > 1:
        with contextlib.suppress(Exception):  # found again below, with its feed
            return _divided(run(_joined(feeds)), batched, [len(next(iter(feed.values()))) for feed in feeds])
    results: list[Outputs | Exception] = []
    for feed in feeds:
        try:
            results.append(run(feed))
        except Exception as error:
            results.append(error)
    return results


def _joined(feeds: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """One feed of all items; arrays of other dtypes are not converted."""
    arrays = {name: [np.asarray(feed[name]) for feed in feeds] for name in feeds[0]}
    if any(feed.keys() != arrays.keys() for feed in feeds):
        raise ValueError("the feeds have other inputs")
    if any(len({array.dtype for array in each}) > 1 for each in arrays.values()):
        raise ValueError("the feeds have other dtypes")
    if len({tuple(len(array) for array in each) for each in arrays.values()}) > 1:
        raise ValueError("an input has another number of items")
    return {name: np.concatenate(each) for name, each in arrays.items()}


def _divided(outputs: Outputs, batched: frozenset[str], items: Sequence[int]) -> list[Outputs | Exception]:
    starts = [sum(items[:at]) for at in range(len(items))]
    return [
        {name: each[start : start + count] if name in batched else each for name, each in outputs.items()}
        for start, count in zip(starts, items, strict=True)
    ]
