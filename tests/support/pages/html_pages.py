"""What every HTML page must be: closed in itself, safe with hostile names, readable on every screen."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support.pages import browser

HOSTILE = "<script>document.title = 'taken'</script>&\"'</style>"
PHONE, DESKTOP = (390, 844), (1200, 900)
_PNG = b"\x89PNG\r\n\x1a\n"
_PROGRAM = browser.find()

needs_browser = pytest.mark.skipif(
    _PROGRAM is None or os.name != "posix", reason=f"no browser: none of {', '.join(browser.NAMES)} is on the path"
)


class Parts(HTMLParser):
    """The tags of a page in order; `open` has those that were not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes) -> None:
        self.tags.append((tag, dict(attributes)))
        self.open += [] if tag in ("meta", "wbr") else [tag]

    def handle_startendtag(self, tag, attributes) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def check_safe(text: str) -> list[str]:
    """See that a page loads nothing, and that nothing is injected; the names of its tags."""
    parts = Parts()
    parts.feed(text)
    assert parts.open == []
    for _, attributes in parts.tags:
        assert not {"src", "style", "onload", "onclick"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    (policy,) = (found["content"] for _, found in parts.tags if "http-equiv" in found)
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert not re.search(r"url\(|@import|https?:", text)
    return [tag for tag, _ in parts.tags]


@contextmanager
def shown(folder: Path, text: str) -> Iterator[tuple[browser.Browser, str]]:
    """A browser, and the address of a page in an empty folder."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    (folder / "profile").mkdir()
    window = browser.Browser(_PROGRAM, folder / "profile")
    yield window, file.as_uri()
    window.close()


def check_readable(window: browser.Browser, address: str, size: tuple[int, int], *, dark: bool) -> None:
    """Show a page, and see that it fits the screen and that its text stands out."""
    window.open("about:blank", *size, dark=dark)
    blank = window.screenshot()
    window.open(address, *size, dark=dark)
    picture = window.screenshot()
    assert picture.startswith(_PNG) and struct.unpack(">II", picture[16:24]) == size
    assert len(picture) > 4 * len(blank)
    assert window.evaluate("document.documentElement.scrollWidth") <= size[0]
    ink, paper = window.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
    assert (brightness[0] > brightness[1]) == dark and abs(brightness[0] - brightness[1]) > 400
