"""A candidate's result for one problem on one device, as stored: fields, checksum, and which limits admit it."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_type_hints

from autotune.workload import REGIMES

WARM, COLD = REGIMES
TIMED = DECIDED, PROVISIONAL = ("ok", "provisional")  # states of a row that has a time


class Row(NamedTuple):
    """One candidate for one problem on one device.

    sources: hash of what the candidate is made from; a row of other sources is stale.  state: "ok", "provisional" if
    its problem had its first visit and no other yet, or "rejected" with its reason.  median, spread:
    seconds, of `count` samples, put in terms of the winner's by the rounds that both ran in.  score: seconds to rank
    by: the median, but unless the winner is proven, not below that of the model's choice.  error,
    error_limit: relative to the largest output.  workspace: bytes.  bound, estimate: seconds, the model's.  regime: one
    of `REGIMES`.  threads_fraction: Amdahl's serial fraction, NaN where unknown.
    """

    device: str
    problem: str
    candidate: str
    sources: str
    state: Literal["ok", "provisional", "rejected"]
    reason: str = ""
    median: float = math.nan
    spread: float = math.nan
    count: int = 0
    score: float = math.nan
    error: float = math.nan
    error_limit: float = math.nan
    workspace: int = 0
    accuracy: str = "standard"
    bound: float = 0.0
    estimate: float = math.nan
    created: float = 0.0  # seconds since 1970, set when written
    regime: str = WARM
    threads_fraction: float = math.nan

    @property
    def is_timed(self) -> bool:
        """Whether the candidate has a time, and so may decide."""
        return self.state in TIMED

    def is_sound(self) -> bool:
        """Whether the values are such as a tuner writes (a damaged file may hold anything)."""
        if not self.is_timed:
            return self.state == "rejected"
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


KEY = ("device", "problem", "regime", "candidate", "sources")
REALS = frozenset(name for name, kind in get_type_hints(Row).items() if kind is float)
_IS_REAL = tuple(name in REALS for name in Row._fields)


@dataclass(frozen=True)
class Use:
    """A problem as a network asks for it. layouts: what was asked of the workload, as text."""

    network: str
    threads: int
    layouts: str
    label: str
    problem: str
    count: int
    flops: float

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
    regime: str
    effort: str
    sources: str
    threads: int
    created: float

    def is_sound(self) -> bool:
        """Whether the values are such as a tuner writes."""
        return isinstance(self.threads, int) and isinstance(self.created, float)


class Limits(NamedTuple):
    """What a choice among stored rows must keep to.

    sources: hashes that are current.  workspace: bytes, None for any.  accuracies: classes, None for all.
    prefix: of the candidate's name: its solver, or part of its parameters.
    """

    sources: frozenset[str]
    workspace: int | None = None
    accuracies: tuple[str, ...] | None = None
    prefix: str = ""

    def admits(self, row: Row) -> bool:
        """Whether the row was timed, is sound, current and keeps the limits."""
        return row.sources in self.sources and self.admits_any(row)

    def admits_any(self, row: Row) -> bool:
        """The same of a row of whatever sources."""
        return (
            row.is_timed
            and row.is_sound()
            and (self.workspace is None or row.workspace <= self.workspace)
            and (self.accuracies is None or row.accuracy in self.accuracies)
            and row.candidate.startswith(self.prefix)
        )


def limits_of(
    sources: Collection[str],
    workspace_limit: int | None = None,
    accuracies: Iterable[str] | None = None,
    prefix: str = "",
) -> Limits:
    """The limits that keyword arguments of a look-up state."""
    if type(sources) is not frozenset:
        sources = frozenset(sources)
    if accuracies is not None and type(accuracies) is not tuple:
        accuracies = tuple(accuracies)
    return _limits(sources, workspace_limit, accuracies, prefix)


_limits = functools.lru_cache(maxsize=256)(Limits)  # every call asks with one of few


def to_values(row: Row) -> tuple[Any, ...]:
    """What SQLite keeps of a row: its fields, and their checksum."""
    values = tuple(map(_stored, row, _IS_REAL))
    return *values, checksum(*values)


def from_values(values: Sequence[Any]) -> Row | None:
    """The row that `to_values` gave; None if its checksum says that it has changed."""
    *fields, told = values
    if told != checksum(*fields):
        return None
    return Row(*(math.nan if value is None else value for value in fields))


def checksum(*values: Any) -> int:
    """CRC-32 of a row's values as stored; against damage, not against malice."""
    return zlib.crc32(repr(values).encode(errors="replace"))


def _stored(value: Any, is_real: bool) -> Any:
    """As SQLite gives it back: it knows neither NaN nor -0.0, nor an integer in a column of reals."""
    if not is_real or not isinstance(value, (int, float)):
        return value
    return None if math.isnan(value) else float(value) + 0.0
