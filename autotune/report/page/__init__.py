"""The tuning tables as an HTML page: sortable tables and roofline plots."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from autotune.report.page.document import document, facts, let_break, of_column, sortable, text
from autotune.report.page.plot import KINDS, marker, plot
from autotune.report.table_rows import COLUMNS, ProblemRow, Section, note_of, remedies, total_text, totals
from baselib.text import count_of, number, size

TITLE = "Tuned on this machine"


def page(sections: Sequence[Section]) -> str:
    """Return the HTML document."""
    main = Element("main")
    for place, section in enumerate(sections):
        _device(main, section, f"d{place}")
    return document(", ".join(section.title for section in sections) or TITLE, main)


def _device(parent: Element, section: Section, name: str) -> None:
    part = SubElement(parent, "section")
    text(part, "h1", section.title)
    facts(part, _facts(section.device))
    for place, (network, lines) in enumerate(section.networks().items()):
        _network(part, network, lines, f"{name}n{place}")


def _facts(device: Mapping[str, Any]) -> list[tuple[str, str]]:
    caches = ", ".join(f"{level} {size(count)}" for level, count in device.get("caches", {}).items())
    names = (title for title in ("NumPy", "Numba", "LLVM") if title.lower() in device)
    versions = ", ".join(f"{title} {device[title.lower()]}" for title in names)
    told = [("compiled for", device.get("cpu_name", "")), ("caches", caches), ("versions", versions)]
    for threads, figures in device.get("roofs", {}).items():
        if isinstance(figures, dict) and isinstance(when := figures.get("measured"), float):
            day = time.strftime("%Y-%m-%d", time.localtime(when))
            told.append((f"roofs of {count_of(int(threads), 'thread')}", f"measured {day}"))
    return [(title, str(value)) for title, value in told if value]


def _network(parent: Element, title: str, lines: Sequence[ProblemRow], name: str) -> None:
    part = SubElement(parent, "section")
    text(part, "h2", title)
    text(part, "p", total_text(lines))
    if note := note_of(lines):
        text(part, "p", note)
    drawing = plot(lines, name)
    if drawing is not None:
        figure = SubElement(part, "figure")
        figure.append(drawing)
        _legend(SubElement(figure, "figcaption"), lines)
    _table(part, title, lines, name)
    if helps := remedies(lines):
        text(part, "h3", "What helps")
        list_ = SubElement(part, "dl", {"class": "remedies"})
        for bound_by, remedy in helps.items():
            text(list_, "dt", f"bound by {bound_by}")
            text(list_, "dd", remedy)


def _legend(parent: Element, lines: Sequence[ProblemRow]) -> None:
    kinds = {line.verdict.kind for line in lines if line.verdict is not None}
    for kind in (kind for kind in KINDS if kind in kinds):
        entry = SubElement(parent, "span")
        drawing = SubElement(entry, "svg", {"viewBox": "-6 -6 12 12", "aria-hidden": "true"})
        marker(drawing, kind, 0, 0, 5)
        entry[-1].tail = f" bound by {kind}"
    text(parent, "span", "Area: part of the network's time. A point leads to its line in the table.")


def _table(parent: Element, title: str, lines: Sequence[ProblemRow], name: str) -> None:
    table, body = sortable(parent, title, [(column.title, column.is_number) for column in COLUMNS])
    for place, line in enumerate(lines):
        row, record = SubElement(body, "tr", id=f"{name}r{place}"), line.record()
        for column in COLUMNS:
            value = record[column.name]
            cell = text(row, "td", column.cell(record), **of_column(column.is_number))
            if column.is_long:
                let_break(cell)
            cell.set("data-value", "" if value is None else str(value))
            if column.name == "bound_by" and line.verdict is not None:
                cell.set("class", line.verdict.kind)
    total = totals(lines)
    shown = {
        "title": "total",
        "count": str(total["layers"]),
        "total_ms": number(total["time_ms"], ".3f"),
        "gflops": number(total["gflops"], ".1f"),
        "roof_share": number(total["roof_share"], ".0%"),
    }
    foot = SubElement(SubElement(table, "tfoot"), "tr")
    for column in COLUMNS:
        text(foot, "td", shown.get(column.name, ""), **of_column(column.is_number))
