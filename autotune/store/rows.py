"""A candidate's result for one problem on one device, as stored: fields, checksum, and which limits admit it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, get_type_hints

from autotune.data_classes import dataclass
from autotune.workload import WEIGHTS, Problem, Searchable

WARM, COLD = WEIGHTS
State = Literal["ok", "provisional", "rejected"]
DECIDED: Final = "ok"
PROVISIONAL: Final = "provisional"
REJECTED: Final = "rejected"
TIMED = (DECIDED, PROVISIONAL)  # states of a row that has a time


class Row(NamedTuple):
    """One candidate for one problem on one device.

    Attributes
    ----------
    sources : str
        Hash of the sources that the candidate is made from. A row of other sources is stale unless its kernels are
        the same.
    state : {"ok", "provisional", "rejected"}
        Provisional: all candidates were timed once, and the best of them not again yet.
    reason : str
        Why the candidate was rejected.
    median, spread : float
        Seconds, of `count` samples, in terms of the winner's by the rounds that both ran in.
    score : float
        Seconds to rank by: the median, but not below that of the model's choice unless the winner was confirmed.
    error, error_limit : float
        Relative to the largest output.
    workspace : int
        Bytes.
    bound, estimate : float
        Seconds, the model's.
    created : float
        Seconds since 1970, set when written.
    weights : str
        One of `WEIGHTS`.
    threads_fraction : float
        Amdahl's serial fraction; NaN where unknown.
    kernels : str
        Hash of the kernel calls that were timed (`Searchable.kernels_hash`); empty where unknown.
    """

    device: str
    problem: str
    candidate: str
    sources: str
    state: State
    reason: str = ""
    median: float = math.nan
    spread: float = math.nan
    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    score: float = math.nan
    error: float = math.nan
    error_limit: float = math.nan
    workspace: int = 0
    accuracy: str = "standard"
    bound: float = 0.0
    estimate: float = math.nan
    created: float = 0.0
    weights: str = WARM
    threads_fraction: float = math.nan
    kernels: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether the candidate has a time, and so may decide."""
        return self.state in TIMED

    def is_sound(self) -> bool:
        """Whether the values are such as a tuner writes (a damaged file may hold anything)."""
        if not self.is_timed:
            return self.state == REJECTED
        seconds = (self.median, self.score)
        return (
            isinstance(self.candidate, str)
            and isinstance(self.workspace, int)
            and all(isinstance(value, float) and 0.0 < value < math.inf for value in seconds)
        )

    @property
    def rank(self) -> tuple[bool, float, float, str]:
        """Sorts the timed rows first, the best of them first; ties go to the model's estimate."""
        timed = self.is_timed
        estimate = math.inf if math.isnan(self.estimate) else self.estimate
        return not timed, self.score if timed else 0.0, estimate, self.candidate

    def scaled(self, factor: float) -> Row:
        """The row with its times multiplied."""
        return self._replace(median=self.median * factor, spread=self.spread * factor, score=self.score * factor)


KEY = ("device", "problem", "weights", "candidate", "sources")
REALS = frozenset(name for name, kind in get_type_hints(Row).items() if kind is float)
_IS_REAL = tuple(name in REALS for name in Row._fields)


@dataclass(frozen=True)
class Use:
    """A problem as a network asks for it; `layouts` is what was asked of the workload, as text."""

    network: str
    threads: int
    layouts: str
    label: str
    problem: str
    count: int
    flops: float

    @classmethod
    def of(cls, problem: Problem, layouts: str = "") -> Use:
        """The use that a source of problems states."""
        network, label, count = problem.network, problem.label, problem.count
        return cls(network, problem.threads, layouts, label, problem.key, count, problem.flops)

    def is_sound(self) -> bool:
        """Whether the values are such as a tuner writes."""
        texts = (self.network, self.layouts, self.label, self.problem)
        return (
            all(isinstance(text, str) for text in texts)
            and isinstance(self.flops, float)
            and self.flops >= 0.0
            and all(isinstance(number, int) and number >= 0 for number in (self.threads, self.count))
        )


@dataclass(frozen=True)
class Finished:
    """That a problem was tuned with an effort, from sources (hash of all); `created` in seconds since 1970."""

    device: str
    problem: str
    weights: str
    effort: str
    sources: str
    threads: int
    created: float

    def is_sound(self) -> bool:
        """Whether the values are such as a tuner writes."""
        return isinstance(self.threads, int) and isinstance(self.created, float)


def _never(row: Row) -> bool:
    return False


class RowLimits(NamedTuple):
    """What a choice among stored rows must keep to.

    Attributes
    ----------
    sources : frozenset of str
        Hashes that are current; rows of others are stale unless `same_kernels` says otherwise.
    workspace : int or None
        Bytes; None for any.
    accuracies : tuple of str or None
        Classes; None for all.
    prefix : str
        Of the candidate's name: its solver, or part of its parameters.
    weights : tuple of str
        In which order rows of these weights are asked for.
    same_kernels : callable
        Whether a row of other sources was timed with the kernels of today (`Searchable.same_kernels`).
    """

    sources: frozenset[str]
    workspace: int | None = None
    accuracies: tuple[str, ...] | None = None
    prefix: str = ""
    weights: tuple[str, ...] = WEIGHTS
    same_kernels: Callable[[Row], bool] = _never

    @classmethod
    def of(cls, workload: Searchable) -> RowLimits:
        """Those that any row keeps to that was timed with the kernels of today."""
        return cls(workload.sources, same_kernels=workload.same_kernels)

    def is_current(self, row: Row) -> bool:
        """Whether the row was timed with the kernels of today."""
        return row.sources in self.sources or self.same_kernels(row)

    def admits(self, row: Row) -> bool:
        """Whether the row was timed, is sound, current and keeps the limits."""
        return self.admits_any(row) and self.is_current(row)

    def admits_any(self, row: Row) -> bool:
        """The same of a row of whatever sources."""
        return (
            row.is_timed
            and row.is_sound()
            and (self.workspace is None or row.workspace <= self.workspace)
            and (self.accuracies is None or row.accuracy in self.accuracies)
            and row.candidate.startswith(self.prefix)
        )


def carried(older: Iterable[Row], newer: Sequence[Row]) -> list[Row]:
    """Rows of an older tuning of a problem whose candidates a newer one lacks, in terms of the newer one's speed.

    The machine's speed differs between tunings: the times are multiplied by the median ratio of those that both have.
    """
    import statistics  # takes 5 ms

    known = {(row.candidate, mark): row for row in newer for mark in _marks(row)}
    found = [(row, [known[key] for mark in _marks(row) if (key := (row.candidate, mark)) in known]) for row in older]
    ratios = [again[0].median / row.median for row, again in found if again and again[0].is_timed and row.is_timed]
    factor = statistics.median(ratios) if ratios else 1.0
    return [row.scaled(factor) for row, again in found if not again]


def _marks(row: Row) -> set[str]:
    """What rows of the same candidate have in common with this one, of which one is enough."""
    return {row.sources, row.kernels} - {""}


def to_values(row: Row) -> tuple[Any, ...]:
    """What SQLite keeps of a row: its fields, and their checksum."""
    values = tuple(map(_stored, row, _IS_REAL))
    return *values, checksum(*values)


def from_values(values: Sequence[Any]) -> Row | None:
    """The row that `to_values` gave; None if its checksum says that it has changed."""
    *fields, stored_checksum = values
    if stored_checksum != checksum(*fields):
        return None
    return Row._make(math.nan if value is None else value for value in fields)


def checksum(*values: Any) -> int:
    """CRC-32 of a row's values as stored; against damage, not against malice."""
    return zlib.crc32(repr(values).encode(errors="replace"))


def _stored(value: Any, is_real: bool) -> Any:
    """As SQLite gives it back: it knows neither NaN nor -0.0, nor an integer in a column of reals."""
    if not is_real or not isinstance(value, (int, float)):
        return value
    return None if math.isnan(value) else float(value) + 0.0
