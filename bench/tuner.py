"""What the tuner reaches: `python -m bench.tuner --help`.

Everything happens in stores of its own that are thrown away; compiled kernels come from the usual cache and stay there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python bench/tuner.py` works too

from rich.console import Console
from rich.progress import Progress as Bar
from tabulate import tabulate

from autotune.device import fingerprint
from autotune.measure import EFFORTS, calibrate, interval, race
from autotune.paths import VARIABLE
from autotune.search import timed_rows
from autotune.store import Row, Store
from autotune.warmup import warmup
from autotune.workload import ADMITS, Problem
from bench.shapes.drawn import draw
from cpuconv import select, tuned
from cpuconv.problem import ConvProblem
from cpuconv.workload import workload

SPEC = "cpuconv.workload:workload"
ACCURACY = "standard"
SAME = 0.03  # two warmups whose winners are this close chose alike
ROWS_A_PROBLEM = 8  # of the large store


@dataclass(frozen=True)
class Figure:
    """Something measured: `most` is True where it must not exceed the target, False where it must reach it."""

    part: str
    name: str
    value: float
    unit: str = ""
    target: float | None = None
    most: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the target is reached, None without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.most else self.value >= self.target


class Session:
    """The drawn problems, and one store a warmup; a warmup that several parts ask for happens once."""

    def __init__(self, options: argparse.Namespace, problems: Sequence[Problem], folder: Path, bar: Bar) -> None:
        self.options, self.problems, self.folder, self.bar = options, problems, folder, bar
        self._warmups: dict[tuple[str, int], tuple[Store, float]] = {}

    def warmed(self, effort: str, turn: int = 0) -> tuple[Store, float]:
        """A store that one warmup has filled from nothing, and its seconds; kernels are compiled before."""
        if (effort, turn) not in self._warmups:
            if effort != "exhaustive":
                self.warmed("exhaustive")  # compiles what any other may want
            self._warmups[effort, turn] = self._warm(effort, turn)
        return self._warmups[effort, turn]

    def _warm(self, effort: str, turn: int) -> tuple[Store, float]:
        store = Store(self.folder / f"{effort}-{turn}.sqlite")
        task = self.bar.add_task(f"{effort} warmup {turn + 1}", total=1.0)
        begun = time.perf_counter()
        warmup(
            workload,
            self.problems,
            store,
            effort,
            progress=lambda state: self.bar.update(task, completed=state.fraction),
            spec=SPEC,
            shape_limit=self.options.shape_limit if effort == "exhaustive" else None,
        )
        seconds = time.perf_counter() - begun
        self.bar.update(task, completed=1.0)
        return store, seconds

    def winner(self, problem: Problem, store: Store) -> Row | None:
        """What a caller with no limits gets."""
        rows = timed_rows(workload, problem.key, store)
        return next((row for row in rows if row.accuracy in ADMITS[ACCURACY]), None)

    def against(self, what: str, rivals: Callable[[Problem], Sequence[str] | None]) -> Iterator[tuple[Problem, Times]]:
        """Each problem's rivals timed again, interleaved; a problem without is left out.

        Raises:
            SystemExit: none has rivals.
        """
        found = [(problem, names) for problem in self.problems if (names := rivals(problem))]
        if not found:
            raise SystemExit("Argument 'shape-limit' must leave time to compile and time some candidates.")
        task = self.bar.add_task(f"timing {what}", total=len(found))
        for problem, names in found:
            yield problem, self.timed(problem, names)
            self.bar.advance(task)

    def timed(self, problem: Problem, names: Sequence[str]) -> Times:
        """Seconds of each round by candidate; one that is all there is need not be timed."""
        unique = list(dict.fromkeys(names))
        if len(unique) == 1:
            return Times(names, {unique[0]: [1.0]})
        entrants = {name: calibrate(workload.prepare(problem.key, name).run) for name in unique}
        result = race(
            entrants,
            rounds=self.options.rounds,
            seconds=math.inf,
            rng=random.Random(problem.key),
            drop=False,
            reference=workload.reference(problem.key),
        )
        return Times(names, result.samples)


@dataclass(frozen=True)
class Times:
    """Samples of rivals, in rounds."""

    names: Sequence[str]
    samples: dict[str, list[float]]

    def ratios(self, at: int, to: int) -> list[float]:
        """One rival's time over another's, round by round."""
        pairs = zip(self.samples[self.names[at]], self.samples[self.names[to]], strict=True)
        return [a / b for a, b in pairs]

    def ratio(self, at: int, to: int) -> float:
        return statistics.median(self.ratios(at, to))

    def spread(self) -> float:
        """How much slower the slowest rival is than the fastest."""
        medians = [statistics.median(samples) for samples in self.samples.values()]
        return max(medians) / min(medians) - 1.0


def regret(session: Session) -> Iterator[Figure]:
    """The stored winner against the winner of trying everything."""
    best, _ = session.warmed("exhaustive")
    for effort in session.options.efforts:
        store, _ = session.warmed(effort)

        def rivals(problem: Problem, store: Store = store) -> list[str] | None:
            pair = session.winner(problem, store), session.winner(problem, best)
            return None if None in pair else [row.candidate for row in pair if row is not None]

        found = {p.label: times.ratio(0, 1) for p, times in session.against(f"regret, {effort}", rivals)}
        yield Figure("regret", f"{effort}: geomean over {len(found)} shapes", _geomean(found.values()), "×", 1.02)
        yield Figure("regret", f"{effort}: worst, {_worst(found)}", max(found.values()), "×", 1.08)


def heuristic(session: Session) -> Iterator[Figure]:
    """The stored winner against the cost model's choice."""
    for effort in session.options.efforts:
        store, _ = session.warmed(effort)

        def rivals(problem: Problem, store: Store = store, effort: str = effort) -> list[str] | None:
            row = session.winner(problem, store)
            candidates, _ = workload.candidates(problem.key, effort)
            model = next((each.name for each in candidates if each.accuracy in ADMITS[ACCURACY]), None)
            return None if row is None or model is None else [row.candidate, model]

        found = list(session.against(f"heuristic, {effort}", rivals))
        ratios = {problem.label: times.ratio(0, 1) for problem, times in found}
        slower = sum(interval(times.ratios(0, 1))[0] > 1.0 for _, times in found)
        yield Figure(
            "heuristic", f"{effort}: tuned time over the model's, geomean", _geomean(ratios.values()), "×", 1.0
        )
        yield Figure("heuristic", f"{effort}: worst, {_worst(ratios)}", max(ratios.values()), "×")
        yield Figure("heuristic", f"{effort}: shapes slower beyond noise", slower, "", 0)


def repeatability(session: Session) -> Iterator[Figure]:
    """The winners of several warmups from nothing against one another."""
    for effort in session.options.efforts:
        stores = [session.warmed(effort, turn)[0] for turn in range(session.options.warmups)]

        def rivals(problem: Problem, stores: Sequence[Store] = stores) -> list[str] | None:
            rows = [session.winner(problem, store) for store in stores]
            return None if None in rows else [row.candidate for row in rows if row is not None]

        spreads = [times.spread() for _, times in session.against(f"repeatability, {effort}", rivals)]
        alike = sum(spread <= SAME for spread in spreads) / max(1, len(spreads))
        name = f"{effort}: shapes on which {len(stores)} warmups are within {SAME:.0%}"
        yield Figure("repeatability", name, 100 * alike, "%", 95.0, most=False)


COST = {"quick": 1.5, "normal": 6.0}


def cost(session: Session) -> Iterator[Figure]:
    """Seconds a shape with kernels compiled, workers' start included."""
    for effort in session.options.efforts:
        turns = [session.warmed(effort, turn)[1] for turn in range(session.options.warmups)]
        seconds = statistics.median(turns) / len(session.problems)
        yield Figure("cost", f"{effort}, a shape", seconds, "s", COST.get(effort))


def lookup(session: Session) -> Iterator[Figure]:
    """A look-up in a process that has asked before."""
    device, limits = fingerprint().key, select.Limits()
    problem = ConvProblem.parse(session.problems[0].key)
    key, name = problem.key, str(select.by_model(problem, limits))
    row = _row(device, 0)._replace(problem=key, candidate=name, sources=workload.sources_of(name))
    cache = session.folder / "cache"
    os.environ[VARIABLE] = str(cache)  # kernels stay where this process has found them
    store = Store(cache / "autotune.sqlite")
    store.put([row])
    assert select.choose(problem, "cached", limits).decided_by == "store"
    calls: dict[str, Callable[[], object]] = {
        "layers": lambda: tuned.best(problem, limits),
        "choice of an algorithm": lambda: select.choose(problem, "cached", limits),
    }
    for name, call in calls.items():
        times = [_seconds(call, session.options.calls) / session.options.calls for _ in range(7)]
        yield Figure("look-up", name, min(times) * 1e6, "µs", 2.0)


def large(session: Session) -> Iterator[Figure]:
    """Opening a store of many rows and answering the first look-up."""
    path, count = session.folder / "large.sqlite", session.options.rows
    task = session.bar.add_task("filling a large store", total=count)
    device = fingerprint().key
    with Store(path) as store:
        for start in range(0, count, 10_000):
            rows = [_row(device, number) for number in range(start, min(count, start + 10_000))]
            store.put(rows)
            session.bar.advance(task, len(rows))

    def first() -> object:
        with Store(path, read_only=True) as store:
            return store.best(device, _row(device, count // 2).problem, sources=("sources",))

    assert first() is not None
    seconds = min(_seconds(first, 1) for _ in range(7))
    yield Figure("large store", f"{count} rows: open, first look-up", seconds * 1e3, "ms", 50.0)


PARTS: dict[str, Callable[[Session], Iterator[Figure]]] = {
    "regret": regret,
    "heuristic": heuristic,
    "repeatability": repeatability,
    "cost": cost,
    "lookup": lookup,
    "large": large,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; 1 if one falls short of its target."""
    options = parser().parse_args(argv)
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-tuner-") as folder,
        Bar(console=Console(stderr=True), transient=True) as bar,
    ):
        drawn = draw(options.shapes, options.seed, options.threads)
        problems = [Problem(p.key, p.shape_key, 1, float(p.flops), "drawn", p.threads) for p in drawn]
        session = Session(options, problems, Path(folder), bar)
        with contextlib.suppress(KeyboardInterrupt):  # what is known is printed
            for part in options.only or PARTS:
                figures.extend(PARTS[part](session))
    if options.json:
        records = [asdict(figure) | {"met": figure.met} for figure in figures]
        print(json.dumps({"device": fingerprint().key, "seed": options.seed, "figures": records}, indent=1))
    else:
        print(f"{options.shapes} shapes, seed {options.seed}, {options.threads} threads\n")
        print(tabulate([_cells(figure) for figure in figures], HEADERS, disable_numparse=True))
    return int(any(figure.met is False for figure in figures))


HEADERS = ("part", "figure", "value", "target", "met")


def _cells(figure: Figure) -> tuple[str, ...]:
    sign = "≤" if figure.most else "≥"
    target = "" if figure.target is None else f"{sign} {figure.target:g} {figure.unit}".strip()
    met = {True: "yes", False: "no", None: ""}[figure.met]
    return figure.part, figure.name, f"{figure.value:.3g} {figure.unit}".strip(), target, met


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="bench.tuner", description=__doc__.splitlines()[0])
    p.add_argument("--shapes", type=int, default=40, help="shapes drawn at random (40)")
    p.add_argument("--seed", type=int, default=4, help="of the drawing (4)")
    p.add_argument("--threads", type=int, default=1, help="of the shapes (1)")
    p.add_argument("--only", metavar="PART", action="append", choices=PARTS, help=f"of {', '.join(PARTS)}; repeatable")
    p.add_argument("--efforts", type=_efforts, default=("quick", "normal"), help="efforts to judge (quick,normal)")
    p.add_argument("--warmups", type=int, default=3, help="warmups from nothing of an effort (3)")
    p.add_argument("--rounds", type=int, default=25, help="rounds when winners are timed again (25)")
    p.add_argument("--shape-limit", type=float, help="seconds for a shape of the exhaustive warmup (no limit)")
    p.add_argument("--calls", type=int, default=100_000, help="look-ups a sample (100000)")
    p.add_argument("--rows", type=int, default=100_000, help="of the large store (100000)")
    p.add_argument("--json", action="store_true", help="print JSON")
    return p


def _efforts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(EFFORTS):
        raise argparse.ArgumentTypeError(f"must be of {', '.join(EFFORTS)}, not {text!r}")
    return names


def _geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def _worst(ratios: dict[str, float]) -> str:
    return max(ratios, key=ratios.__getitem__)


def _seconds(call: Callable[[], object], times: int) -> float:
    repeats = range(times)
    start = time.perf_counter()
    for _ in repeats:
        call()
    return time.perf_counter() - start


def _row(device: str, number: int) -> Row:
    problem, candidate = divmod(number, ROWS_A_PROBLEM)
    key = f"g1mb1ic{problem + 1}ih56iw56oc64oh56ow56kh3kw3sh1sw1ph1pw1dh0dw0 in=NCHW out=NCHW act=none res=0 threads=1"
    seconds = 1e-3 * (1 + candidate)
    return Row(
        device, key, f"candidate{candidate}", "sources", "ok", median=seconds, spread=1e-6, count=9, score=seconds
    )


if __name__ == "__main__":
    sys.exit(main())
