"""A workload whose runs move a clock of its own, with candidates that misbehave in every way a real one might.

With the clock the outcomes do not depend on what else the machine is doing.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

from autotune import measure, progress, search, warmup
from autotune.workload import Candidate, Problem, Rejected, SourceError

US = 1e-6


class Clock:
    """Stands in for the module `time` where the tuner reads it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.noise = random.Random(1)

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)

    def pass_by(self, seconds: float) -> None:
        """Let time go by, up to 5% more of it than asked."""
        self.now += seconds * (1 + 0.05 * self.noise.random())


clock = Clock()
CLOCKED = (measure, progress, search, warmup)
if os.environ.get("FAKE_CLOCK"):
    for module in CLOCKED:
        module.time = clock


@dataclass(frozen=True)
class Way:
    """seconds: of a run.  error: that its check reports.  compile: what compiling it does."""

    seconds: float
    error: float = 1e-7
    compile: str = "works"
    bound: float = 0.0
    workspace: int = 0
    accuracy: str = "exact"
    asleep: float = 0.0  # real seconds that preparing takes


GOOD = {"model": Way(300 * US), "fast": Way(100 * US, workspace=4096), "slow": Way(1000 * US)}

# Ways to solve a problem by the first word of its key, the model's choice first.
WAYS: dict[str, dict[str, Way]] = {
    "good": GOOD,
    "close": {"model": Way(120 * US), "a": Way(110 * US), "best": Way(100 * US), "b": Way(115 * US)},
    "tie": {"model": Way(100 * US), "rival": Way(100 * US)},
    "bad": {
        "model": Way(200 * US),
        "wrong": Way(10 * US, error=0.5),
        "nan": Way(10 * US, error=float("nan")),
        "raises": Way(10 * US, compile="raises"),
        "dies": Way(10 * US, compile="dies"),
        "hangs": Way(10 * US, compile="hangs"),
        "unready": Way(10 * US, compile="unready"),
        "right": Way(100 * US),
    },
    "bounded": {"model": Way(50 * US), "hopeless": Way(2000 * US, bound=1000 * US)},
    "classes": {
        "model": Way(50 * US, accuracy="fast"),
        "plain": Way(400 * US, bound=300 * US),
        "good": Way(200 * US, accuracy="standard", workspace=100),
    },
    "many": {f"way{n}": Way((100 + 10 * ((7 * n) % 40)) * US) for n in range(40)},
    "none": {"wrong": Way(10 * US, error=1.0)},
    "long": {"model": Way(0.2)},
    "lazy": {"model": Way(0.2, asleep=0.15)},
}


@dataclass
class FakeTrial:
    way: Way
    limit: float = 1e-5

    def run(self) -> None:
        clock.pass_by(self.way.seconds)

    def check(self) -> float:
        return self.way.error


class Fake:
    name = "fake"
    isa = "none"
    log = os.environ.get("FAKE_LOG")

    @property
    def sources(self) -> str:
        return os.environ.get("FAKE_SOURCES", "sources-1")

    def load(self, source: str, *, layouts: tuple[str, str] | None, threads: int) -> list[Problem]:
        path = Path(source)
        lines = path.read_text().split() if path.is_file() else [source]
        problems = []
        for line in lines:
            kind, _, rest = line.partition(":")
            if kind not in WAYS:
                raise SourceError(f"{source}: {line!r} is no problem")
            key = f"{kind}:{rest} layouts={'-'.join(layouts or ())} threads={threads}"
            problems.append(Problem(key, line, int(rest or 1), 1e6, path.stem if path.is_file() else "single"))
        return problems

    def candidates(self, key: str, effort: str) -> tuple[list[Candidate], list[Rejected]]:
        ways = WAYS[key.partition(":")[0]]
        found = [
            Candidate(name, way.bound, (1 + at) * 10 * US, way.workspace, way.accuracy)
            for at, (name, way) in enumerate(ways.items())
        ]
        return found, [Rejected("other", "does not apply")]

    def compile(self, key: str, name: str) -> None:
        self._write(f"compile {key} {name}")
        clock.pass_by(0.05)
        what = self._way(key, name).compile
        if what == "raises":
            raise TypeError("no such\ninstruction")
        if what == "dies":
            os.write(2, b"LLVM ERROR: out of registers\n")
            os._exit(3)
        if what == "hangs":
            time.sleep(600)

    def prepare(self, key: str, name: str) -> FakeTrial:
        self._write(f"prepare {key} {name}")
        way = self._way(key, name)
        if way.compile == "unready":
            raise MemoryError("too large")
        time.sleep(way.asleep)
        clock.pass_by(0.01)
        return FakeTrial(way)

    def probe(self, threads: int) -> dict[str, float]:
        return {"fma_gflops": 100.0, "l1_gbs": 50.0}

    def describe(self) -> dict[str, object]:
        return {"threading_layer": "none"}

    def _way(self, key: str, name: str) -> Way:
        return WAYS[key.partition(":")[0]][name]

    def _write(self, line: str) -> None:
        if self.log:
            with open(self.log, "a") as file:
                file.write(line + "\n")


workload = Fake()
