"""The tables as one page that loads nothing: sortable tables and roofline plots, for a screen of any size.

The page is built as a tree of elements and written by the standard library, so that all text is escaped; a content
policy that names its one script and its one style by their hashes keeps any other from running.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from autotune.report.lines import COLUMNS, Line, Section, remedies, total_text, totals
from autotune.report.page.plot import KINDS, marker, plot
from autotune.text import count_of, number, size

TITLE = "Tuned on this machine"


def page(sections: Sequence[Section]) -> str:
    """The whole HTML document."""
    root = Element("html", lang="en")
    head, body = SubElement(root, "head"), SubElement(root, "body")
    _head(head, ", ".join(section.title for section in sections) or TITLE)
    main = _text(body, "main")
    for place, section in enumerate(sections):
        _device(main, section, f"d{place}")
    _text(body, "script", _asset("page.js"))
    return f"<!doctype html>\n{tostring(root, encoding='unicode', method='html')}\n"


def _head(head: Element, title: str) -> None:
    script, style = (_asset(name) for name in ("page.js", "page.css"))
    policy = f"default-src 'none'; base-uri 'none'; script-src {_hash(script)}; style-src {_hash(style)}"
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": policy})
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "meta", {"name": "color-scheme", "content": "light dark"})
    _text(head, "title", title)
    _text(head, "style", style)


def _device(parent: Element, section: Section, name: str) -> None:
    part = SubElement(parent, "section")
    _text(part, "h1", section.title)
    facts = SubElement(part, "dl", {"class": "facts"})
    for title, value in _facts(section.device):
        pair = SubElement(facts, "div")
        _text(pair, "dt", title)
        _text(pair, "dd", value)
    for place, (network, lines) in enumerate(section.networks().items()):
        _network(part, network, lines, f"{name}n{place}")


def _facts(device: Mapping[str, Any]) -> list[tuple[str, str]]:
    caches = ", ".join(f"{level} {size(count)}" for level, count in device.get("caches", {}).items())
    names = (title for title in ("NumPy", "Numba", "LLVM") if title.lower() in device)
    versions = ", ".join(f"{title} {device[title.lower()]}" for title in names)
    facts = [("compiled for", device.get("cpu_name", "")), ("caches", caches), ("versions", versions)]
    for threads, figures in device.get("roofs", {}).items():
        if isinstance(figures, dict) and isinstance(when := figures.get("measured"), float):
            day = time.strftime("%Y-%m-%d", time.localtime(when))
            facts.append((f"roofs of {count_of(int(threads), 'thread')}", f"measured {day}"))
    return [(title, str(value)) for title, value in facts if value]


def _network(parent: Element, title: str, lines: Sequence[Line], name: str) -> None:
    part = SubElement(parent, "section")
    _text(part, "h2", title)
    _text(part, "p", total_text(lines))
    drawing = plot(lines, name)
    if drawing is not None:
        figure = SubElement(part, "figure")
        figure.append(drawing)
        _legend(SubElement(figure, "figcaption"), lines)
    _table(part, title, lines, name)
    if helps := remedies(lines):
        _text(part, "h3", "What helps")
        list_ = SubElement(part, "dl", {"class": "remedies"})
        for bound_by, remedy in helps.items():
            _text(list_, "dt", f"bound by {bound_by}")
            _text(list_, "dd", remedy)


def _legend(parent: Element, lines: Sequence[Line]) -> None:
    kinds = {line.verdict.kind for line in lines if line.verdict is not None}
    for kind in (kind for kind in KINDS if kind in kinds):
        entry = SubElement(parent, "span")
        drawing = SubElement(entry, "svg", {"viewBox": "-6 -6 12 12", "aria-hidden": "true"})
        marker(drawing, kind, 0, 0, 5)
        entry[-1].tail = f" bound by {kind}"
    _text(parent, "span", "Area: part of the network's time. A point leads to its line in the table.")


def _table(parent: Element, title: str, lines: Sequence[Line], name: str) -> None:
    scroll = SubElement(parent, "div", {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": title})
    table = SubElement(scroll, "table")
    heads = SubElement(SubElement(table, "thead"), "tr")
    for column in COLUMNS:
        head = SubElement(heads, "th", {"scope": "col", "aria-sort": "none", **_kind(column.is_number)})
        _text(head, "button", column.title, type="button")
    body = SubElement(table, "tbody")
    for place, line in enumerate(lines):
        row, record = SubElement(body, "tr", id=f"{name}r{place}"), line.record()
        for column in COLUMNS:
            value = record[column.name]
            cell = _text(row, "td", column.cell(record), **_kind(column.is_number))
            if column.is_long:
                _let_break(cell)
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
        _text(foot, "td", shown.get(column.name, ""), **_kind(column.is_number))


def _let_break(cell: Element) -> None:
    """Let a long text go on in another line, after a comma if it can."""
    cell.set("class", "long")
    first, *rest = re.split(r"(?<=,)(?=\S)", cell.text or "")
    cell.text = first
    for part in rest:
        SubElement(cell, "wbr").tail = part


def _kind(is_number: bool) -> dict[str, str]:
    return {"class": "number"} if is_number else {}


def _text(parent: Element, tag: str, text: str = "", **attributes: str) -> Element:
    made = SubElement(parent, tag, attributes)
    made.text = text
    return made


def _asset(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
