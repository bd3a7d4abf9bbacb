"""The benchmark's report: its tables, and the pages that hold them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_fakes import ROOFS, SMALL, result_of, run_of

from bench import report
from bench.peers import OURS

ROOT = Path(__file__).resolve().parents[1]


def test_report_has_every_line_and_names_the_slow_ones():
    results = [
        result_of("a:fast", cpuconv=[[1.0], [1.0]], torch=[[2.0], [2.0]]),
        result_of("a:slow", cpuconv=[[2.0], [2.0]], torch=[[1.0], [1.0]]),
        result_of("a:lost", torch=[[1.0], [1.0]]),
    ]
    results[2].runs[0].notes.append("Cpuconv failed: boom")
    run = run_of(OURS, "torch")
    text = report.markdown(results, run)
    assert "| a:fast " in text and "2.00 (2.00)" in text and "| all " in text
    assert "Below 1.0 (1 of 3): a:slow 0.50 (0.50) Torch." in text
    assert "Left out: a:lost: Cpuconv failed: boom." in text
    data = json.loads(json.dumps(report.to_dict(results, run)))
    assert data["geomean"]["Torch"] == {"median": pytest.approx(1.0), "best": pytest.approx(1.0)}
    assert data["lines"][0]["engines"]["torch"]["round_medians"] == [2.0, 2.0]
    assert data["lines"][2]["ratios"] == {} and data["lines"][2]["best_peer"] is None
    assert data["lines"][1]["best_peer"] == {"name": "Torch", "ratio": 0.5}


def test_report_tells_the_roof_that_binds():
    ours = {"algorithm": "direct(v=1,rows=1,cols=6,block=6)", "roofs": ROOFS}
    flops = SMALL.flops * 1e-11  # seconds at the peak
    results = [result_of("a:half", cpuconv=[[2 * flops]], torch=[[4 * flops]], **ours),
               result_of("a:above", cpuconv=[[flops / 2]], torch=[[flops]], **ours)]  # fmt: skip
    data = report.to_dict(results, run_of(OURS, "torch"))
    rows = [[cell.strip() for cell in row.split("|")] for row in report.roofs_table(data).splitlines()]
    assert rows[2][1:9] == ["a:half", "`direct(v=1,rows=1,cols=6,block=6)`", "", "0.000", "FMA", "50%", "2.00", ""]
    assert rows[0][-2] == "÷ Torch" and rows[3][6] == "200%"
    text = report.roofs_text(data)
    assert "FMA 100 GFLOP/s, L2 50 GB/s, memory 10 GB/s" in text and "busy while they were measured: a:above" in text
    assert text in report.markdown(results, run_of(OURS, "torch"))
    assert json.loads(json.dumps(data))["roofs"] == [ROOFS.to_dict()]


def test_what_is_between_the_markers_is_replaced(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    assert report.replaced(readme, "\nnew\n\n") == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"


@pytest.mark.parametrize("text", ["", report.BEGIN, report.END + report.BEGIN, 2 * (report.BEGIN + report.END)])
def test_a_page_without_its_markers_is_refused(tmp_path, text):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(ValueError, match="must hold"):
        report.replaced(readme, "new")


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_pages_have_their_markers(page):
    text = (ROOT / page).read_text()
    assert text.count(report.BEGIN) == text.count(report.END) == 1
