"""Progress of a warmup, and an estimate of the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.tuning.effort import Effort
from baselib.data_classes import dataclass

TYPICAL_COMPILE = 0.5  # initial estimate: seconds per candidate and worker
TYPICAL_OVERHEAD = 0.5  # initial estimate: seconds per problem in addition to its timing
WEIGHT = 0.5  # weight of an initial estimate, in items
OUTLIER = 2.5  # an item's time counts up to this multiple of the rate so far
LATEST_TASKS = 60.0  # compiled candidates that have as much weight as all before them
LATEST_PROBLEMS = 6.0  # problems that have as much weight as all before them


@dataclass(frozen=True)
class Progress:
    """A snapshot of a warmup's progress.

    Attributes
    ----------
    stage : {"compile", "time"}
    label : str
        The problem; "" while compiling.
    done, total : int
        Number of problems.
    fraction : float
        Share of the work that is done, 0 to 1, never falling.
    gflops : float
        Speed of the problem's best candidate so far, in GFLOP/s; 0 if there is none yet.
    left : float
        Estimated remaining time, in seconds.
    ended : bool
        Whether this problem has just been finished.
    """

    stage: str
    label: str
    done: int
    total: int
    fraction: float
    gflops: float
    left: float
    ended: bool = False


Listener = Callable[[Progress], None]


class _Rate:
    """Seconds per item, as a decaying average: the first items include code that is compiled for all.

    An item that takes far longer than those before, such as one that needs a driver, counts only in part.
    """

    def __init__(self, typical: float, latest: float) -> None:
        """`typical` has the weight of `WEIGHT` items; the `latest` items have as much weight as all before them."""
        self._seconds, self._items = WEIGHT * typical, WEIGHT
        self._kept = 0.5 ** (1.0 / latest)

    def saw(self, seconds: float) -> None:
        """Add an item."""
        seconds = min(seconds, OUTLIER * self.seconds)
        self._seconds = self._kept * self._seconds + seconds
        self._items = self._kept * self._items + 1.0

    @property
    def seconds(self) -> float:
        return self._seconds / self._items


class ProgressEstimate:
    """Counts and times finished work, and reports progress to a listener."""

    def __init__(self, problems: int, effort: Effort, workers: int, listener: Listener) -> None:
        """Estimate for `problems` problems with an `effort` each, compiled by `workers` concurrent workers."""
        self.problems, self.done = problems, 0
        self._candidates = _Rate(effort.candidates, LATEST_PROBLEMS)  # candidates per problem
        self._compile = _Rate(TYPICAL_COMPILE / workers, LATEST_TASKS)
        self._timing = _Rate(effort.seconds + TYPICAL_OVERHEAD, LATEST_PROBLEMS)
        self._batch = self._tasks = 0  # unfinished problems and uncompiled candidates of the batch
        self._is_started = False  # whether a candidate was compiled; the first one also waits for workers to start
        self._since: float | None = None  # start of the batch's timing
        self._begun = self._compiled = time.monotonic()
        self._fraction = 0.0
        self._listener = listener

    def compile_left(self) -> float:
        """Return the remaining compile time, in seconds."""
        return (self._tasks + self._later() * self._candidates.seconds) * self._compile.seconds

    def left(self) -> float:
        """Return the remaining time, in seconds."""
        spent = 0.0 if self._since is None else time.monotonic() - self._since
        timed = max(0.0, self._batch * self._timing.seconds - spent)
        return self.compile_left() + timed + self._later() * self._timing.seconds

    def _later(self) -> int:
        """Return the number of problems in later batches."""
        return max(0, self.problems - self.done - self._batch)

    def compiling(self, problems: int, tasks: int) -> None:
        """Begin to compile a batch of `problems` problems with `tasks` candidates."""
        self._batch, self._tasks, self._since = problems, tasks, None
        for _ in range(problems):
            self._candidates.saw(tasks / problems)
        self._compiled = time.monotonic()
        self.tell("compile")

    def did_compile(self) -> None:
        now = time.monotonic()
        if self._is_started:
            self._compile.saw(now - self._compiled)
        self._is_started = True
        self._compiled, self._tasks = now, max(0, self._tasks - 1)
        self.tell("compile")

    def timing(self) -> None:
        """Begin to time the batch; no more of it will be compiled."""
        self._tasks, self._since = 0, time.monotonic()

    def skip(self) -> None:
        """Remove a problem that another process has tuned."""
        self.problems -= 1

    def did_time(self, label: str, gflops: float, seconds: float) -> None:
        """Count a finished problem; `seconds` is its share of the batch's timing."""
        self.done += 1
        self._batch = max(0, self._batch - 1)
        self._timing.saw(seconds)
        self.tell("time", label, gflops, ended=True)

    def tell(self, stage: str, label: str = "", gflops: float = 0.0, *, ended: bool = False) -> None:
        left, spent = self.left(), time.monotonic() - self._begun
        self._fraction = max(self._fraction, spent / (spent + left) if spent + left > 0 else 1.0)
        self._listener(Progress(stage, label, self.done, self.problems, self._fraction, gflops, left, ended))
