"""The site that MkDocs builds: pages fit a desk and a phone, load nothing from elsewhere, and highlight code."""

from __future__ import annotations

import functools
import http.server
import inspect
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import cpuconv
from support.pages import browser, html_pages
from support.running.processes import ROOT

DESKTOP, PHONE = 1400, 400  # pixels
SLACK = 4  # pixels that the padding of inline code may pass a line's end
WIDE = """[...document.querySelectorAll('article :is(pre > code, table, .md-typeset__scrollwrap, img)')]
    .filter(each => each.clientWidth && each.scrollWidth > each.clientWidth + %d)
    .map(each => each.textContent.trim().slice(0, 60))"""
BEYOND = """[...document.querySelectorAll('article :is(p, li, h1, h2, h3, h4, pre, img)')]
    .filter(each => !each.closest('.md-typeset__scrollwrap'))
    .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(each => each.textContent.trim().slice(0, 60))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages, built as `make docs` does."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def pages(site: Path) -> list[str]:
    """The pages for users, by their paths in the site."""
    found = (page.parent.relative_to(site).as_posix() for page in sorted(site.rglob("index.html")))
    return [path for path in found if not path.startswith("decisions")]


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_code_is_highlighted_and_copied(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    assert '"content.code.copy"' in home and 'class="highlight"' in home
    assert home.count('<span class="k') > 2 and "networks.svg" in home


def test_pages_load_nothing_from_elsewhere(site):
    for path in pages(site):
        text = (site / path / "index.html").read_text(encoding="utf-8")
        loaded = re.findall(
            r'<(?:script|img|source|iframe)[^>]* src="([^"]+)"|<link[^>]* rel="stylesheet"[^>]* href="([^"]+)"', text
        )
        loaded += re.findall(r'<link[^>]* href="([^"]+)"[^>]* rel="stylesheet"', text)
        flat = ["".join(each) for each in loaded]
        assert flat and [each for each in flat if re.match(r"(https?:)?//", each)] == []


def test_every_parameter_of_conv2d_is_on_the_page_of_the_api(site):
    text = (site / "api" / "index.html").read_text(encoding="utf-8")
    section = text[text.index('id="cpuconv.conv2d"') : text.index('id="cpuconv.plan"')]
    listed = set(re.findall(r"<code>(\w+)</code>", section[section.index("Parameters") :]))
    assert set(inspect.signature(cpuconv.conv2d).parameters) <= listed


@html_pages.needs_browser
def test_nothing_overflows(site, address, tmp_path):
    """No page scrolls sideways, and no code; of tables, wide ones do in a box of their own on a phone."""
    window = browser.Browser(browser.find(), tmp_path)
    overflowing: dict[tuple[str, int], list[str]] = {}
    for path in pages(site):
        window.open(f"{address}/{path}/", DESKTOP, 900)
        for width in (DESKTOP, PHONE):
            window.resize(width, 900)
            assert window.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            wide = window.evaluate(WIDE % SLACK) if width == DESKTOP else []
            wide += window.evaluate(BEYOND)
            wide += window.evaluate(WIDE.replace("table, .md-typeset__scrollwrap, ", "") % SLACK)
            overflowing |= {(path, width): wide} if wide else {}
    window.close()
    assert overflowing == {}
