"""The page of a profile: as text, and in a real browser; the timeline of a run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.pages.browser import Browser
from support.pages.html_pages import DESKTOP, HOSTILE, PHONE, check_readable, check_safe, needs_browser, shown

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from autotune.cli.options import FAILED, OK  # noqa: E402
from cpuconv.cli.main import main  # noqa: E402
from cpuconv.cli.profile_page import COLUMNS, page  # noqa: E402
from cpuconv.network.reports.explain import COPY  # noqa: E402
from cpuconv.network.reports.profile import Profile, ProfileRow  # noqa: E402
from cpuconv.network.reports.timing import Span, Watched  # noqa: E402
from cpuconv.runtime.threads import maximum_threads  # noqa: E402
from support.graphs import parse  # noqa: E402

LONG = "way(" + ",".join(f"parameter_{at}=1000" for at in range(12)) + ")"
ROW = ProfileRow(
    "/features/conv", "Conv", "f32", LONG, "blocked -> blocked", 1e-3, 0.5, 100.0, 10.0, "compute", "FMA", 0.8,
    (1, 64, 56, 56), False,
)  # fmt: skip
ROWS = [
    ROW,
    replace(ROW, name="x" * 200, op=COPY, algorithm="", seconds=2e-4, share=0.1, gflops=None, bound="bandwidth (L2)"),
    replace(ROW, name=HOSTILE, op="Relu", seconds=4e-4, share=0.2, bound="overhead", roof_share=0.05),
    replace(ROW, op="Sinh", algorithm="evaluator", seconds=3e-4, share=0.15, host=True, bound="bandwidth (memory)"),
    replace(ROW, op="Softmax", seconds=1e-4, share=0.05, bound="", roof="", roof_share=None, gflops=None),
]
SPANS = [
    Span(0, 0, 1e-5, 6e-4), Span(0, 1, 5e-5, 5.5e-4), Span(1, 0, 6e-4, 7e-4), Span(2, 0, 7e-4, 9e-4),
    Span(2, 1, 7.1e-4, 8.9e-4), Span(3, 0, 9.2e-4, 1.3e-3), Span(4, 0, 1.3e-3, 1.35e-3),
]  # fmt: skip
PROFILE = Profile(ROWS, 1.4e-3, 2, Watched(1.4e-3, SPANS))
NETWORK = """g (float[1,8,20,20] x) => (float[1,1600] y) <float[16,8,3,3] w, int64[2] s = {1, -1}> {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)
    c = Sinh(b)
    d = Relu(c)
    y = Reshape(d, s)
}"""


def network(folder: Path) -> Path:
    """A network with a node between kernels that a reference computes."""
    model = parse(NETWORK, w=np.random.default_rng(0).normal(size=(16, 8, 3, 3)).astype(np.float32))
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::cpuconv.CpuconvWarning")
@pytest.mark.parametrize("threads", sorted({1, maximum_threads()}))
def test_each_operator_has_its_place_in_a_watched_run(tmp_path, threads):
    made = cpuconv.compile(network(tmp_path), threads=threads, strategy="heuristic")
    x = np.random.default_rng(1).normal(size=(1, 8, 20, 20)).astype(np.float32)
    before = made(x).copy()
    told = made.profile({"x": x}, 3, watch=True)
    watched = told.watched
    assert watched is not None and {span.work for span in watched.spans} == set(range(len(told.rows)))
    assert {span.worker for span in watched.spans} <= set(range(threads))
    assert all(0 <= span.start <= span.end <= watched.seconds for span in watched.spans)
    ends = [max(span.end for span in watched.spans if span.work == at) for at in range(len(told.rows))]
    assert ends == sorted(ends)  # one operator after another
    for worker in range(threads):
        mine = sorted((span.start, span.end) for span in watched.spans if span.worker == worker)
        assert all(first[1] <= second[0] for first, second in zip(mine, mine[1:], strict=False))
    (host,) = (row for row in told.rows if row.host)
    assert (host.op, host.kind, host.shape) == ("Sinh", "reference", (1, 16, 10, 10))
    np.testing.assert_array_equal(made(x), before)
    assert made.profile({"x": x}, 1).watched is None


# --- text -----------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_and_nothing_is_injected():
    names = check_safe(page(HOSTILE, PROFILE))
    assert (names.count("script"), names.count("style"), names.count("table")) == (1, 1, 1)


def test_bars_are_of_the_kind_and_length_of_what_ran():
    text = page("net", PROFILE)
    links = re.findall(r'<a href="#r(\d)" tabindex="(-?\d)"><rect class="(\w+)" x="([\d.]+)%" width="([\d.]+)%"', text)
    assert [(int(work), kind) for work, _, kind, *_ in links] == [
        (0, "compute"), (0, "compute"), (1, "reorder"), (2, "overhead"), (2, "overhead"), (3, "reference"),
        (4, "kernel"),
    ]  # fmt: skip
    assert [tab for _, tab, *_ in links] == ["0", "-1", "0", "0", "-1", "0", "0"]  # the keyboard goes along worker 0
    for span, (*_, start, width) in zip(SPANS, links, strict=True):
        assert float(start) == pytest.approx(100 * span.start / 1.4e-3, abs=1e-3)
        assert float(width) == pytest.approx(100 * (span.end - span.start) / 1.4e-3, abs=1e-3)
    waits = re.findall(r"worker (\d) waits ([\d.]+) µs", text)
    assert waits == [("0", "10.0"), ("0", "20.0"), ("0", "50.0"), ("1", "50.0"), ("1", "160.0"), ("1", "510.0")]
    assert "operators alone, 2.000 ms" in text and "whole run, 1.400 ms" in text
    assert "1, 0.200 ms" in text and "1, 0.300 ms" in text  # reorders, references
    assert "autotune doctor --measure" in text


def test_without_a_watched_run_there_is_no_timeline():
    text = page("net", replace(PROFILE, watched=None, rows=ROWS[:4]))
    assert "Timeline" not in text and 'class="runs"' not in text and "doctor" not in text
    assert text.count("<tr id=") == 4
    assert "<tr id=" not in page("net", Profile([], 0.0, 1, Watched(0.0, [])))


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::cpuconv.CpuconvWarning")
def test_the_command_writes_a_page_beside_what_it_prints(tmp_path, capsys):
    model, file = str(network(tmp_path)), tmp_path / "out.html"
    assert main(["profile", model, "--runs", "1", "--html", str(file), "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert [row["op"] for row in told["rows"] if row["host"]] == ["Sinh"] and told["watched"]["spans"]
    text = file.read_text(encoding="utf-8")
    assert "Profile of net" in text and text.count("<tr id=") == len(told["rows"])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["net.onnx", "out.html"]
    assert main(["profile", model, "--runs", "1", "--html", str(file)]) == OK
    assert "whole run" in capsys.readouterr().out


def test_a_page_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    for wrong in (str(tmp_path), str(tmp_path / "nowhere" / "out.html"), ""):
        with pytest.raises(SystemExit):
            main(["profile", "none.onnx", "--html", wrong])
        said = " ".join(capsys.readouterr().err.split())
        assert "argument --html: must be a file in a folder that exists, not" in said

    def fail(files: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("cpuconv.cli.main.write_whole", fail)
    assert main(["profile", str(network(tmp_path)), "--runs", "1", "--html", str(tmp_path / "out.html")]) == FAILED
    assert "the disk is full" in capsys.readouterr().err and not (tmp_path / "out.html").exists()


# --- a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def window_and_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    """A browser, and the address of the page."""
    with shown(tmp_path_factory.mktemp("profile-page"), page(HOSTILE, PROFILE)) as found:
        yield found


def widths(window: Browser) -> tuple[float, float]:
    found = window.evaluate("(r => [r.getBoundingClientRect().width, r.parentElement.clientWidth])(runs)")
    return found[0], found[1]


@needs_browser
def test_the_timeline_widens_and_tells_what_is_pointed_at(window_and_address):
    window, address = window_and_address
    window.open(address, *DESKTOP)
    window.evaluate("var runs = document.querySelector('.runs'), told = document.querySelector('#told')")
    wide, box = widths(window)
    assert wide == pytest.approx(box, abs=1)
    for _ in range(2):
        window.click("[data-zoom=in]")
    assert widths(window)[0] == pytest.approx(4 * box, abs=4)
    for _ in range(3):
        window.click("[data-zoom=out]")
    assert widths(window)[0] == pytest.approx(box, abs=1)  # no narrower
    place = window.evaluate("runs.querySelectorAll('a')[3].getBoundingClientRect().toJSON()")
    middle = {"x": place["x"] + place["width"] / 2, "y": place["y"] + place["height"] / 2}
    window.do("Input.dispatchMouseEvent", type="mouseMoved", **middle)
    assert window.evaluate("told.textContent").startswith(f"{HOSTILE} · Relu")
    window.evaluate("runs.querySelectorAll('a')[5].focus()")
    assert window.evaluate("told.textContent").endswith("on worker 0, from 920.0 µs")
    window.press("Enter", 13, "\r")
    assert window.evaluate("location.hash") == "#r3"
    assert window.evaluate("document.querySelector('tr:target td').textContent") == ROWS[3].name
    assert not window.said


@needs_browser
def test_clicks_sort_operators(window_and_address):
    window, address = window_and_address
    window.open(address, *DESKTOP)
    titles = [title for title, _ in COLUMNS]
    for title, expected in (("µs", ["100.0", "200.0", "300.0", "400.0", "1000.0"]), ("#", list("12345"))):
        place = titles.index(title) + 1
        window.click(f"thead th:nth-child({place}) button")
        cells = f"document.querySelectorAll('tbody td:nth-child({place})')"
        assert window.evaluate(f"[...{cells}].map(cell => cell.textContent)") == expected


@needs_browser
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_readable_on_every_screen(window_and_address, size, dark):
    window, address = window_and_address
    check_readable(window, address, size, dark=dark)
    if folder := os.environ.get("CPUCONV_PICTURES"):  # to be looked at
        (Path(folder) / f"profile-{size[0]}-{'dark' if dark else 'light'}.png").write_bytes(
            window.screenshot(whole=True)
        )
    fills = window.evaluate("[...document.querySelectorAll('.runs rect')].map(r => getComputedStyle(r).fill)")
    assert len(set(fills)) == 6 and "rgb(0, 0, 0)" not in fills  # a colour for each kind, and one for waiting
    assert not window.said
