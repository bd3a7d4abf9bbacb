"""The figures as text, Markdown and JSON, and their place in the README."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from bench.peers import OURS
from bench.results import LineResult, mean_ratio

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
MAIN_PEERS = ("torch", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Run:
    """How the figures came about: `names` and `versions` by engine key, ours first."""

    names: Mapping[str, str]
    versions: Mapping[str, str]
    threads: int
    rounds: int
    seconds: float
    strategy: str
    layouts: str

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Column title to the engines compared with: the main ones together, all, then each; none without ours."""
        if OURS not in self.names:
            return {}
        peers = tuple(key for key in self.names if key != OURS)
        main = tuple(key for key in peers if key in MAIN_PEERS)
        groups = {"best of " + ", ".join(self.names[key] for key in group): group for group in (main,) if len(main) > 1}
        if len(peers) > len(main):
            groups["best of all"] = peers
        return groups | {self.names[key]: (key,) for key in peers}

    @property
    def caption(self) -> str:
        """One paragraph: the machine, the engines, the method."""
        engines = ", ".join(f"{name} {self.versions[key]}" for key, name in self.names.items())
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return (
            f"{cpu_name()}, {threads}, fp32; {engines}. GFLOP/s of the direct sum at the median of {self.rounds} "
            f"rounds of {self.seconds:g} s, each engine in its own process and best form, asked in turn; strategy "
            f"{self.strategy}, layouts {self.layouts}. Ratios: peer's time over ours, median of the rounds' ratios, in "
            "brackets that of the fastest runs."
        )


def lines_table(results: Sequence[LineResult], run: Run, style: str = "pipe") -> str:
    """A row per line: GFLOP/s of each engine, and ours against the best of the groups."""
    groups = [(title, group) for title, group in run.groups.items() if title.startswith("best of")]
    groups = groups or list(run.groups.items())
    headers = ["layer", *run.names.values(), *(f"÷ {title}" for title, _ in groups)]
    rows = []
    for result in results:
        speeds = [_speed(result.gflops(key)) for key in run.names]
        rows.append([result.line.label, *speeds, *(str(result.ratio(group) or "–") for _, group in groups)])
    return _table(rows, headers, style)


def summary_table(results: Sequence[LineResult], run: Run, style: str = "pipe") -> str:
    """A row for all lines and for each family: geometric means of our ratios."""
    families = list(dict.fromkeys(result.line.family for result in results))
    parts = {"all": results} | {name: [r for r in results if r.line.family == name] for name in families}
    rows = []
    for title, part in parts.items():
        rows.append([title, len(part), *(str(mean_ratio(part, group) or "–") for group in run.groups.values())])
    return _table(rows, ["lines", "count", *(f"÷ {title}" for title in run.groups)], style)


def details_table(results: Sequence[LineResult], run: Run, style: str = "pipe") -> str:
    """A row per line and engine: its best form, milliseconds, GFLOP/s, error, and what ran."""
    rows = []
    for result in results:
        for key, name in run.names.items():
            if timing := result.of(key):
                speeds = (result.line.problem.flops / seconds / 1e9 for seconds in (timing.best, timing.median))
                figures = [f"{timing.best * 1e3:.4f}", f"{timing.median * 1e3:.4f}", *(f"{s:.1f}" for s in speeds)]
                rows.append([result.line.label, name, timing.form, *figures, f"{timing.error:.0e}", timing.detail])
    headers = ["layer", "engine", "form", "best ms", "median ms", "best GFLOP/s", "median GFLOP/s", "error", "ran"]
    return _table(rows, headers, style)


def remarks(results: Sequence[LineResult], run: Run) -> list[str]:
    """Lines on which ours is slower than the best peer, each engine's worst error, and what was left out."""
    peers = tuple(key for key in run.names if key != OURS)
    slower = [(ratio, r) for r in results if (ratio := r.ratio(peers)) and ratio.median < 1.0]
    slower.sort(key=lambda pair: pair[0].median)
    texts = []
    if slower:
        words = (f"{r.line.label} {ratio} {run.names[r.rival(peers)]}" for ratio, r in slower)
        texts.append(f"Below 1.0 ({len(slower)} of {len(results)}): " + "; ".join(words) + ".")
    elif any(r.ratio(peers) for r in results):
        texts.append("Below 1.0: none.")
    errors = {name: [t.error for r in results if (t := r.of(key))] for key, name in run.names.items()}
    worst = ", ".join(f"{name} {max(values):.0e}" for name, values in errors.items() if values)
    if worst:
        texts.append(f"Largest error against float64, relative to the largest output: {worst}.")
    texts += [f"Left out: {r.line.label}: {note}." for r in results for note in r.notes]
    return texts


def markdown(results: Sequence[LineResult], run: Run, details: bool = True) -> str:
    """The whole report."""
    parts = [run.caption, summary_table(results, run), lines_table(results, run), *remarks(results, run)]
    if details:
        parts.append(details_table(results, run))
    return "\n\n".join(parts) + "\n"


def to_dict(results: Sequence[LineResult], run: Run) -> dict:
    """Everything as plain data: times in seconds, a median per round; ratios by column title."""
    ratios = {title: mean_ratio(results, group) for title, group in run.groups.items()}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "threads": run.threads,
        "rounds": run.rounds,
        "seconds_per_sample": run.seconds,
        "strategy": run.strategy,
        "layouts": run.layouts,
        "engines": {key: {"name": name, "version": run.versions[key]} for key, name in run.names.items()},
        "geomean": {title: vars(ratio) for title, ratio in ratios.items() if ratio},
        "lines": [_line_dict(result, run) for result in results],
    }


def _line_dict(result: LineResult, run: Run) -> dict:
    ratios = {title: result.ratio(group) for title, group in run.groups.items()}
    return {
        "label": result.line.label,
        "problem": result.line.problem.key,
        "family": result.line.family,
        "flops": result.line.problem.flops,
        "ratios": {title: vars(ratio) for title, ratio in ratios.items() if ratio},
        "engines": {key: _timing_dict(timing) for key in run.names if (timing := result.of(key))},
        "notes": result.notes,
    }


def _timing_dict(timing) -> dict:
    return {
        "form": timing.form,
        "detail": timing.detail,
        "error": timing.error,
        "best": timing.best,
        "median": timing.median,
        "round_medians": timing.medians,
    }


def update_readme(path: Path, text: str) -> None:
    """Replace what stands between the two markers of a file.

    Raises:
        ValueError: if the file does not hold each marker once, in order.
    """
    head, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in tail:
        raise ValueError(f"{path} must hold {BEGIN} and then {END}, once each.")
    path.write_text(f"{head}{BEGIN}\n{text.strip()}\n{END}{tail}", encoding="utf-8")


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _speed(gflops: float | None) -> str:
    return "–" if gflops is None else f"{gflops:.0f}" if gflops >= 10 else f"{gflops:.1f}"


def _table(rows: list, headers: list[str], style: str) -> str:
    return tabulate(rows, headers, tablefmt=style, disable_numparse=True, stralign="left")
