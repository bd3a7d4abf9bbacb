"""Samples for inputs of a fixed batch: concatenated and split to fill it.

If every input states the same first size B, and samples fit except for that, their rows are taken in order, B per feed.
The last feed is filled up with the first rows again, so that no row is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cpuconv.errors import ArgumentError, must
from cpuconv.network.ports import Port

Feed = dict[str, np.ndarray]


class Rows(NamedTuple):
    """Rows `first` to `stop` of sample `at`."""

    at: int
    first: int
    stop: int


def batch_of(ports: Sequence[Port]) -> int | None:
    """First size that all inputs state, if each has at least two axes; else None."""
    sizes = {port.shape[0] if port.shape is not None and len(port.shape) > 1 else None for port in ports}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) and size > 0 else None


def of_any_batch(ports: Sequence[Port]) -> list[Port]:
    """Inputs of the same sizes, with an open first size."""
    return [Port(port.name, (None, *(port.shape or ())[1:]), port.dtype) for port in ports]


def rows_of(feed: Mapping[str, np.ndarray]) -> int:
    """Number of rows of all arrays of a feed.

    Raises
    ------
    ArgumentError
        The arrays have different numbers of rows, or none.
    """
    counts = {name: len(array) for name, array in feed.items()}
    if len({*counts.values()}) > 1 or 0 in counts.values():
        raise ArgumentError(must("feed", "of one number of rows, 1 or more, in every array", counts))
    return next(iter(counts.values()))


def batches(counts: Sequence[int], size: int) -> list[tuple[Rows, ...]]:
    """Divide samples with these numbers of rows into batches; the last is filled up from the first sample on."""
    places = itertools.cycle((at, row) for at, count in enumerate(counts) for row in range(count))
    found = []
    for _ in range(-(-sum(counts) // size)):
        batch = itertools.groupby(itertools.islice(places, size), lambda place: place[0])
        runs = [(at, [row for _, row in rows]) for at, rows in batch]
        found.append(tuple(part for at, rows in runs for part in _runs(at, rows)))
    return found


def _runs(at: int, rows: Sequence[int]) -> list[Rows]:
    """Convert row indices of one sample to ranges; a repeated sample starts a new range."""
    ends = [0, *(place for place in range(1, len(rows)) if rows[place] <= rows[place - 1]), len(rows)]
    return [Rows(at, rows[first], rows[stop - 1] + 1) for first, stop in itertools.pairwise(ends)]


def concatenated(feed: Callable[[int], Feed]) -> Callable[[Sequence[Rows]], Feed]:
    """Make a function that concatenates the feed of a batch; it caches the last sample for the next batch."""
    last: dict[int, Feed] = {}

    def read(at: int) -> Feed:
        if at not in last:
            made = feed(at)
            last.clear()
            last[at] = made
        return last[at]

    def made(batch: Sequence[Rows]) -> Feed:
        parts = [{name: array[rows.first : rows.stop] for name, array in read(rows.at).items()} for rows in batch]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return made
