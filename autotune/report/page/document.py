"""A page that loads nothing: a tree of elements, written by the standard library, so that all text is escaped.

A content policy that names its one script and its one style by their hashes keeps any other from running. The style is
for light and dark screens of any size; the script sorts tables.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from xml.etree.ElementTree import Element, SubElement, tostring


def document(title: str, main: Element, style: str = "", script: str = "") -> str:
    """The whole HTML document; `style` and `script` go behind those of every page."""
    style, script = asset(__package__, "page.css") + style, asset(__package__, "page.js") + script
    root = Element("html", lang="en")
    head, body = SubElement(root, "head"), SubElement(root, "body")
    policy = f"default-src 'none'; base-uri 'none'; script-src {_hash(script)}; style-src {_hash(style)}"
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": policy})
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "meta", {"name": "color-scheme", "content": "light dark"})
    text(head, "title", title)
    text(head, "style", style)
    body.append(main)
    text(body, "script", script)
    return f"<!doctype html>\n{tostring(root, encoding='unicode', method='html')}\n"


def text(parent: Element, tag: str, content: str = "", **attributes: str) -> Element:
    """A new element with this text."""
    made = SubElement(parent, tag, attributes)
    made.text = content
    return made


def facts(parent: Element, pairs: Sequence[tuple[str, str]]) -> None:
    """Titles with what belongs to them, side by side."""
    listed = SubElement(parent, "dl", {"class": "facts"})
    for title, value in pairs:
        pair = SubElement(listed, "div")
        text(pair, "dt", title)
        text(pair, "dd", value)


def sortable(parent: Element, title: str, heads: Sequence[tuple[str, bool]]) -> tuple[Element, Element]:
    """A table in a box of its own that scrolls, and its body; `heads` says which columns are numbers.

    Cells sort by their attribute ``data-value``.
    """
    scroll = SubElement(parent, "div", {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": title})
    table = SubElement(scroll, "table")
    row = SubElement(SubElement(table, "thead"), "tr")
    for name, is_number in heads:
        head = SubElement(row, "th", {"scope": "col", "aria-sort": "none", **of_column(is_number)})
        text(head, "button", name, type="button")
    return table, SubElement(table, "tbody")


def let_break(cell: Element) -> None:
    """Let a long text go on in another line, after a comma if it can."""
    cell.set("class", "long")
    first, *rest = re.split(r"(?<=,)(?=\S)", cell.text or "")
    cell.text = first
    for part in rest:
        SubElement(cell, "wbr").tail = part


def of_column(is_number: bool) -> dict[str, str]:
    """The class of a column's cells."""
    return {"class": "number"} if is_number else {}


def asset(package: str, name: str) -> str:
    """The text of a file beside a package's modules."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
