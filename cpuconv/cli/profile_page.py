"""HTML page of a profile: operators by bound, a timeline of the workers, and every operator against its roof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from autotune.report.page.document import asset, document, facts, let_break, of_column, sortable, text
from baselib.text import number
from cpuconv.network.reports.profile import Profile, ProfileRow
from cpuconv.network.reports.timing import Span, Watched

KINDS = {  # in the order in which the bars show them
    "compute": "bound by arithmetic",
    "bandwidth": "bound by memory",
    "overhead": "bound by overhead",
    "kernel": "kernels",
    "reorder": "reorders",
    "reference": "reference implementations",
}
_GAP = "waiting"
_LANE, _BETWEEN, _AXIS = 28, 6, 20  # heights in pixels: a worker's lane, the space between lanes, the axis labels
_MIN_GAP = 5e-4  # shortest gap that is drawn, as a share of the run
_TICKS = 10
COLUMNS = (  # title, whether the column is numeric
    ("operator", False), ("#", True), ("kind", False), ("µs", True), ("share", True), ("of roof", True),
    ("bound by", False), ("GFLOP/s", True), ("GB/s", True), ("shape", False), ("types", False), ("layouts", False),
    ("algorithm", False),
)  # fmt: skip
_LONG = ("algorithm",)


def page(name: str, profile: Profile) -> str:
    """Return the HTML document for a network of this name."""
    main = Element("main")
    text(main, "h1", f"Profile of {name}")
    facts(main, list(_facts(profile)))
    if any(not row.bound for row in profile.rows):
        text(
            main, "p", "The roofs of this device were not measured, so the limits of operators are unknown: run"
            " autotune doctor --measure."
        )  # fmt: skip
    _bars(main, profile)
    if profile.watched is not None:
        _timeline(main, profile, profile.watched)
    text(main, "h2", "Operators")
    text(
        main, "p", "In execution order, each timed separately, alternately with whole runs; times are medians. Of roof:"
        " the lower bound of the time, by the operations and memory traffic of the algorithm, divided by the measured"
        " time. GFLOP/s count the operations of the direct sum."
    )  # fmt: skip
    if profile.note:
        text(main, "p", profile.note)
    _table(main, profile)
    style, script = (asset(__package__, f"profile_page.{end}") for end in ("css", "js"))
    return document(f"Profile of {name}", main, style, script)


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    alone = sum(row.seconds for row in profile.rows)
    yield "whole run", _milliseconds(profile.seconds)
    yield "operators alone", f"{_milliseconds(alone)} in total"
    yield "operators", str(len(profile.rows))
    yield "threads", str(profile.threads)
    for of, label in (("reorder", "reorders"), ("reference", "reference implementations")):
        rows = [row for row in profile.rows if row.kind == of]
        if rows:
            yield label, f"{len(rows)}, {_milliseconds(sum(row.seconds for row in rows))}"
    flops = sum(row.gflops * row.seconds for row in profile.rows if row.gflops is not None)
    if flops:
        yield "arithmetic", f"{flops / profile.seconds:.1f} GFLOP/s of the whole run"


# --- sum of operators and whole run ---------------------------------------------------------------------------------


def _bars(parent: Element, profile: Profile) -> None:
    """Draw the whole run above the sum of its operators, to one scale."""
    sums = {each: sum(row.seconds for row in profile.rows if row.kind == each) for each in KINDS}
    alone = sum(sums.values())
    scale = max(alone, profile.seconds) or 1.0
    text(parent, "h2", "Whole run and sum of operators")
    figure = SubElement(parent, "figure")
    for label, parts in (
        (f"whole run, {_milliseconds(profile.seconds)}", {"whole": profile.seconds}),
        (f"operators alone, {_milliseconds(alone)}", sums),
    ):
        text(figure, "p", label)
        drawing = SubElement(figure, "svg", {"class": "bar", "role": "img", "aria-label": label, "height": "22"})
        at = 0.0
        for each, seconds in parts.items():
            if seconds:
                told = f"{KINDS.get(each, each)}: {_milliseconds(seconds)}, {seconds / (alone or 1):.0%} of operators"
                rect = _rect(drawing, each, at / scale, seconds / scale, 0, 22)
                text(rect, "title", told if each in KINDS else label)
                at += seconds
    _legend(figure, [each for each in KINDS if sums[each]] + [_GAP] * (profile.watched is not None))


def _legend(figure: Element, kinds: Sequence[str]) -> None:
    caption = SubElement(figure, "figcaption")
    for each in kinds:
        entry = SubElement(caption, "span")
        drawing = SubElement(entry, "svg", {"viewBox": "0 0 10 10", "aria-hidden": "true"})
        SubElement(drawing, "rect", {"class": each, "width": "10", "height": "10"})
        drawing.tail = f" {KINDS.get(each, each)}"


# --- timeline -------------------------------------------------------------------------------------------------------


def _timeline(parent: Element, profile: Profile, watched: Watched) -> None:
    text(parent, "h2", "Timeline")
    slower = watched.seconds / profile.seconds - 1 if profile.seconds else 0.0
    text(
        parent,
        "p",
        f"One whole run of {_milliseconds(watched.seconds)}, with timestamps before and after each part of every kernel"
        f" ({slower:+.0%} against a run without timestamps); the run of median time among several. A bar links to its"
        " operator.",
    )
    workers = range(max([profile.threads, *(span.worker + 1 for span in watched.spans)]))
    gaps = {worker: list(_gaps(watched, worker)) for worker in workers}
    tools = SubElement(parent, "div", {"class": "tools"})
    for label, way in (("−", "out"), ("+", "in")):
        text(tools, "button", label, **{"type": "button", "data-zoom": way, "aria-label": f"zoom {way}"})
    text(tools, "output", "", id="told", **{"aria-live": "polite"})
    frame = SubElement(parent, "div", {"class": "timeline"})
    names = SubElement(frame, "ol")
    for worker in workers:
        item = text(names, "li", f"worker {worker}")
        waits = sum(end - start for start, end in gaps[worker])
        text(item, "small", f"waits {waits / watched.seconds:.0%}" if watched.seconds else "")
    scroll = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": "timeline"}
    height = len(workers) * (_LANE + _BETWEEN)
    drawing = SubElement(
        SubElement(frame, "div", scroll), "svg", {"class": "runs", "width": "100%", "height": str(height + _AXIS)}
    )
    _axis(drawing, watched.seconds, height)
    for worker in workers:
        top = worker * (_LANE + _BETWEEN)
        for start, end in gaps[worker]:
            if end - start >= _MIN_GAP * watched.seconds:
                rect = _rect(drawing, _GAP, start / watched.seconds, (end - start) / watched.seconds, top, _LANE)
                text(rect, "title", f"worker {worker} waits {_microseconds(end - start)}")
    for span in watched.spans:
        _span(drawing, profile.rows[span.work], span, watched.seconds)


def _span(drawing: Element, row: ProfileRow, span: Span, seconds: float) -> None:
    start, end = max(0.0, span.start), min(seconds, span.end)
    link = SubElement(drawing, "a", {"href": f"#r{span.work}", "tabindex": "0" if span.worker == 0 else "-1"})
    top = span.worker * (_LANE + _BETWEEN)
    rect = _rect(link, row.kind, start / seconds, max(0.0, end - start) / seconds, top, _LANE)
    about = f"{row.name} · {row.op}" + (f" {row.algorithm}" if row.algorithm else "")
    told = f"{about}: {_microseconds(span.end - span.start)} on worker {span.worker}, from {_microseconds(span.start)}"
    text(rect, "title", told)


def _gaps(watched: Watched, worker: int) -> Iterator[tuple[float, float]]:
    """Yield the idle intervals of a worker."""
    taken = sorted((span.start, span.end) for span in watched.spans if span.worker == worker)
    last = 0.0
    for start, end in [*taken, (watched.seconds, watched.seconds)]:
        if start > last:
            yield last, start
        last = max(last, end)


def _axis(drawing: Element, seconds: float, height: int) -> None:
    axis = SubElement(drawing, "g", {"class": "axis"})
    for tick in range(_TICKS + 1):
        at = f"{100 * tick / _TICKS:g}%"
        SubElement(axis, "line", {"x1": at, "x2": at, "y1": "0", "y2": str(height)})
        anchor = {0: "start", _TICKS: "end"}.get(tick, "middle")
        text(
            axis, "text", f"{seconds * tick / _TICKS * 1e3:.2f}" + (" ms" if tick == _TICKS else ""),
            **{"x": at, "y": str(height + _AXIS - 6), "text-anchor": anchor, "class": "odd" if tick % 5 else "even"},
        )  # fmt: skip


def _rect(parent: Element, of: str, start: float, width: float, top: float, height: float) -> Element:
    """Add a rectangle; `start` and `width` are fractions of the drawing's width."""
    place = {"x": f"{100 * start:.4f}%", "width": f"{100 * width:.4f}%", "y": f"{top:g}", "height": f"{height:g}"}
    return SubElement(parent, "rect", {"class": of, **place})


# --- operators ------------------------------------------------------------------------------------------------------


def _table(parent: Element, profile: Profile) -> None:
    table, body = sortable(parent, "Operators", COLUMNS)
    for place, row in enumerate(profile.rows):
        line = SubElement(body, "tr", id=f"r{place}")
        for (title, is_number), (content, value) in zip(COLUMNS, _cells(place, row), strict=True):
            cell = text(line, "td", content, **of_column(is_number))
            if title in _LONG:
                let_break(cell)
            cell.set("data-value", "" if value is None else str(value))
            if title == "bound by":
                cell.set("class", row.kind)
            if title == "of roof" and row.roof_share is not None:
                drawing = SubElement(cell, "svg", {"class": "roof", "aria-hidden": "true"})
                _rect(drawing, "track", 0, 1, 0, 8)
                _rect(drawing, row.kind, 0, min(1.0, row.roof_share), 0, 8)
    foot = SubElement(SubElement(table, "tfoot"), "tr")
    alone = sum(row.seconds for row in profile.rows)
    shown = {"operator": "sum of operators", "µs": f"{alone * 1e6:.1f}", "share": "100%" if alone else ""}
    for title, is_number in COLUMNS:
        text(foot, "td", shown.get(title, ""), **of_column(is_number))


def _cells(place: int, row: ProfileRow) -> list[tuple[str, Any]]:
    """Return the text and the sort key of each column of a row."""
    by = ", ".join(filter(None, (row.kind if row.kind in ("reorder", "reference") else "", row.bound)))
    shape = "x".join(map(str, row.shape))
    return [
        (row.name, row.name),
        (str(place + 1), place + 1),
        (row.op, row.op),
        (f"{row.seconds * 1e6:.1f}", row.seconds),
        (f"{row.share:.1%}", row.share),
        (number(row.roof_share, ".0%"), row.roof_share),
        (by, by),
        (number(row.gflops, ".1f"), row.gflops),
        (f"{row.gbs:.1f}", row.gbs),
        (shape, shape),
        (row.types, row.types),
        (row.layouts, row.layouts),
        (row.algorithm, row.algorithm),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"
