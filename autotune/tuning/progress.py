"""How far a warmup is, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.data_classes import dataclass
from autotune.tuning.effort import Effort

TYPICAL_COMPILE = 0.5  # seconds a candidate and worker, until some were seen
TYPICAL_OVERHEAD = 0.5  # seconds a problem beside its timing, until some were seen
WEIGHT = 0.5  # items that a typical rate counts as
OUTLIER = 2.5  # times the rate so far: what an item takes beyond does not count
LATEST_TASKS = 60.0  # compiled candidates that weigh as much as all before them
LATEST_PROBLEMS = 6.0  # the same of problems


@dataclass(frozen=True)
class Progress:
    """A moment of a warmup.

    Attributes
    ----------
    stage : {"compile", "time"}
    label : str
        The problem; "" while compiling.
    done, total : int
        Problems.
    fraction : float
        Share of all the work, 0 to 1, never falling.
    gflops : float
        The best candidate of the problem so far; 0 if there is none yet.
    left : float
        Seconds, an estimate.
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
    """Seconds per item. The latest weigh most, as the first ones contain what is compiled for all. Of an item that
    takes far longer than those before, as one that needs a driver, only a part counts."""

    def __init__(self, typical: float, latest: float) -> None:
        """`typical` counts as `WEIGHT` items, and the `latest` items as much as all before them together."""
        self._seconds, self._items = WEIGHT * typical, WEIGHT
        self._kept = 0.5 ** (1.0 / latest)

    def saw(self, seconds: float) -> None:
        """Count one more item."""
        seconds = min(seconds, OUTLIER * self.seconds)
        self._seconds = self._kept * self._seconds + seconds
        self._items = self._kept * self._items + 1.0

    @property
    def seconds(self) -> float:
        return self._seconds / self._items


class ProgressEstimate:
    """Counts what is done, measures how long it took, and tells a listener."""

    def __init__(self, problems: int, effort: Effort, workers: int, listener: Listener) -> None:
        """So many `problems` are to do, with an `effort` each; so many `workers` compile at once."""
        self.problems, self.done = problems, 0
        self._candidates = _Rate(effort.candidates, LATEST_PROBLEMS)  # tasks per problem
        self._compile = _Rate(TYPICAL_COMPILE / workers, LATEST_TASKS)
        self._timing = _Rate(effort.seconds + TYPICAL_OVERHEAD, LATEST_PROBLEMS)
        self._batch = self._tasks = 0  # problems of the batch that are not done, candidates that are not compiled
        self._is_started = False  # a candidate was compiled: the first one waits for workers to start
        self._since: float | None = None  # when the batch's timing began
        self._begun = self._compiled = time.monotonic()
        self._fraction = 0.0
        self._listener = listener

    def compile_left(self) -> float:
        """Seconds of compiling ahead."""
        return (self._tasks + self._later() * self._candidates.seconds) * self._compile.seconds

    def left(self) -> float:
        """Seconds of work ahead."""
        spent = 0.0 if self._since is None else time.monotonic() - self._since
        timed = max(0.0, self._batch * self._timing.seconds - spent)
        return self.compile_left() + timed + self._later() * self._timing.seconds

    def _later(self) -> int:
        """Problems of batches to come."""
        return max(0, self.problems - self.done - self._batch)

    def compiling(self, problems: int, tasks: int) -> None:
        """A batch of so many begins to compile."""
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
        """The batch is compiled, as far as it will be, and its timing begins."""
        self._tasks, self._since = 0, time.monotonic()

    def skip(self) -> None:
        """Another process has done one."""
        self.problems -= 1

    def did_time(self, label: str, gflops: float, seconds: float) -> None:
        """A problem is done; `seconds` is its share of the batch's timing."""
        self.done += 1
        self._batch = max(0, self._batch - 1)
        self._timing.saw(seconds)
        self.tell("time", label, gflops, ended=True)

    def tell(self, stage: str, label: str = "", gflops: float = 0.0, *, ended: bool = False) -> None:
        left, spent = self.left(), time.monotonic() - self._begun
        self._fraction = max(self._fraction, spent / (spent + left) if spent + left > 0 else 1.0)
        self._listener(Progress(stage, label, self.done, self.problems, self._fraction, gflops, left, ended))
