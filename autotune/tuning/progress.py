"""How far a warmup is, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.data_classes import dataclass
from autotune.tuning.effort import Effort

TYPICAL_COMPILE = 0.5  # seconds a candidate and worker, until some were seen
TYPICAL_OVERHEAD = 0.5  # seconds a problem beside its timing, until some were seen


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


class ProgressEstimate:
    """Counts what is done, measures how long it took, and tells a listener."""

    def __init__(self, problems: int, effort: Effort, workers: int, listener: Listener) -> None:
        """So many `problems` are to do, with an `effort` each; so many `workers` compile at once."""
        self.problems, self.done = problems, 0
        self.tasks, self.compiled = problems * effort.candidates, 0
        self._candidates = effort.candidates
        self._compile, self._compile_since = TYPICAL_COMPILE / workers, 0.0
        self._timing, self._timed = effort.seconds + TYPICAL_OVERHEAD, 0.0
        self._begun = time.monotonic()
        self._fraction = 0.0
        self._listener = listener

    def compile_left(self) -> float:
        """Seconds of compiling ahead."""
        return (self.tasks - self.compiled) * self._compile

    def left(self) -> float:
        """Seconds of work ahead."""
        return self.compile_left() + (self.problems - self.done) * self._timing

    def compiling(self, problems: int, tasks: int) -> None:
        """A batch of so many begins to compile."""
        self.tasks += tasks - problems * self._candidates
        self._batch_first, self._compile_since = self.compiled, time.monotonic()
        self.tell("compile")

    def did_compile(self) -> None:
        self.compiled += 1
        self._compile = (time.monotonic() - self._compile_since) / (self.compiled - self._batch_first)
        self.tell("compile")

    def skip(self) -> None:
        """Another process has done one."""
        self.problems -= 1
        self.tasks -= self._candidates

    def did_time(self, label: str, gflops: float, seconds: float) -> None:
        self.done += 1
        self._timed += seconds
        self._timing = self._timed / self.done
        self.tell("time", label, gflops, ended=True)

    def tell(self, stage: str, label: str = "", gflops: float = 0.0, *, ended: bool = False) -> None:
        left, spent = self.left(), time.monotonic() - self._begun
        self._fraction = max(self._fraction, spent / (spent + left) if spent + left > 0 else 1.0)
        self._listener(Progress(stage, label, self.done, self.problems, self._fraction, gflops, left, ended))
