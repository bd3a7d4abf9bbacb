"""Timing of networks: two networks in alternation, and single operators."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autotune.timing.compare import Ratio, compare
from cpuconv.network.model import Model
from cpuconv.quantizing.data.samples import Feed

_SECONDS = 1.0  # approximate duration of a comparison
_MIN_ROUNDS, _MAX_ROUNDS = 7, 50  # rounds


class Race(NamedTuple):
    """Two networks, timed in alternation: median seconds, and the ratio of the second's time to the first's."""

    first: float
    second: float
    ratio: Ratio


def race(first: Model, second: Model, feed: Feed) -> Race:
    """Run two networks on a sample in alternation, with changing order."""
    models = (first, second)
    outs = [model.run(feed) for model in models]
    begun = time.perf_counter()
    for model, out in zip(models, outs, strict=True):
        model.run(feed, out)
    rounds = int(np.clip(_SECONDS / (time.perf_counter() - begun), _MIN_ROUNDS, _MAX_ROUNDS))
    seconds = np.zeros((rounds, 2))
    for turn in range(rounds):
        for at in (turn % 2, 1 - turn % 2):
            begun = time.perf_counter()
            models[at].run(feed, outs[at])
            seconds[turn, at] = time.perf_counter() - begun
    one, two = np.median(seconds, 0).tolist()
    return Race(one, two, compare((seconds[:, 1] / seconds[:, 0]).tolist()))


def seconds_by_name(model: Model, feed: Feed, names: Sequence[str], runs: int = 15) -> dict[str, float]:
    """Time the operators of these names alone, in seconds; operators that were fused into others are left out."""
    rows = model.profile(feed, runs).rows
    wanted = set(names)
    found: dict[str, float] = {}
    for row in rows:
        if row.name in wanted:
            found[row.name] = found.get(row.name, 0.0) + row.seconds
    return found
