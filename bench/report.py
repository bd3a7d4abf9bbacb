"""The figures as text, Markdown and JSON, and their place between the markers of a page."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tabulate import tabulate

from autotune.machine.device import fingerprint
from bench import targets
from bench.peers import OURS
from bench.results import LineResult, Timing, mean_ratio
from bench.settings import Run, machine_name

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
NOTHING = "–"
MOST_SHARE = 1.03  # of a roof: measurements differ by so much; more is not possible


def lines_table(results: Sequence[LineResult], run: Run, style: str = "pipe") -> str:
    """A row per line: GFLOP/s of each engine, and ours against the best of the groups."""
    groups = [(title, group) for title, group in run.groups.items() if len(group) > 1]
    groups = groups or list(run.groups.items())
    headers = ["layer", *run.names.values(), *(f"÷ {title}" for title, _ in groups)]
    rows = []
    for result in results:
        speeds = [_speed(result.gflops(key)) for key in run.names]
        rows.append([result.line.label, *speeds, *(str(result.ratio(group) or NOTHING) for _, group in groups)])
    return _table(rows, headers, style)


def summary_table(results: Sequence[LineResult], run: Run, style: str = "pipe") -> str:
    """A row for all lines and for each family: geometric means of our ratios."""
    families = list(dict.fromkeys(result.line.family for result in results))
    parts = {"all": results} | {name: [r for r in results if r.line.family == name] for name in families}
    rows = []
    for title, part in parts.items():
        rows.append([title, len(part), *(str(mean_ratio(part, group) or NOTHING) for group in run.groups.values())])
    return _table(rows, ["lines", "count", *(f"÷ {title}" for title in run.groups)], style)


def details_table(results: Sequence[LineResult], run: Run, style: str = "pipe") -> str:
    """A row per line and engine: its best form, milliseconds, GFLOP/s, error, and what ran."""
    rows = []
    for result in results:
        for key, name in run.names.items():
            if timing := result.of(key):
                speeds = (result.line.problem.flops / seconds / 1e9 for seconds in (timing.best, timing.median))
                figures = [f"{timing.best * 1e3:.4f}", f"{timing.median * 1e3:.4f}", *(f"{s:.1f}" for s in speeds)]
                ran = ", ".join(part for part in (timing.algorithm, timing.detail) if part)
                rows.append([result.line.label, name, timing.form, *figures, f"{timing.error:.0e}", ran])
    headers = ["layer", "engine", "form", "best ms", "median ms", "best GFLOP/s", "median GFLOP/s", "error", "ran"]
    return _table(rows, headers, style)


def roofs_table(data: Mapping[str, Any], style: str = "pipe") -> str:
    """A row per line that ours ran, from what `to_dict` gives: algorithm, time, the roof that binds, every ratio."""
    titles = list(data["geomean"])
    rows = []
    for line in data["lines"]:
        if ours := line["engines"].get(OURS):
            roof, share = next(iter(line["shares"].items()), (NOTHING, None))
            ratios = [line["ratios"].get(title) for title in titles]
            figures = [f"{ours['median'] * 1e3:.3f}", roof, NOTHING if share is None else f"{share:.0%}"]
            cells = [NOTHING if ratio is None else f"{ratio['median']:.2f}" for ratio in ratios]
            rows.append([line["label"], f"`{ours['algorithm']}`", ours["detail"], *figures, *cells])
    headers = ["layer", "algorithm", "layouts", "ms", "roof", "share", *(f"÷ {title}" for title in titles)]
    return _table(rows, headers, style)


def roofs_text(data: Mapping[str, Any]) -> str:
    """The roofs of each run, and the lines that pass one, in words; empty if none was measured."""
    texts = []
    for roofs in data["roofs"]:
        levels = ", ".join(f"{level['name']} {level['gbs']:.0f} GB/s" for level in roofs["levels"])
        texts.append(f"FMA {roofs['fma_gflops']:.0f} GFLOP/s, {levels}, stores {roofs['store_gbs']:.0f} GB/s")
    if not texts:
        return ""
    above = [line["label"] for line in data["lines"] if max(line["shares"].values(), default=0.0) > MOST_SHARE]
    doubt = f" The machine was busy while they were measured: {', '.join(above)} pass them." if above else ""
    return f"Roofs measured in the same run: {'; '.join(texts)}.{doubt}"


def targets_table(results: Sequence[LineResult], run: Run, style: str = "pipe") -> str:
    """A row per target: what it asks for, the lowest figure, whether it is met, and what falls short."""
    rows = [
        [v.name, v.wanted, v.reached, "met" if v.met else "not met", "; ".join(v.short)]
        for v in targets.check(results, run)
    ]
    return _table(rows, ["target", "at least", "lowest", "", "short of it"], style)


def remarks(results: Sequence[LineResult], run: Run) -> list[str]:
    """Lines on which ours is slower than the best peer, each engine's worst error, and what was left out."""
    slower = [(ratio, r) for r in results if (ratio := r.ratio(run.peers)) and ratio.median < 1.0]
    slower.sort(key=lambda pair: pair[0].median)
    texts = []
    if slower:
        words = (f"{r.line.label} {ratio} {run.names[r.rival(run.peers)]}" for ratio, r in slower)
        texts.append(f"Below 1.0 ({len(slower)} of {len(results)}): " + "; ".join(words) + ".")
    elif any(r.ratio(run.peers) for r in results):
        texts.append("Below 1.0: none.")
    errors = {name: [t.error for r in results if (t := r.of(key))] for key, name in run.names.items()}
    worst = ", ".join(f"{name} {max(values):.0e}" for name, values in errors.items() if values)
    if worst:
        texts.append(f"Largest error against float64, relative to the largest output: {worst}.")
    texts += [f"Left out: {r.line.label}: {note}." for r in results for note in r.notes]
    return texts


def markdown(results: Sequence[LineResult], run: Run, details: bool = True, with_targets: bool = False) -> str:
    """The whole report; without details, what the README shows."""
    parts = [run.caption, summary_table(results, run), lines_table(results, run), *remarks(results, run)]
    if with_targets:
        parts.append(targets_table(results, run))
    if details:
        data = to_dict(results, run)
        parts += [roofs_text(data), roofs_table(data), details_table(results, run)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_dict(results: Sequence[LineResult], run: Run) -> dict[str, Any]:
    """Everything as plain data: times in seconds, a median per round; ratios by column title."""
    asked = run.settings
    ratios = {title: mean_ratio(results, group) for title, group in run.groups.items()}
    roofs = dict.fromkeys(one.roofs for result in results for one in result.runs if one.roofs is not None)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": machine_name(),
        "device": fingerprint().key,
        "title": asked.title,
        "threads": asked.threads,
        "rounds": asked.rounds,
        "runs": asked.runs,
        "seconds_per_sample": asked.seconds,
        "strategy": asked.strategy,
        "layouts": list(asked.layouts),
        "batch": asked.batch,
        "engines": {key: {"name": name, "version": run.versions[key]} for key, name in run.names.items()},
        "roofs": [each.to_dict() for each in roofs],
        "geomean": {title: vars(ratio) for title, ratio in ratios.items() if ratio},
        "targets": [asdict(verdict) | {"met": verdict.met} for verdict in targets.check(results, run)],
        "lines": [_line_dict(result, run) for result in results],
    }


def _line_dict(result: LineResult, run: Run) -> dict[str, Any]:
    ratios = {title: result.ratio(group) for title, group in run.groups.items()}
    best = result.ratio(run.peers)
    return {
        "label": result.line.label,
        "problem": result.line.problem.key,
        "family": result.line.family,
        "flops": result.line.problem.flops,
        "ratios": {title: vars(ratio) for title, ratio in ratios.items() if ratio},
        "best_peer": best and {"name": run.names[result.rival(run.peers)], "ratio": best.median},
        "shares": result.shares(),
        "engines": {key: _timing_dict(timing) for key in run.names if (timing := result.of(key))},
        "notes": result.notes,
    }


def _timing_dict(timing: Timing) -> dict[str, Any]:
    names = ("form", "algorithm", "detail", "error", "best", "median")
    return {name: getattr(timing, name) for name in names} | {"round_medians": timing.medians}


def replaced(path: Path, text: str) -> str:
    """A page with `text` in place of what stands between its two markers.

    Raises:
        ValueError: if the file does not hold each marker once, in order.
    """
    head, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in tail:
        raise ValueError(f"{path} must hold {BEGIN} and then {END}, once each.")
    return f"{head}{BEGIN}\n{text.strip()}\n{END}{tail}"


def _speed(gflops: float | None) -> str:
    return NOTHING if gflops is None else f"{gflops:.0f}" if gflops >= 10 else f"{gflops:.1f}"


def _table(rows: list, headers: list[str], style: str) -> str:
    return tabulate(rows, headers, tablefmt=style, disable_numparse=True, stralign="left")
