"""The chart of networks: what it draws of which runs, that it can be read, and that the pages are current."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from bench import chart
from bench.peers import CPUCONV, OWN_F32
from support.pages import html_pages

SVG = "{http://www.w3.org/2000/svg}"


def run(precision: str, threads: int = 1, cpu: str = "CPU, two cores", **seconds: list[float]) -> dict:
    """A run of ResNet-50 and another network, by the medians of engines."""
    engines = {key.replace("_", "-"): each for key, each in seconds.items()}
    lines = [
        {
            "label": label,
            "engines": {
                key: {"median": each[place], "best": each[place], "error": 0.0} for key, each in engines.items()
            },
            "without": {"mnn": "wrong"},
            "best_peer": None,
            "ratio": {"median": 2.0, "best": 2.0},
            "notes": [],
        }
        for place, label in enumerate(("resnet50", "other"))
    ]
    names = {key: {"name": key.title(), "version": "1"} for key in engines} | {"mnn": {"name": "MNN", "version": "1"}}
    told = {"cpu": cpu, "threads": threads, "batch": 1, "precision": precision, "strategy": "cached"}
    mean = {"median": 2.0, "best": 2.0}
    return told | {"engines": names, "geomean": mean, "worst": mean, "lines": lines}


FLOAT32 = run("float32", cpuconv=[0.010, 1.0], onnxruntime=[0.020, 1.0])
BF16 = run("bf16", own_fp32=[0.012, 1.0], cpuconv=[0.004, 0.5], openvino=[0.006, 0.25])
DEFAULT = run("default", cpuconv=[0.010, 1.0], openvino=[0.005, 0.5])


def texts(drawing: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(drawing).iter(f"{SVG}text")]


def test_bars_are_as_long_as_their_times():
    drawing = chart.svg([FLOAT32, BF16])
    bars = [float(each.get("width", 0)) for each in ElementTree.fromstring(drawing).iter(f"{SVG}rect")][1:]
    assert bars == pytest.approx([bars[1] * share for share in (0.5, 1.0, 0.2, 0.3)], abs=0.1)
    labels = [
        "cpuconv",
        "10",
        "ONNX Runtime",
        "20",
        "MNN",
        "wrong result",
        "cpuconv, bfloat16",
        "4",
        "OpenVINO, default",
        "6",
    ]
    assert texts(drawing)[2:] == ["ResNet-50", *labels]


def test_what_engines_do_unasked_is_drawn_where_it_was_measured():
    assert texts(chart.svg([FLOAT32, BF16, DEFAULT]))[-2:] == ["OpenVINO, default", "5"]
    assert "bfloat16" not in "".join(texts(chart.svg([FLOAT32])))


def test_the_summary_says_how_defaults_compare():
    assert "2.00 times as fast as cpuconv" in chart.summary([FLOAT32, BF16, DEFAULT], "")
    assert "2.83 times as fast as cpuconv" in chart.summary([FLOAT32, BF16], "")  # 12 / 6 and 1 / 0.25
    assert "0.87 times as fast as OpenVINO" in chart.summary([FLOAT32, BF16], "")  # 6 / 4 and 0.25 / 0.5
    assert "default" not in chart.summary([FLOAT32], "")


def test_runs_of_one_cpu_and_one_image_are_kept():
    (kept,) = chart.reduced([FLOAT32], cpu="Named")
    assert kept["cpu"] == "Named" and kept["lines"][0]["engines"][CPUCONV] == {"median": 0.01, "best": 0.01}
    assert OWN_F32 in chart.reduced([BF16])[0]["engines"]
    with pytest.raises(SystemExit, match="One CPU a chart, not 2"):
        chart.reduced([FLOAT32, run("bf16", cpu="Another", cpuconv=[1.0, 1.0])])
    with pytest.raises(SystemExit, match="--batch 1"):
        chart.reduced([FLOAT32 | {"batch": 8}])


def test_the_pages_and_the_chart_are_current():
    for path, text in chart.pages(chart.stored(chart.FIGURES), chart.stored(chart.RECENT_FIGURES)).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m bench.chart"


@html_pages.needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_the_chart_is_read_on_a_phone(tmp_path, dark):
    """Texts stay within the drawing and on their own rows at 360 pixels, and stand out from the paper."""
    with html_pages.shown(
        tmp_path, f"<meta name=viewport content='width=device-width'>{chart.CHART.read_text()}"
    ) as at:
        window, address = at
        window.open(address, 360, 900, dark=dark)
        boxes = window.evaluate(
            "[...document.querySelectorAll('svg text, svg rect:not(.paper)')].map(e => {"
            "const b = e.getBBox(); return [e.tagName, b.x, b.x + b.width]})"
        )
        colours = window.evaluate(
            "['text', '.paper'].map(s => getComputedStyle(document.querySelector(`svg ${s}`)).fill)"
        )
        sizes = window.evaluate(
            "[...document.querySelectorAll('text')].map(e => parseFloat(getComputedStyle(e).fontSize))"
        )
    assert len(boxes) > 20 and all(left >= 0 and right <= chart.WIDTH for _, left, right in boxes)
    for place, (tag, left, right) in enumerate(boxes):  # a bar is between its label and its figure
        assert tag == "text" or boxes[place - 1][2] <= left < right <= boxes[place + 1][1]
    ink, paper = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]
    assert (ink > paper) == dark and abs(ink - paper) > 400
    assert min(sizes) >= 11


def test_runs_of_some_recent_networks_are_merged_with_those_stored():
    def recent(**seconds: float) -> dict:
        made = run("float32", cpuconv=[0.01, 0.01])
        lines = [
            dict(made["lines"][0], label=name, ratio={"median": each, "best": each}) for name, each in seconds.items()
        ]
        return made | {"lines": lines, "geomean": None}

    (found,) = chart.merged([recent(yolov8n=1.0, swin_tiny=2.0), recent(yolo11n=4.0, yolov8n=8.0)])
    assert [line["label"] for line in found["lines"]] == ["yolov8n", "yolo11n", "swin_tiny"]
    assert found["geomean"]["median"] == pytest.approx(4.0) and found["worst"]["median"] == 2.0


def test_the_page_of_recent_networks_is_current():
    runs = chart.stored(chart.RECENT_FIGURES)
    assert chart.RECENT_PAGE.read_text(encoding="utf-8") == chart.replaced(
        chart.RECENT_PAGE, chart.tables(runs), chart.MARKS
    )
