"""The page of `bench.many_cores`, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from bench.peers import CPUCONV
from bench.results import geomean

Table = Mapping[str, Any]
PARTS = ("work", "slower", "imbalance", "serial", "joins")


def page(found: Mapping[str, Any]) -> str:
    """Return all measurements as text with tables."""
    tables = found["tables"]
    versions = {each["name"]: each["version"] for one in tables for each in one["engines"].values()}
    told = [
        f"# {found['cpu']}, {found['cores']} cores",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        "## Ratios to the fastest other engine",
        "Its time over ours, geometric mean and worst, medians; above 1 ours is faster.",
        _table(("what", "precision", "batch", "threads", "mean", "worst", "worst line"), map(_summary, tables)),
        "## Scaling",
        "Efficiency: time on one thread over the time on n threads, over n, of each engine. "
        f"That of the FMA peak bounds it: {_peaks(found['roofs'])}.",
        *(_scaling(tables, *key) for key in dict.fromkeys(map(_kind, tables))),
    ]
    if found["profiles"]:
        told += ["## Where the time of a run goes", _parts(found["profiles"])]
    if found["callers"]:
        told += ["## Several callers: images a second, callers x threads of each", _callers(found["callers"])]
    told += ["## Milliseconds", *(_milliseconds(one) for one in tables)]
    if found["left_out"]:
        told += [f"Left out, as time was up: {'; '.join(found['left_out'])}."]
    return "\n\n".join(told) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)


def _peaks(peaks: Mapping[int, float]) -> str:
    one = peaks.get(1, 0.0)
    told = (f"{peak:.0f} GFLOP/s on {count} ({peak / count / one:.0%})" for count, peak in peaks.items() if one)
    return ", ".join(told) or "which was not measured"


def _kind(one: Table) -> tuple[str, str, int]:
    return one["kind"], one["precision"], one["batch"]


def _summary(one: Table) -> tuple[object, ...]:
    ratios = {line["label"]: line["ratio"]["median"] for line in one["lines"] if line["ratio"]}
    worst = min(ratios, key=lambda label: ratios[label], default="")
    mean = f"{geomean(ratios.values()):.2f}" if ratios else ""
    return (*(one[name] for name in ("kind", "precision", "batch", "threads")), mean,
            f"{ratios[worst]:.2f}" if worst else "", worst)  # fmt: skip


def _medians(one: Table, engine: str) -> dict[str, float]:
    return {line["label"]: line["engines"][engine]["median"] for line in one["lines"] if engine in line["engines"]}


def _scaling(tables: Sequence[Table], kind: str, precision: str, batch: int) -> str:
    """Table with a row per line and engine: efficiency on each number of threads."""
    here = [one for one in tables if _kind(one) == (kind, precision, batch)]
    single = next((one for one in here if one["threads"] == 1), None)
    many = sorted((one for one in here if one["threads"] > 1), key=lambda one: one["threads"])
    if single is None or not many:
        return ""
    rows = []
    for engine, told in single["engines"].items():
        base = _medians(single, engine)
        figures = [
            {name: base[name] / time / one["threads"] for name, time in _medians(one, engine).items() if name in base}
            for one in many
        ]
        for label in base if engine == CPUCONV else ():
            rows.append((label, told["name"], *(f"{each[label]:.0%}" if label in each else "" for each in figures)))
        means = (f"{geomean(each.values()):.0%}" if each else "" for each in figures)
        rows.append(("geometric mean", told["name"], *means))
    heads = ("line", "engine", *(f"{one['threads']} threads" for one in many))
    return f"{kind}, {precision}, batch {batch}\n\n{_table(heads, rows)}"


def _parts(profiles: Mapping[str, Any]) -> str:
    """Table with a row per network: parts of the run as shares, and µs of a join."""
    rows = []
    for name, one in profiles.items():
        parts = one["parts"]
        total = sum(parts[part] for part in PARTS)
        join = parts["joins"] / parts["rows"] * 1e6 if parts["rows"] else 0.0
        rows.append((name, f"{one['one'] * 1e3:.2f}", f"{one['seconds'] * 1e3:.2f}",
                     *(f"{parts[part] / total:.0%}" for part in PARTS), f"{join:.1f}"))  # fmt: skip
    return _table(("network", "ms, one thread", "ms", *PARTS, "µs between operators"), rows)


def _callers(found: Mapping[str, Mapping[str, float]]) -> str:
    ways = list(next(iter(found.values())))
    return _table(("network", *ways), [(name, *(f"{rates[way]:.1f}" for way in ways)) for name, rates in found.items()])


def _milliseconds(one: Table) -> str:
    """Table with a row per line: each engine's median, and the ratio."""
    rows = []
    for line in one["lines"]:
        cells = (
            f"{line['engines'][key]['median'] * 1e3:.3f}" if key in line["engines"] else line["without"].get(key, "")
            for key in one["engines"]
        )
        rows.append((line["label"], *cells, f"{line['ratio']['median']:.2f}" if line["ratio"] else ""))
    heads = ("line", *(each["name"] for each in one["engines"].values()), "÷ cpuconv")
    title = f"{one['kind']}, {one['precision']}, batch {one['batch']}, {one['threads']} threads"
    notes = [f"{line['label']}: {note}." for line in one["lines"] for note in line["notes"]]
    return "\n\n".join([title, _table(heads, rows), *notes])
