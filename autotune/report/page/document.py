"""Self-contained HTML page: an element tree, serialised by the standard library, so that all text is escaped.

A content security policy with the hashes of its one script and one style blocks all others. The style supports light
and dark screens of any size; the script sorts tables.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from xml.etree.ElementTree import Element, SubElement, tostring


def document(title: str, main: Element, style: str = "", script: str = "") -> str:
    """Return the HTML document; `style` and `script` are appended to the common ones."""
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
    """Add an element with this text."""
    made = SubElement(parent, tag, attributes)
    made.text = content
    return made


def facts(parent: Element, pairs: Sequence[tuple[str, str]]) -> None:
    """Add a list of titles with their values."""
    listed = SubElement(parent, "dl", {"class": "facts"})
    for title, value in pairs:
        pair = SubElement(listed, "div")
        text(pair, "dt", title)
        text(pair, "dd", value)


def sortable(parent: Element, title: str, heads: Sequence[tuple[str, bool]]) -> tuple[Element, Element]:
    """Add a table in its own scrolling box; return it and its body. `heads` has titles and whether they are numeric.

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
    """Allow line breaks in a long text, after commas if it has any."""
    cell.set("class", "long")
    first, *rest = re.split(r"(?<=,)(?=\S)", cell.text or "")
    cell.text = first
    for part in rest:
        SubElement(cell, "wbr").tail = part


def of_column(is_number: bool) -> dict[str, str]:
    """Return the class attribute of a column's cells."""
    return {"class": "number"} if is_number else {}


def asset(package: str, name: str) -> str:
    """Return the text of a data file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
