"""Networks under load, for hours if need be: `python -m bench.soak --help`.

Threads run six small networks on feeds of random sizes, and keep few programs, so that these are made again and again.
Some runs are ended at a random moment, some get a feed that must be refused, and in some the k-th allocation or node
that a reference computes fails, for every k from the first on. All other results must have the bits that they had when
nothing else ran, and in the end the process must take no more memory than in the beginning, but for a tenth. Memory
comes in chunks, so that it goes up and down; what counts is the least that it comes down to.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import itertools
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import cpuconv
from bench.compare import positive
from bench.soak_networks import NETWORKS, Feed, Network
from cpuconv.errors import CpuconvError, RunStopped, SourceError
from cpuconv.memory import aligned, large_pages
from cpuconv.network import interpret

CASES = 16  # feeds of a network
ROUNDS = 20  # after each of which memory is looked at: what a quarter of them leaves at least, from the second on
PATIENCE = 60.0  # seconds for the last run of a thread
STUCK = "a run did not end"
_SHOWN = 10  # problems of a kind
_KINDS, _SHARES = ("plain", "failing", "stopped", "bad"), (0.4, 0.4, 0.1, 0.1)
_MOST_ASKED = 12  # times that a run is asked before it is ended


class Injected(MemoryError):
    """A failure that was made."""


class Failures:
    """Fails the k-th allocation or node of a run, in the thread that armed it."""

    def __init__(self) -> None:
        self._mine = threading.local()

    @contextmanager
    def armed(self, left: int) -> Iterator[Callable[[], bool]]:
        """Let so many points pass, and then one fail; gives what says whether it has."""
        self._mine.left, self._mine.fired = left, False
        try:
            yield lambda: self._mine.fired
        finally:
            self._mine.left = None

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, as a point that may fail."""

        def call(*arguments: Any, **options: Any) -> Any:
            left = getattr(self._mine, "left", None)
            if left is not None:
                self._mine.left = left - 1 if left else None
                if not left:
                    self._mine.fired = True
                    raise Injected(function.__name__)
            return function(*arguments, **options)

        return call

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Make points of all that allocates memory or computes a node by its reference, wherever it was imported."""
        points = {id(each): self.wrapped(each) for each in (aligned.aligned, large_pages.large, interpret.run)}
        replaced = [
            (vars(module), name, value)
            for path, module in list(sys.modules.items())
            if path.partition(".")[0] == "cpuconv"
            for name, value in list(vars(module).items())
            if id(value) in points
        ]
        for names, name, value in replaced:
            names[name] = points[id(value)]
        try:
            yield
        finally:
            for names, name, value in replaced:
                names[name] = value


@dataclass
class Report:
    """What came of it.

    Attributes
    ----------
    runs : Counter
        By kind: "plain", "failing" (where the failure came), "stopped", "bad".
    points : int
        Most points of a run at which a failure was made.
    before, after : int
        Bytes resident.
    problems : list of str
    """

    runs: Counter[str] = field(default_factory=Counter)
    points: int = 0
    before: int = 0
    after: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        runs = ", ".join(f"{count:,} {kind}" for kind, count in self.runs.items())
        memory = f"{self.before / 1e6:.0f} MB before, {self.after / 1e6:.0f} MB after"
        found = Counter(self.problems)
        rows = [f"PROBLEM ({times} times): {each}" for each, times in found.most_common(_SHOWN)]
        return "\n".join([f"runs: {runs}; failures at up to {self.points} places of one", f"memory: {memory}", *rows])


class Soak:
    """Networks that are ready, and what their feeds give; their memory may grow by the part `growth`."""

    growth = 0.10

    def __init__(self, networks: Sequence[Network] = NETWORKS, seed: int = 0) -> None:
        """Compile the networks, and run each on its feeds, one after another."""
        rng = np.random.default_rng(seed)
        self._seeds, self.networks = np.random.SeedSequence(seed), networks
        self.models = [cpuconv.compile(network.model(), strategy="heuristic") for network in networks]
        self._feeds = [[network.draw(rng) for _ in range(CASES)] for network in networks]
        self._expected = [
            [model.run(feed) for feed in feeds] for model, feeds in zip(self.models, self._feeds, strict=True)
        ]
        for model in self.models:  # room for some of its programs
            model._programs.resize(model.nbytes // 3)
        self._failures = Failures()
        self._places = [itertools.count() for _ in networks]  # of the next failures
        self._lock = threading.Lock()
        self.report = Report()

    def run(self, seconds: float, threads: int, patience: float = PATIENCE) -> Report:
        """Load the networks for so long, and look at memory meanwhile."""
        taken = []
        with self._failures.installed():
            for _ in range(ROUNDS):
                self._load(seconds / ROUNDS, threads, patience)
                taken.append(resident())
        quarter = ROUNDS // 4
        self.report.before, self.report.after = min(taken[quarter : 2 * quarter]), min(taken[-quarter:])
        if self.report.after > (1 + self.growth) * self.report.before:
            self._problem(f"memory grew from {self.report.before:,} to {self.report.after:,} bytes")
        return self.report

    def _load(self, seconds: float, threads: int, patience: float) -> None:
        end = time.monotonic() + seconds
        running = [
            threading.Thread(target=self._requests, args=(end, seed), daemon=True)
            for seed in self._seeds.spawn(threads)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(max(0.0, end + patience - time.monotonic()))
        if any(thread.is_alive() for thread in running):
            self._problem(STUCK)

    def _requests(self, end: float, seed: np.random.SeedSequence) -> None:
        rng = np.random.default_rng(seed)
        while time.monotonic() < end:
            at, case, kind = (
                int(rng.integers(len(self.models))),
                int(rng.integers(CASES)),
                rng.choice(_KINDS, p=_SHARES),
            )
            try:
                self._request(at, case, str(kind), rng)
            except BaseException as error:  # whatever it is, it is told
                self._problem(f"{self.networks[at].name}, {kind}: {type(error).__name__}: {error}")

    def _request(self, at: int, case: int, kind: str, rng: np.random.Generator) -> None:
        """One run; what it gives, or how it ends, must be as it has to be."""
        model, feed, network = self.models[at], self._feeds[at][case], self.networks[at]
        if kind == "bad" and network.bad is not None:
            feed = network.bad(rng)
            self._refused(lambda: model.run(feed), SourceError)
        elif kind == "stopped":
            asked = itertools.count(int(rng.integers(_MOST_ASKED)) - _MOST_ASKED)
            if not self._ended(at, case, RunStopped, lambda: next(asked) >= 0):
                kind = "plain"
        elif kind == "failing":
            place = next(self._places[at])
            with self._failures.armed(place) as fired:
                if self._ended(at, case, (Injected, CpuconvError)) != fired():
                    raise AssertionError("a run failed of itself")
            if fired():
                self.report.points = max(self.report.points, 1 + place)
            else:  # the run has no more places than that
                self._places[at], kind = itertools.count(), "plain"
        else:
            kind = "plain"
            self._ended(at, case, ())
        with self._lock:
            self.report.runs[kind] += 1

    def _refused(self, call: Callable[[], object], error: type[Exception]) -> None:
        try:
            call()
        except error:
            return
        raise AssertionError("a run was not refused")

    def _ended(self, at: int, case: int, errors: Any, stop: Callable[[], bool] | None = None) -> bool:
        """Whether a run ended with one of these errors; else its results are compared."""
        feed: Feed = self._feeds[at][case]
        try:
            results = self.models[at].run(feed, stop=stop)
        except errors:
            return True
        for name, array in self._expected[at][case].items():
            if not np.array_equal(results[name], array, equal_nan=array.dtype.kind == "f"):
                raise AssertionError(f"output {name!r} differs from what it was")
        return False

    def _problem(self, text: str) -> None:
        with self._lock:
            self.report.problems.append(text)


def resident() -> int:
    """Bytes of this process in memory, without what Python and the C library keep for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    pages_ = int(Path("/proc/self/statm").read_text().split()[1])
    return pages_ * int(ctypes.CDLL(None).getpagesize())


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was run; 1 if something is not as it has to be."""
    args = parser().parse_args(argv)
    warnings.simplefilter("ignore", cpuconv.CpuconvWarning)
    report = Soak(seed=args.seed).run(60 * args.minutes, args.threads)
    if STUCK in report.problems:
        faulthandler.dump_traceback(sys.__stderr__ or sys.stderr, all_threads=True)
    print(report)
    return 1 if report.problems else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    p.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    p.add_argument("--threads", type=positive, default=8, help="callers at once (8)")
    p.add_argument("--seed", type=int, default=0, help="of sizes, elements and what becomes of runs (0)")
    return p


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
