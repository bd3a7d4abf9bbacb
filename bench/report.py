"""Figures as text, Markdown and JSON, and their insertion between the markers of a page."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tabulate import tabulate

from autotune.machine.device import fingerprint
from bench import targets
from bench.peers import CPUCONV, OWN_F32
from bench.results import LineResult, Ratio, Timing, mean_ratio
from bench.settings import PLAIN, Run, machine_name
from cpuconv.problem.types import ALL_F32

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
NOTHING = "–"
FLOAT32 = "fp32"
Data = Mapping[str, Any]  # the result of `to_dict`, also as read from JSON
MAX_SHARE = 1.03  # largest plausible share of a roof: 1, plus the noise of measurements


def lines_table(data: Data, style: str = "pipe") -> str:
    """Table with a row per line: GFLOP/s of direct convolution by engine, the roof that binds, the ratios to groups."""
    groups = _groups(data)
    headers = ["layer", *(engine["name"] for engine in data["engines"].values()), "bound by"]
    rows = []
    for line in data["lines"]:
        speeds = [_speed(line, key) for key in data["engines"]]
        bound = next((f"{roof} {share:.0%}" for roof, share in line["shares"].items()), NOTHING)
        rows.append([line["label"], *speeds, bound, *(ratio_text(line["ratios"].get(title)) for title in groups)])
    return _table(rows, [*headers, *(f"÷ {title}" for title in groups)], style)


def headlines_table(tables: Sequence[tuple[str, Data]], style: str = "pipe") -> str:
    """Table with a row per table: device, geometric means over all lines, number of lines on which a peer is faster."""
    titles = list(dict.fromkeys(title for _, data in tables for title in _groups(data)))
    rows = []
    for device, data in tables:
        slower = sum(line["best_peer"] is not None and line["best_peer"]["ratio"] < 1.0 for line in data["lines"])
        ratios = (ratio_text(data["geomean"].get(title)) for title in titles)
        rows.append([device, data["title"], *ratios, f"{slower} of {len(data['lines'])}"])
    return _table(rows, ["device", "", *(f"÷ {title}" for title in titles), "lines below 1.0"], style)


def families_table(data: Data, style: str = "pipe") -> str:
    """Table with a row for all lines and for each family: geometric means of the ratios."""
    everything = {"family": "all", "count": len(data["lines"]), "geomean": data["geomean"]}
    titles = list(data["geomean"])
    rows = []
    for family in (everything, *data["families"]):
        ratios = (ratio_text(family["geomean"].get(title)) for title in titles)
        rows.append([family["family"], family["count"], *ratios])
    return _table(rows, ["lines", "count", *(f"÷ {title}" for title in titles)], style)


def details_table(results: Sequence[LineResult], run: Run, style: str = "pipe") -> str:
    """Table with a row per line and engine: its best form, milliseconds, GFLOP/s, error, and the algorithm."""
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


def roofs_table(data: Data, style: str = "pipe") -> str:
    """Table with a row per line that cpuconv ran: algorithm, layouts, time, the roof that binds, every ratio."""
    titles = list(data["geomean"])
    rows = []
    for line in data["lines"]:
        if ours := line["engines"].get(CPUCONV):
            roof, share = next(iter(line["shares"].items()), (NOTHING, None))
            ratios = [line["ratios"].get(title) for title in titles]
            figures = [f"{ours['median'] * 1e3:.3f}", roof, NOTHING if share is None else f"{share:.0%}"]
            cells = [NOTHING if ratio is None else f"{ratio['median']:.2f}" for ratio in ratios]
            rows.append([line["label"], f"`{ours['algorithm']}`", ours["detail"], *figures, *cells])
    headers = ["layer", "algorithm", "layouts", "ms", "roof", "share", *(f"÷ {title}" for title in titles)]
    return _table(rows, headers, style)


def roofs_text(data: Data) -> str:
    """Describe the roofs of each run, and the lines that exceed one; empty if none was measured."""
    texts = []
    for roofs in data["roofs"]:
        levels = ", ".join(f"{level['name']} {level['gbs']:.0f} GB/s" for level in roofs["levels"])
        peaks = "".join(f", {name} {gflops:.0f}" for name, gflops in roofs.get("peaks", {}).items())
        texts.append(f"FMA {roofs['fma_gflops']:.0f}{peaks} GFLOP/s, {levels}, stores {roofs['store_gbs']:.0f} GB/s")
    if not texts:
        return ""
    above = [line["label"] for line in data["lines"] if max(line["shares"].values(), default=0.0) > MAX_SHARE]
    doubt = f" The machine was busy while they were measured: {', '.join(above)} exceed them." if above else ""
    return f"Roofs measured in the same run: {'; '.join(texts)}.{doubt}"


def targets_table(results: Sequence[LineResult], run: Run, style: str = "pipe") -> str:
    """Table with a row per target: required and lowest figure, whether it is met, lines that miss it."""
    rows = [
        [v.name, v.wanted, v.reached, "met" if v.met else "not met", "; ".join(v.short)]
        for v in targets.check(results, run)
    ]
    return _table(rows, ["target", "required", "lowest", "", "lines below"], style)


def caption(data: Data) -> str:
    """Describe the machine, the engines and the method in one paragraph."""
    engines = ", ".join(f"{engine['name']} {engine['version']}" for engine in data["engines"].values())
    forms = "layout with NCHW input and output" if set(data["layouts"]) == {PLAIN} else "form"
    types = f", {FLOAT32}" if data.get("types", FLOAT32) == FLOAT32 else ""
    text = (
        f"{data['cpu']}, {data['title']}{types}; {engines}. Median of {data['rounds']} rounds of "
        f"{data['seconds_per_sample']:g} s, each engine in its own process and best {forms}, timed alternately; "
        f"strategy {data['strategy']}. A ratio is the peer's time divided by cpuconv's (above 1 cpuconv is faster): "
        "the median of the rounds' ratios, and in brackets the ratio of the fastest runs."
    )
    return text if data["runs"] == 1 else f"{text} Every figure is the median of {data['runs']} whole runs."


def remarks(data: Data) -> list[str]:
    """List the lines on which the best peer is faster, each engine's worst error, and omissions."""
    beside = [(line["best_peer"]["ratio"], line) for line in data["lines"] if line["best_peer"]]
    slower = sorted((pair for pair in beside if pair[0] < 1.0), key=lambda pair: pair[0])
    texts = []
    if slower:
        words = (f"{line['label']} {ratio:.2f} {line['best_peer']['name']}" for ratio, line in slower)
        texts.append(f"Below 1.0 ({len(slower)} of {len(data['lines'])}): " + "; ".join(words) + ".")
    elif beside:
        texts.append("Below 1.0: none.")
    worst = []
    for key, engine in data["engines"].items():
        errors = [line["engines"][key]["error"] for line in data["lines"] if key in line["engines"]]
        worst += [f"{engine['name']} {max(errors):.0e}"] if errors else []
    if worst:
        texts.append(f"Largest error against {_measure(data)}: {', '.join(worst)}.")
    texts += [f"Left out: {line['label']}: {note}." for line in data["lines"] for note in line["notes"]]
    return texts


def summary(data: Data) -> str:
    """Return the families of one table, its method and remarks."""
    return "\n\n".join((caption(data), families_table(data), *remarks(data))) + "\n"


def markdown(results: Sequence[LineResult], run: Run, with_targets: bool = False) -> str:
    """Return the whole report of the measurements."""
    data = to_dict(results, run)
    parts = [caption(data), families_table(data), lines_table(data), *remarks(data)]
    if with_targets:
        parts.append(targets_table(results, run))
    parts += [roofs_text(data), roofs_table(data), details_table(results, run)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_dict(results: Sequence[LineResult], run: Run) -> dict[str, Any]:
    """Return all figures as plain data: times in seconds, a median per round; ratios by column title."""
    asked = run.settings
    families = dict.fromkeys(result.line.family for result in results)
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
        "types": FLOAT32 if asked.types == ALL_F32 else str(asked.types),
        "weight_bits": asked.w_bits,
        "engines": {key: {"name": name, "version": run.versions[key]} for key, name in run.names.items()},
        "roofs": [each.to_dict() for each in roofs],
        "geomean": _geomeans(results, run),
        "families": [_family_dict(name, [r for r in results if r.line.family == name], run) for name in families],
        "targets": [asdict(verdict) | {"met": verdict.met} for verdict in targets.check(results, run)],
        "lines": [_line_dict(result, run) for result in results],
    }


def _geomeans(results: Sequence[LineResult], run: Run) -> dict[str, dict[str, float]]:
    ratios = {title: mean_ratio(results, group) for title, group in run.groups.items()}
    return {title: vars(ratio) for title, ratio in ratios.items() if ratio}


def _family_dict(name: str, results: Sequence[LineResult], run: Run) -> dict[str, Any]:
    return {"family": name, "count": len(results), "geomean": _geomeans(results, run)}


def _line_dict(result: LineResult, run: Run) -> dict[str, Any]:
    ratios = {title: result.ratio(group) for title, group in run.groups.items()}
    best, rival = result.ratio(run.peers), result.rival(run.peers)
    return {
        "label": result.line.label,
        "problem": result.line.problem.key,
        "family": result.line.family,
        "flops": result.line.problem.flops,
        "ratios": {title: vars(ratio) for title, ratio in ratios.items() if ratio},
        "best_peer": {"name": run.names[rival], "ratio": best.median} if best and rival else None,
        "shares": result.shares(),
        "engines": {key: timing_dict(timing) for key in run.names if (timing := result.of(key))},
        "notes": result.notes,
    }


def timing_dict(timing: Timing) -> dict[str, Any]:
    names = ("form", "algorithm", "detail", "error", "best", "median")
    return {name: getattr(timing, name) for name in names} | {"round_medians": timing.medians}


def replaced(path: Path, text: str, marks: str = "bench") -> str:
    """Return a page with `text` between its two markers of that name.

    Raises
    ------
    ValueError
        If the file does not contain each marker once, in order.
    """
    first, last = f"<!-- {marks}:begin -->", f"<!-- {marks}:end -->"
    head, begin, rest = path.read_text(encoding="utf-8").partition(first)
    _, end, tail = rest.partition(last)
    if not (begin and end) or first in rest or last in tail:
        raise ValueError(f"{path} must hold {first} and then {last}, once each.")
    return f"{head}{first}\n{text.strip()}\n{last}{tail}"


def _measure(data: Data) -> str:
    """Describe the reference of errors and their unit."""
    if data.get("types", FLOAT32).rpartition(":")[2] in _WHOLE:
        return "the exact integers, in units of the last place"
    return "float64, relative to the largest output"


_WHOLE = ("u8", "s8", "s32")


def _groups(data: Data) -> list[str]:
    """Return the titles of groups and of cpuconv in float32; if no group was selected, those of peers."""
    peers = {engine["name"] for key, engine in data["engines"].items() if key != OWN_F32}
    return [title for title in data["geomean"] if title not in peers] or list(data["geomean"])


def _speed(line: Data, engine: str) -> str:
    if engine not in line["engines"]:
        return NOTHING
    gflops = line["flops"] / line["engines"][engine]["median"] / 1e9
    return f"{gflops:.0f}" if gflops >= 10 else f"{gflops:.1f}"


def ratio_text(ratio: Mapping[str, float] | None) -> str:
    """Return the text of a ratio."""
    return str(Ratio(**ratio)) if ratio else NOTHING


def _table(rows: list, headers: list[str], style: str) -> str:
    return tabulate(rows, headers, tablefmt=style, disable_numparse=True, stralign="left")
