"""A fake workload with a simulated clock, whose candidates misbehave in every way that real ones might.

With the clock, outcomes do not depend on the load of the machine.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.machine.device import fingerprint
from autotune.machine.roofline import Work
from autotune.store.store import Row, Store
from autotune.timing import rounds, sample
from autotune.tuning import progress, search, warmup
from autotune.wisdom.tiers import OLDER_KERNELS
from autotune.workload import AS_IT_IS, Candidate, Problem, Reading, Rejected, SourceError

US = 1e-6


class Clock:
    """Replacement of the module `time` in the tuner."""

    def __init__(self) -> None:
        self.now = 0.0
        self.noise = random.Random(1)

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)

    def stand_by(self, seconds: float) -> None:
        """Let exactly `seconds` pass."""
        self.now += seconds

    sleep = stand_by

    def pass_by(self, seconds: float) -> None:
        """Let `seconds` pass, plus up to 5% noise."""
        self.now += seconds * (1 + 0.05 * self.noise.random())


clock = Clock()


def install(replace: Callable[[Any, str, Any], None] = setattr) -> Clock:
    """Run the tuner on the clock, independent of the machine's load; `replace` sets an attribute."""
    for module in (rounds, sample, progress, search, warmup):
        replace(module, "time", clock)
    replace(sample, "yield_core", lambda: None)
    return clock


if os.environ.get("FAKE_CLOCK"):
    install()


@dataclass(frozen=True)
class Behaviour:
    """Behaviour of a candidate.

    Attributes
    ----------
    seconds : float
        Seconds of a run.
    error : float
        Error that its check reports.
    compile, run : str
        Behaviour in compilation and in a run.
    """

    seconds: float
    error: float = 1e-7
    compile: str = "works"
    listing: str = "works"
    bound: float = 0.0
    workspace: int = 0
    accuracy: str = "exact"
    asleep: float = 0.0  # real seconds that preparing takes
    run: str = "works"
    cold: float = 1.0  # slowdown factor with weights in memory
    serial: float = 0.0  # serial fraction of the time


GOOD = {"model": Behaviour(300 * US), "fast": Behaviour(100 * US, workspace=4096), "slow": Behaviour(1000 * US)}

# Candidates by the first word of a problem's key, the model's selection first.
BEHAVIOURS: dict[str, dict[str, Behaviour]] = {
    "good": GOOD,
    "close": {
        "model": Behaviour(120 * US),
        "a": Behaviour(110 * US),
        "best": Behaviour(100 * US),
        "b": Behaviour(115 * US),
    },
    "tie": {"model": Behaviour(100 * US), "rival": Behaviour(100 * US)},
    "bad": {
        "model": Behaviour(200 * US),
        "wrong": Behaviour(10 * US, error=0.5),
        "nan": Behaviour(10 * US, error=float("nan")),
        "raises": Behaviour(10 * US, compile="raises"),
        "dies": Behaviour(10 * US, compile="dies"),
        "hangs": Behaviour(10 * US, compile="hangs"),
        "unready": Behaviour(10 * US, compile="unready"),
        "right": Behaviour(100 * US),
    },
    "unfit": {
        "model": Behaviour(200 * US),
        "crashes": Behaviour(10 * US, run="crashes"),
        "stuck": Behaviour(10 * US, run="hangs"),
        "fails": Behaviour(10 * US, run="raises"),
        "right": Behaviour(100 * US),
    },
    "bounded": {"model": Behaviour(50 * US), "hopeless": Behaviour(2000 * US, bound=1000 * US)},
    "classes": {
        "model": Behaviour(50 * US, accuracy="fast"),
        "plain": Behaviour(400 * US, bound=300 * US),
        "good": Behaviour(200 * US, accuracy="standard", workspace=100),
    },
    "many": {f"way{n}": Behaviour((100 + 10 * ((7 * n) % 40)) * US) for n in range(40)},
    "hidden": {f"way{n}": Behaviour((300 - 5 * n) * US) for n in range(40)},  # the last in the model's ranking wins
    "none": {"wrong": Behaviour(10 * US, error=1.0)},
    "weights": {"model": Behaviour(100 * US, cold=3.0), "lean": Behaviour(120 * US)},
    "shared": {"model": Behaviour(400 * US, serial=0.1), "other": Behaviour(500 * US)},
    "serial": {"model": Behaviour(40 * US, serial=1.2)},
    "near": {"model": Behaviour(101 * US), "other": Behaviour(100.5 * US, bound=100 * US)},
    "fatal": {"model": Behaviour(100 * US, listing="dies")},
    "long": {"model": Behaviour(0.2)},
    "lazy": {"model": Behaviour(0.2, asleep=0.15)},
}


def misbehave(what: str) -> None:
    """Act like a bad candidate."""
    if what == "raises":
        raise TypeError("no such\ninstruction")
    if what == "dies":
        os.write(2, b"LLVM ERROR: out of registers\n")
        os._exit(3)
    if what == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "hangs":
        time.sleep(600)


@dataclass
class FakeTrial:
    way: Behaviour
    seconds: float
    limit: float = 1e-5

    def run(self) -> None:
        clock.pass_by(self.seconds)

    def move(self) -> None:
        pass

    def check(self) -> float:
        return self.way.error


class Fake:
    """A workload whose candidates behave as their names say: run, raise, hang, die, or be wrong."""

    name = "fake"
    isa = "none"
    log = os.environ.get("FAKE_LOG")

    tables = None
    disliked: frozenset[str] = frozenset()  # candidates that the model rejects

    def kernels_hash(self, key: str, name: str) -> str:
        return os.environ.get("FAKE_KERNELS", "")

    def same_kernels(self, row: Row) -> bool:
        return row.kernels == self.kernels_hash(row.problem, row.candidate) != ""

    def sources_of(self, name: str) -> str:
        return os.environ.get("FAKE_SOURCES", "sources-1")

    @property
    def sources(self) -> frozenset[str]:
        return frozenset({self.sources_of("")})

    def with_threads(self, key: str, threads: int) -> str:
        return f"{key.partition(' threads=')[0]} threads={threads}"

    def load(self, source: str, reading: Reading = AS_IT_IS) -> list[Problem]:
        path = Path(source)
        lines = path.read_text().split() if path.is_file() else [source]
        problems = []
        for line in lines:
            kind, _, rest = line.partition(" ")[0].partition(":")
            if kind not in BEHAVIOURS:
                raise SourceError(f"{source}: {line!r} is no problem")
            key = f"{kind}:{rest} layouts={'-'.join(reading.layouts or ())} threads={reading.threads}"
            network = path.stem if path.is_file() else "single"
            problems.append(Problem(key, line, int(rest or 1), 1e6, network, reading.threads))
        return problems

    def time_whole(self, source: str, reading: Reading = AS_IT_IS) -> list[tuple[str, int, float]]:
        return []

    def race_whole(
        self, source: str, store: Any, reading: Reading = AS_IT_IS, effort: str = "quick", again: bool = True
    ) -> Iterator[tuple[str, int, str]]:
        yield from ()

    def candidates(self, key: str, effort: str) -> tuple[list[Candidate], list[Rejected]]:
        ways = BEHAVIOURS[key.partition(":")[0]]
        for way in ways.values():
            misbehave(way.listing)
        found = [
            Candidate(name, way.bound, (1 + at) * 10 * US, way.workspace, way.accuracy)
            for at, (name, way) in enumerate(ways.items())
        ]
        return found, [Rejected("other", "does not apply")]

    def untuned(self, key: str, older: Sequence[str] = ()) -> tuple[str, str]:
        ways = BEHAVIOURS[key.partition(":")[0]]
        agreed = [(name, OLDER_KERNELS) for name in older if name in ways and name not in self.disliked]
        return (*agreed, (next(iter(ways)), "model"))[0]

    def compile(self, key: str, name: str) -> None:
        self._write(f"compile {key} {name}")
        clock.pass_by(0.05)
        misbehave(self._behaviour(key, name).compile)

    def prepare(self, key: str, name: str, weights: str = "warm") -> FakeTrial:
        self._write(f"prepare {key} {name}")
        way = self._behaviour(key, name)
        if way.compile == "unready":
            raise MemoryError("too large")
        time.sleep(way.asleep)
        clock.pass_by(0.01)
        misbehave(way.run)
        threads = int(key.partition("threads=")[2] or 1)
        seconds = way.seconds * (way.serial + (1 - way.serial) / threads)
        return FakeTrial(way, seconds * (way.cold if weights == "cold" else 1.0))

    def speed_probe(self, key: str) -> Callable[[], None]:
        return _speed_probe

    def work(self, key: str, name: str) -> Work | None:
        return Work(1e6, 1000, 2000, 1000) if name in BEHAVIOURS[key.partition(":")[0]] else None

    dtypes = frozenset({"float32"})

    def probe(self, threads: int) -> Iterator[tuple[str, float]]:
        yield "float32_gflops", 15.0 * threads
        yield from {"l1_gbs": 50.0, "l2_gbs": 40.0, "l3_gbs": 30.0, "dram_gbs": 2.0, "store_gbs": 40.0}.items()

    def summary(self, key: str) -> str:
        return ""

    def describe(self) -> dict[str, object]:
        return {"threading_layer": "none"}

    def _behaviour(self, key: str, name: str) -> Behaviour:
        return BEHAVIOURS[key.partition(":")[0]][name]

    def _write(self, line: str) -> None:
        if self.log:
            with open(self.log, "a") as file:
                file.write(line + "\n")


def _speed_probe() -> None:
    clock.stand_by(50 * US)


workload = Fake()


def problems(*sources: str, count: int = 1) -> list[Problem]:
    """Problems of the workload, on so many threads."""
    return [problem for source in sources for problem in workload.load(source, Reading(threads=count))]


def rows(store: Store, problem: Problem) -> dict[str, Row]:
    """What a store holds of a problem, by candidate."""
    return {row.candidate: row for row in store.rows(fingerprint().key, problem.key, problem.weights)}
