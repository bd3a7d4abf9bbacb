"""Whole runs over the lines: start the engines, run them in turn on each line, and end them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from autotune.machine.roofline import Roofs
from bench import typed
from bench.engine import Engine, EngineError
from bench.peers import CPUCONV
from bench.results import LineResult, Measurement, Timing, mean_ratio
from bench.settings import OWN, Run, Settings
from bench.shapes import Line
from cpuconv.problem.types import ALL_F32

MAX_SLOWDOWN = 2.0  # a form that is this many times slower than its engine's best in the first round is not timed again


class Race:
    """A comparison of engines on some lines; `measure_all` fills `results` and `run`."""

    def __init__(self, lines: Sequence[Line], settings: Settings, console: Console) -> None:
        self.lines, self.settings, self.console = lines, settings, console
        self.results: list[LineResult] = []
        self.run = Run({}, {}, settings)
        self.interrupted = False

    def measure_all(self) -> None:
        """Do all runs, with a progress bar. On Ctrl-C complete runs remain, or the partial first one."""
        self.results = [LineResult(line) for line in self.lines]
        steps = len(self.lines) * self.settings.rounds
        found: list[Measurement] = []
        try:
            with _progress(self.console) as bar:
                task = bar.add_task("", total=steps * self.settings.runs, note="")
                for index in range(self.settings.runs):
                    found = []
                    bar.update(task, completed=index * steps)
                    self._one_run(found, index == 0, lambda **state: bar.update(task, **state))
                    self._keep(found)
        except KeyboardInterrupt:
            self.interrupted = True
            if not any(result.runs for result in self.results):
                self._keep(found)
        self.results = [result for result in self.results if any(run.forms or run.notes for run in result.runs)]

    def _keep(self, found: Sequence[Measurement]) -> None:
        for result, measurement in zip(self.results, found, strict=False):
            result.runs.append(measurement)

    def _one_run(self, found: list[Measurement], first: bool, show: Callable[..., None]) -> None:
        with started(self.settings, self.console.print if first else lambda *_, **__: None) as engines:
            if first:
                names = {engine.key: engine.name for engine in engines}
                self.run = Run(names, {engine.key: engine.version for engine in engines}, self.settings)
            before = self._roofs(engines)
            for line in self.lines:
                show(description=line.label)
                found.append(Measurement(roofs=before))
                measure(found[-1], line, engines, self.settings, lambda: show(advance=1))
                ratio = mean_ratio(map(LineResult, self.lines, ([one] for one in found)), tuple(self.run.names))
                show(note=f"× best peer {ratio.median:.2f}" if ratio else "")
            after = self._roofs(engines)
            for measurement in found:
                measurement.roofs = before.best(after) if before and after else before

    def _roofs(self, engines: Sequence[Engine]) -> Roofs | None:
        """Measure the roofs in cpuconv's process while the others are stopped; None without cpuconv or if disabled."""
        ours = next((engine for engine in engines if engine.key == CPUCONV and self.settings.roofs), None)
        try:
            return ours.roofs() if ours else None
        except EngineError as error:
            self.console.print(f"No roofs: {error}.", highlight=False)
            return None


@contextlib.contextmanager
def started(settings: Settings, say: Callable[..., None]) -> Iterator[list[Engine]]:
    """Start the installed engines, cpuconv first; report the missing ones by `say`."""
    own = {"layouts": settings.layouts, "strategy": settings.strategy, "call": settings.call}
    engines: list[Engine] = []
    try:
        for key in (CPUCONV, *(key for key in settings.peers if key != CPUCONV)):
            try:
                options = {**(own if key in OWN else {}), **settings.options.get(key, {})}
                engines.append(Engine(key, settings.threads, options, settings.timeout))
            except EngineError as error:
                say(f"Skipping {key}: {error}.", highlight=False)
        yield engines
    finally:
        for engine in engines:
            engine.close()


def measure(
    result: Measurement, line: Line, engines: Sequence[Engine], settings: Settings, step: Callable[[], object]
) -> None:
    """Time every engine on one line, in turn, and fill `result`; a failing engine gets a note and no figure."""
    for engine in engines:
        with _noting(result, engine):
            engine.revive()
            prepared = engine.prepare(line.problem, settings.w_bits)
            admitted = [form for form in prepared if form.plain or not settings.plain]
            limit = _limit(engine.key, settings)
            right = [form for form in admitted if form.error <= limit]
            result.notes += [
                f"{engine.name}'s {form.form} is wrong by {form.error:.1e} {form.algorithm}".rstrip()
                for form in admitted
                if form.error > limit
            ]
            result.forms[engine.key] = [Timing(f.form, f.algorithm, f.detail, f.error) for f in right]
    for turn in range(settings.rounds):
        shift = turn % max(1, len(engines))  # so that no engine always runs after the same one
        for engine in (*engines[shift:], *engines[:shift]):
            with _noting(result, engine):
                for timing in _worth_timing(result.forms.get(engine.key, []), turn):
                    timing.rounds.append(engine.time(timing.form, settings.seconds))
        step()


def _limit(key: str, settings: Settings) -> float:
    """Return the largest error with which an engine's figure counts."""
    if settings.types != ALL_F32:
        return typed.limit(settings.types, key, key == CPUCONV)
    return settings.own_tolerance if key in OWN else settings.tolerance


def _worth_timing(forms: list[Timing], turn: int) -> list[Timing]:
    if turn == 0:
        return forms
    limit = MAX_SLOWDOWN * min((form.median for form in forms if form.rounds), default=0.0)
    return [form for form in forms if len(form.rounds) == turn and form.median <= limit]


@contextlib.contextmanager
def _noting(result: Measurement, engine: Engine) -> Iterator[None]:
    """Turn an engine's failure into a note, and remove its figures for the line."""
    try:
        yield
    except EngineError as error:
        result.forms.pop(engine.key, None)
        result.notes.append(f"{engine.name} failed: {error}")


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console)
