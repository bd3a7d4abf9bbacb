"""Stand-ins for the benchmark's engines and results."""

from __future__ import annotations

import os
import time
from collections import Counter

from autotune.machine.roofline import Level, Roofs
from bench import shapes
from bench.engine import Prepared
from bench.oracle import convolve
from bench.peers.base import Form
from bench.results import LineResult, Measurement, Timing
from bench.settings import Run, Settings
from cpuconv.problem.problem import ConvProblem

PEER = "support.tuner.bench_fakes:FakePeer"
SMALL = ConvProblem(1, 4, 6, 6, 8, 3, 3, pads=(1, 1, 1, 1))
LINE = shapes.Line(SMALL, "a:1", "3x3 s1")
ROOFS = Roofs(100.0, 100.0, (Level("L2", 1 << 20, 50.0), Level("memory", float("inf"), 10.0)))


class FakePeer:
    """A peer that answers with the float64 sum, or fails as it is told."""

    name, package = "Fake", "numpy"

    def __init__(self, missing: str | None = None) -> None:
        self.missing = missing

    def available(self) -> str | None:
        return self.missing

    def prepare(self, problem, x, w, bias, threads):
        y = convolve(problem, x, w, bias)
        print("chatter on stdout")
        if problem.n == 2:
            raise ValueError("one image only")
        if problem.n == 3:
            os._exit(7)
        if problem.n == 4:
            time.sleep(60)
        right = Form("right", lambda: None, lambda: y, plain=False, algorithm="sum", detail="float64")
        return [right, Form("wrong", lambda: None, lambda: y + 1.0)]


class FakeEngine:
    """An engine in this process: the seconds of each form, by name; an exception instead is raised.

    Forms whose name starts with "blocked" are not plain.
    """

    version = "1"

    def __init__(self, key: str, forms: dict, error: float = 1e-7, algorithm: str = "") -> None:
        self.key, self.name, self.forms, self.error, self.algorithm = key, key.title(), forms, error, algorithm
        self.asked: Counter[str] = Counter()
        self.closed = False

    def revive(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def roofs(self) -> Roofs:
        return ROOFS

    def prepare(self, problem, w_bits=8):
        self.w_bits = w_bits
        return [Prepared(form, self.error, not form.startswith("blocked"), self.algorithm) for form in self.forms]

    def time(self, form: str, seconds: float) -> list[float]:
        self.asked[form] += 1
        value = self.forms[form]
        if isinstance(value, BaseException):
            raise value
        return [value, 2 * value, 3 * value]


def measurement(roofs: Roofs | None = None, algorithm: str = "", **times: list[list[float]]) -> Measurement:
    return Measurement({key: [Timing("plain", algorithm, rounds=rounds)] for key, rounds in times.items()}, [], roofs)


def result_of(label: str = "a:1", problem: ConvProblem = SMALL, **times: list[list[float]]) -> LineResult:
    return LineResult(shapes.Line(problem, label, shapes.family(problem)), [measurement(**times)])


def run_of(*keys: str, **settings: object) -> Run:
    return Run({key: key.title() for key in keys}, dict.fromkeys(keys, "1.0"), Settings(**settings))
