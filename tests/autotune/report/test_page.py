"""The HTML page: as text, and in a real browser."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.machine.roofline import Level, Roofs, Work
from autotune.report.page import page
from autotune.report.page.plot import Axis
from autotune.report.table_rows import COLUMNS, ProblemRow, Section
from autotune.report.tables import FORMATS, render
from autotune.store.store import Row, Use
from support.pages.browser import Browser
from support.pages.html_pages import DESKTOP, HOSTILE, PHONE, check_readable, check_safe, needs_browser, shown

ABOUT = "3→64 7x7/2 @224x224"
US = 1e-6
LEVELS = (Level("L1", 3e4, 270.0), Level("L2", 1e6, 100.0), Level("L3", 3e7, 18.0), Level("memory", math.inf, 11.0))
ROOFS = Roofs(150.0, 150.0, LEVELS)
DEVICE = {
    "key": "0123456789abcdef",
    "model": "A CPU <b>",
    "isa": "avx512",
    "cores": 2,
    "cpu_name": "some-cpu",
    "caches": {"L1d": 32 << 10},
    "numpy": "2.0",
    "roofs": {"1": {"measured": 1.7e9}},
}


def line(
    label: str, micro: float, count: int, work: Work | None, roofs: Roofs | None = ROOFS, network="net"
) -> ProblemRow:
    use = Use(network, 1, "auto,auto", label, f"shape of {label} " + "x" * 60, count, 2e6)
    way = f"way({label},first_parameter=1000,second_parameter=1000,third_parameter=1000,fourth=2)"
    row = Row("d", use.problem, way, "s", "ok", median=micro * US, spread=US, count=5, score=micro * US)
    return ProblemRow(use, row, work, roofs, summary=ABOUT)


LINES = [
    line("middle", 100.0, 3, Work(1e6, 10_000, 20_000, 10_000)),
    line("slow", 1000.5, 1, Work(1e8, 400_000, 200_000, 400_000)),
    line("fast", 9.5, 20, Work(1e6, 10_000, 20_000, 10_000)),
    line("unknown", 50.0, 2, None),
    line(HOSTILE, 60.0, 1, Work(1e6, 300_000, 20_000, 10_000)),
    line("other", 60.0, 1, Work(1e6, 300_000, 20_000, 10_000), network=HOSTILE),
]
SECTION = Section(DEVICE, LINES)


def test_nothing_is_loaded_and_nothing_is_injected():
    names = check_safe(page([SECTION]))
    assert (names.count("script"), names.count("style"), names.count("b")) == (1, 1, 0)
    assert (names.count("table"), names.count("figure")) == (2, 2)
    assert names.count("svg") == 2 + 2 + 1  # the plots, and the signs of what binds lines in the one and in the other


def test_each_point_leads_to_its_line():
    text = page([SECTION])
    links, rows = re.findall(r'<a href="#(\w+)"', text), re.findall(r'<tr id="(\w+)"', text)
    assert sorted(links) == sorted(set(rows) - {"d0n0r3"})  # whose work is not known
    assert links[0] == "d0n0r1"  # what takes the most time, under the others
    assert (
        f"slow · {ABOUT}: 2.0 GFLOP/s (100.0 GFLOP/s executed, 100 FLOP/byte); 67% of the FMA roof, bound by compute"
        in text
    )


def test_each_data_type_has_its_peak():
    roofs = replace(ROOFS, peaks=(("int8", 4 * ROOFS.fma_gflops), ("vpdpbusd", 3 * ROOFS.fma_gflops)))
    low = line("low", 100.0, 1, Work(2e7, 10_000, 20_000, 10_000, "int8"), roofs)
    text = page([Section(DEVICE, [line("a", 100.0, 1, LINES[0].work, roofs), low])])
    assert f"FMA {ROOFS.fma_gflops:.0f} GFLOP/s" in text and f"int8 {4 * ROOFS.fma_gflops:.0f} GFLOP/s" in text
    assert "vpdpbusd" not in text
    assert low.verdict is not None and low.verdict.roof == "FMA" and low.verdict.share == pytest.approx(1 / 3)
    assert replace(low, roofs=ROOFS).verdict is None  # measured by an older version


def test_without_roofs_there_is_no_plot():
    text = page([Section({**DEVICE, "roofs": {}}, [line("a", 10.0, 1, LINES[0].work, None)])])
    assert "<svg" not in text and "autotune doctor --measure" in text and "What helps" not in text


def test_the_same_figures_in_every_format():
    for name in FORMATS:
        text = render([SECTION], name)
        share, time = ("0.66", "1000.") if name in ("csv", "json") else ("67%", "1000.5")
        assert share in text and time in text and "middle" in text


def test_axes_have_ticks():
    for low, high, expected in ((1.5, 80.0, [1, 2, 5, 10, 20, 50, 100]), (0.15, 600.0, [0.1, 1, 10, 100])):
        axis = Axis([low, high], 0.0, 100.0)
        assert list(axis.ticks()) == pytest.approx(expected)
        assert axis.at(axis.low) == 0.0 and axis.at(axis.high) == pytest.approx(100.0)


@pytest.fixture(scope="module")
def window_and_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    """A browser, and the address of the page."""
    with shown(tmp_path_factory.mktemp("page"), page([SECTION])) as found:
        yield found


def column(window: Browser, place: int) -> list[str]:
    cells = f"document.querySelectorAll('table')[0].querySelectorAll('tbody td:nth-child({place + 1})')"
    return window.evaluate(f"[...{cells}].map(cell => cell.textContent)")


@needs_browser
def test_clicks_sort_by_a_column(window_and_address):
    window, address = window_and_address
    window.open(address, *DESKTOP)
    titles = [each.title for each in COLUMNS]
    time, share, problem = (titles.index(name) for name in ("time µs", "of roof", "problem"))
    head = "thead th:nth-child({})"
    order = ["9.5", "50.0", "60.0", "100.0", "1000.5"]
    assert column(window, time) == ["100.0", "1000.5", "9.5", "50.0", "60.0"]
    for expected, said in ((order, "ascending"), (order[::-1], "descending"), (order, "ascending")):
        window.click(f"{head.format(time + 1)} button")
        assert column(window, time) == expected
        sorts = window.evaluate(
            "[...document.querySelectorAll('table')[0].querySelectorAll('th')].map(h => h.ariaSort)"
        )
        assert sorts == [said if place == time else "none" for place in range(len(titles))]
    # By the keyboard; what is unknown is last, whatever the order.
    window.evaluate(f"document.querySelector('{head.format(share + 1)} button').focus()")
    for _ in range(2):
        window.press("Enter", 13, "\r")
        found = column(window, share)
        assert found[-1] == ""
    assert found[:-1] == sorted(found[:-1], key=lambda text: -int(text[:-1]))
    window.click(f"{head.format(problem + 1)} button")
    assert column(window, problem)[1:] == [f"{name} · {ABOUT}" for name in ("fast", "middle", "slow", "unknown")]
    assert window.evaluate("document.querySelector('tfoot td').textContent") == "total"
    assert not window.said


@needs_browser
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_readable_on_every_screen(window_and_address, size, dark):
    window, address = window_and_address
    check_readable(window, address, size, dark=dark)
    assert window.evaluate("document.title").startswith("A CPU <b>")
    inner = "(box => [box.scrollWidth, box.clientWidth])(document.querySelector('.scroll'))"
    wide, visible = window.evaluate(inner)
    assert wide > visible  # the table scrolls in its own box
    # A long name of an algorithm takes several lines, and its column no more than part of the screen.
    place = [each.title for each in COLUMNS].index("algorithm")
    cell = f"document.querySelector('tbody td:nth-child({place + 1})')"
    box = window.evaluate(f"{cell}.getBoundingClientRect().toJSON()")
    assert box["width"] < size[0] and (size == PHONE or box["right"] <= size[0])
    assert window.evaluate(f"{cell}.scrollWidth <= {cell}.clientWidth")
    assert window.evaluate(f"{cell}.textContent") == LINES[0].row.candidate
    # Letters of the plot in pixels of the screen, and nothing of it outside.
    plot = window.evaluate("document.querySelector('.plot').getBoundingClientRect().toJSON()")
    texts = "document.querySelector('.plot').querySelectorAll('text')"
    for box in window.evaluate(f"[...{texts}].map(each => each.getBoundingClientRect().toJSON())"):
        assert box["height"] >= 11
        assert plot["left"] <= box["left"] and box["right"] <= plot["right"]
        assert plot["top"] <= box["top"] and box["bottom"] <= plot["bottom"]
    assert not window.said


@needs_browser
def test_a_point_shows_its_line(window_and_address):
    window, address = window_and_address
    window.open(address, *DESKTOP)
    window.evaluate("document.querySelector('.plot a[href=\"#d0n0r1\"]').dispatchEvent(new MouseEvent('click'))")
    assert window.evaluate("document.querySelector('tr:target td').textContent") == f"slow · {ABOUT}"
    assert (
        window.evaluate("getComputedStyle(document.querySelector('tr:target td')).backgroundColor")
        != "rgb(255, 255, 255)"
    )
