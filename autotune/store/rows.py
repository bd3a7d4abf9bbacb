"""Rows of the store: a candidate's result for one problem on one device, its checksum, and limits that admit it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, get_type_hints

from autotune.workload import WEIGHTS, Problem, Searchable
from baselib.data_classes import dataclass

WARM, COLD = WEIGHTS
State = Literal["ok", "provisional", "rejected"]
DECIDED: Final = "ok"
PROVISIONAL: Final = "provisional"
REJECTED: Final = "rejected"
TIMED = (DECIDED, PROVISIONAL)  # states of a row with a time


class Row(NamedTuple):
    """The result of one candidate for one problem on one device.

    Attributes
    ----------
    sources : str
        Hash of the sources that the candidate depends on. A row of other sources is stale unless its kernels are the
        same.
    state : {"ok", "provisional", "rejected"}
        Provisional: all candidates were timed once, but the best of them not again yet.
    reason : str
        Why the candidate was rejected.
    median, spread : float
        Time of `count` samples in seconds, scaled to the winner's by the rounds that both ran in.
    score : float
        Ranking score in seconds: the median, but at least that of the model's choice unless the winner was confirmed.
    error, error_limit : float
        Error and its limit, relative to the largest output.
    workspace : int
        Size in bytes.
    bound, estimate : float
        Lower bound and estimate of the model, in seconds.
    created : float
        Time of writing, in seconds since 1970.
    weights : str
        One of `WEIGHTS`.
    threads_fraction : float
        Amdahl's serial fraction; NaN if unknown.
    kernels : str
        Hash of the kernel calls that were timed (`Searchable.kernels_hash`); empty if unknown.
    """

    device: str
    problem: str
    candidate: str
    sources: str
    state: State
    reason: str = ""
    median: float = math.nan
    spread: float = math.nan
    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which is not used
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
        """Whether the row has a time, and so may decide."""
        return self.state in TIMED

    def is_sound(self) -> bool:
        """Whether the values are plausible (a damaged file may contain anything)."""
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
        """Sort key: timed rows first, the best of them first; ties are ordered by the model's estimate."""
        timed = self.is_timed
        estimate = math.inf if math.isnan(self.estimate) else self.estimate
        return not timed, self.score if timed else 0.0, estimate, self.candidate

    def scaled(self, factor: float) -> Row:
        """Return the row with its times multiplied by `factor`."""
        return self._replace(median=self.median * factor, spread=self.spread * factor, score=self.score * factor)


KEY = ("device", "problem", "weights", "candidate", "sources")
REALS = frozenset(name for name, kind in get_type_hints(Row).items() if kind is float)
_IS_REAL = tuple(name in REALS for name in Row._fields)


@dataclass(frozen=True)
class Use:
    """A problem as used by a network; `layouts` is the text of the requested layouts."""

    network: str
    threads: int
    layouts: str
    label: str
    problem: str
    count: int
    flops: float

    @classmethod
    def of(cls, problem: Problem, layouts: str = "") -> Use:
        """Make a use from a problem of a source."""
        network, label, count = problem.network, problem.label, problem.count
        return cls(network, problem.threads, layouts, label, problem.key, count, problem.flops)

    def is_sound(self) -> bool:
        """Whether the values are plausible."""
        texts = (self.network, self.layouts, self.label, self.problem)
        return (
            all(isinstance(text, str) for text in texts)
            and isinstance(self.flops, float)
            and self.flops >= 0.0
            and all(isinstance(number, int) and number >= 0 for number in (self.threads, self.count))
        )


@dataclass(frozen=True)
class Finished:
    """A record that a problem was tuned with an effort, from sources (hash of all); `created` in seconds since 1970."""

    device: str
    problem: str
    weights: str
    effort: str
    sources: str
    threads: int
    created: float

    def is_sound(self) -> bool:
        """Whether the values are plausible."""
        return isinstance(self.threads, int) and isinstance(self.created, float)


def _never(row: Row) -> bool:
    return False


class RowLimits(NamedTuple):
    """Limits for a selection among stored rows.

    Attributes
    ----------
    sources : frozenset of str
        Current hashes; rows of others are stale unless `same_kernels` says otherwise.
    workspace : int or None
        Max. size in bytes; None for any.
    accuracies : tuple of str or None
        Accuracy classes; None for all.
    prefix : str
        Prefix of the candidate's name: its solver, or with some of its parameters.
    weights : tuple of str
        Kinds of weights, in the order of look-up.
    same_kernels : callable
        Whether a row of other sources was timed with the current kernels (`Searchable.same_kernels`).
    """

    sources: frozenset[str]
    workspace: int | None = None
    accuracies: tuple[str, ...] | None = None
    prefix: str = ""
    weights: tuple[str, ...] = WEIGHTS
    same_kernels: Callable[[Row], bool] = _never

    @classmethod
    def of(cls, workload: Searchable) -> RowLimits:
        """Return the limits that only require current kernels."""
        return cls(workload.sources, same_kernels=workload.same_kernels)

    def is_current(self, row: Row) -> bool:
        """Whether the row was timed with the current kernels."""
        return row.sources in self.sources or self.same_kernels(row)

    def admits(self, row: Row) -> bool:
        """Whether the row is timed, sound, current and within the limits."""
        return self.admits_any(row) and self.is_current(row)

    def admits_any(self, row: Row) -> bool:
        """Like `admits`, for a row of any sources."""
        return (
            row.is_timed
            and row.is_sound()
            and (self.workspace is None or row.workspace <= self.workspace)
            and (self.accuracies is None or row.accuracy in self.accuracies)
            and row.candidate.startswith(self.prefix)
        )


def carried(older: Iterable[Row], newer: Sequence[Row]) -> list[Row]:
    """Return rows of an older tuning whose candidates a newer one lacks, scaled to the newer one's speed.

    The machine's speed differs between tunings: times are multiplied by the median ratio of rows in both.
    """
    import statistics  # the import takes 5 ms

    known = {(row.candidate, mark): row for row in newer for mark in _marks(row)}
    found = [(row, [known[key] for mark in _marks(row) if (key := (row.candidate, mark)) in known]) for row in older]
    ratios = [again[0].median / row.median for row, again in found if again and again[0].is_timed and row.is_timed]
    factor = statistics.median(ratios) if ratios else 1.0
    return [row.scaled(factor) for row, again in found if not again]


def _marks(row: Row) -> set[str]:
    """Return marks of a row; rows of a candidate that share one are results of the same code."""
    return {row.sources, row.kernels} - {""}


def to_values(row: Row) -> tuple[Any, ...]:
    """Return the values that SQLite stores for a row: its fields, and their checksum."""
    values = tuple(map(_stored, row, _IS_REAL))
    return *values, checksum(*values)


def from_values(values: Sequence[Any]) -> Row | None:
    """Return the row from the values of `to_values`; None if the checksum does not match."""
    *fields, stored_checksum = values
    if stored_checksum != checksum(*fields):
        return None
    return Row._make(math.nan if value is None else value for value in fields)


def checksum(*values: Any) -> int:
    """Return the CRC-32 of a row's stored values; it detects damage, not malice."""
    return zlib.crc32(repr(values).encode(errors="replace"))


def _stored(value: Any, is_real: bool) -> Any:
    """Convert a value to the form that SQLite returns: no NaN, no -0.0, and no integer in a real column."""
    if not is_real or not isinstance(value, (int, float)):
        return value
    return None if math.isnan(value) else float(value) + 0.0
