"""Stress test of networks with concurrent callers: `python -m bench.soak --help`.

Threads run six small networks on feeds of random sizes. Few programs are cached, so that programs are rebuilt often.
Some runs are stopped at a random moment, some get a feed that must be refused, and in some the k-th allocation or
reference-computed node fails, for every k from 0 on. All other results must have the bits of an undisturbed run. At the
end the process may use at most a tenth more memory than at the start. Memory fluctuates, so minima are compared.
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
from typing import Any

import numpy as np

import cpuconv
from bench import memory, options
from bench.soak_networks import NETWORKS, PICTURES, Feed, Network
from cpuconv.errors import CpuconvError, RunStopped
from cpuconv.memory import aligned, large_pages
from cpuconv.network import interpret

ROUNDS = 20  # memory is measured after each; the minima of the second and the last quarter are compared
JOIN_SECONDS = 60.0  # seconds to wait for the last run of a thread
STUCK = "a run did not end"
_SHOWN = 10  # different problems that are printed
_KINDS, _SHARES = ("plain", "failing", "stopped", "bad"), (0.4, 0.4, 0.1, 0.1)
_MAX_ASKED = 12  # maximum calls of `stop` before a run is stopped


class Injected(MemoryError):
    """An injected failure."""


class Failures:
    """Fails the k-th allocation or node of a run, in the thread that armed it."""

    def __init__(self) -> None:
        self._mine = threading.local()

    @contextmanager
    def armed(self, left: int) -> Iterator[Callable[[], bool]]:
        """Let `left` points pass and the next one fail; yield a function that tells whether it has failed."""
        self._mine.left, self._mine.fired = left, False
        try:
            yield lambda: self._mine.fired
        finally:
            self._mine.left = None

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function as a point that may fail."""

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
        """Replace all functions that allocate memory or compute a node by its reference, in all modules, by points."""
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
    """Result of a stress test.

    Attributes
    ----------
    runs : Counter
        Number of runs by kind: "plain", "failing" (with an injected failure), "stopped", "bad".
    points : int
        Maximum number of points of a run that have failed.
    before, after : int
        Resident bytes.
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
    """Compiled networks with feeds and expected outputs; memory may grow by the fraction `growth`."""

    growth = 0.10

    def __init__(self, networks: Sequence[Network] = NETWORKS, seed: int = 0) -> None:
        """Compile the networks, and run each on its feeds, one after another."""
        rng = np.random.default_rng(seed)
        self._seeds, self.networks = np.random.SeedSequence(seed), networks
        self.models = [
            cpuconv.compile(network.model(), strategy="heuristic", images=network.images) for network in networks
        ]
        self._feeds = [[network.draw(rng) for _ in range(network.cases)] for network in networks]
        self._expected = [
            [model.run(feed) for feed in feeds] for model, feeds in zip(self.models, self._feeds, strict=True)
        ]
        for model in self.models:  # caches only some of its programs
            model._programs.resize(model.nbytes // 3)
        self._failures = Failures()
        self._places = [itertools.count() for _ in networks]  # next points to fail, by network
        self._lock = threading.Lock()
        self.report = Report()

    def run(self, seconds: float, threads: int, patience: float = JOIN_SECONDS) -> Report:
        """Run the networks for `seconds`, and measure memory meanwhile."""
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
            at = int(rng.integers(len(self.models)))
            case, kind = (
                int(rng.integers(self.networks[at].cases)),
                rng.choice(_KINDS, p=_SHARES),
            )
            try:
                self._request(at, case, str(kind), rng)
            except BaseException as error:  # every failure is reported
                self._problem(f"{self.networks[at].name}, {kind}: {type(error).__name__}: {error}")

    def _request(self, at: int, case: int, kind: str, rng: np.random.Generator) -> None:
        """Do one run and check its result or its error."""
        model, feed, network = self.models[at], self._feeds[at][case], self.networks[at]
        if kind == "bad" and network.bad is not None:
            feed = network.bad(rng)
            self._refused(lambda: model.run(feed), CpuconvError)
        elif kind == "stopped":
            asked = itertools.count(int(rng.integers(_MAX_ASKED)) - _MAX_ASKED)
            if not self._ended(at, case, RunStopped, lambda: next(asked) >= 0):
                kind = "plain"
        elif kind == "failing":
            place = next(self._places[at])
            with self._failures.armed(place) as fired:
                if self._ended(at, case, (Injected, CpuconvError)) != fired():
                    raise AssertionError("a run failed of itself")
            if fired():
                self.report.points = max(self.report.points, 1 + place)
            else:  # the run has no more points
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
        """Run a network; return whether it ended with one of these errors, else compare its results."""
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
    """Return resident bytes of this process, after Python and the C library have released free memory."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return memory.resident(memory.NOW)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; return 1 if there are problems."""
    args = parser().parse_args(argv)
    warnings.simplefilter("ignore", cpuconv.CpuconvWarning)
    report = Soak(PICTURES if args.pictures else NETWORKS, seed=args.seed).run(60 * args.minutes, args.threads)
    if STUCK in report.problems:
        faulthandler.dump_traceback(sys.__stderr__ or sys.stderr, all_threads=True)
    print(report)
    return 1 if report.problems else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = options.parser("soak", __doc__)
    p.add_argument("--minutes", type=float, default=10.0, help="duration (10)")
    p.add_argument("--threads", type=options.positive, default=8, help="concurrent callers (8)")
    p.add_argument("--pictures", action="store_true", help="networks that take pictures of random sizes instead")
    p.add_argument("--seed", type=int, default=0, help="seed of sizes, elements and outcomes of runs (0)")
    return p


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
