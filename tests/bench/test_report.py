"""The benchmark's report: its tables, the pages that hold them, and the roofs as they are measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from autotune.machine.roofline import FMA
from bench import report, roofs
from bench.peers import CPUCONV
from bench.results import LineResult
from support.running.processes import ROOT
from support.tuner.bench_fakes import LINE, ROOFS, SMALL, measurement, result_of, run_of

DIRECT = "direct(v=1,rows=1,cols=6,block=6)"


def test_report_has_every_line_and_names_the_slow_ones():
    results = [
        result_of("a:fast", cpuconv=[[1.0], [1.0]], torch=[[2.0], [2.0]]),
        result_of("a:slow", cpuconv=[[2.0], [2.0]], torch=[[1.0], [1.0]]),
        result_of("a:lost", torch=[[1.0], [1.0]]),
    ]
    results[2].runs[0].notes.append("Cpuconv failed: boom")
    run = run_of(CPUCONV, "torch")
    text = report.markdown(results, run)
    assert "| a:fast " in text and "2.00 (2.00)" in text and "| all " in text
    assert "Below 1.0 (1 of 3): a:slow 0.50 Torch." in text
    assert "Left out: a:lost: Cpuconv failed: boom." in text
    data = json.loads(json.dumps(report.to_dict(results, run)))
    assert data["geomean"]["Torch"] == {"median": pytest.approx(1.0), "best": pytest.approx(1.0)}
    assert data["lines"][0]["engines"]["torch"]["round_medians"] == [2.0, 2.0]
    assert data["lines"][2]["ratios"] == {} and data["lines"][2]["best_peer"] is None
    assert data["lines"][1]["best_peer"] == {"name": "Torch", "ratio": 0.5}
    assert text.startswith(report.summary(data).partition("Below")[0])


def test_families_have_a_row_each():
    depthwise = replace(SMALL, c=8, groups=8)
    results = [
        result_of("a:1", cpuconv=[[1.0]], torch=[[4.0]], mnn=[[1.0]]),
        result_of("a:2", cpuconv=[[1.0]], torch=[[1.0]]),
        result_of("a:3", depthwise, cpuconv=[[2.0]], torch=[[1.0]], mnn=[[8.0]]),
    ]
    data = json.loads(json.dumps(report.to_dict(results, run_of(CPUCONV, "torch", "mnn", groups=("all-five",)))))
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in report.families_table(data).splitlines()]
    assert rows[0] == ["lines", "count", "÷ best of all", "÷ Torch", "÷ Mnn"]
    assert [row[:2] for row in rows[2:]] == [["all", "3"], ["first layer", "2"], ["depthwise", "1"]]
    assert rows[3][2:] == ["1.00 (1.00)", "2.00 (2.00)", "1.00 (1.00)"]
    assert rows[4][2:] == ["0.50 (0.50)", "0.50 (0.50)", "4.00 (4.00)"]
    assert "a:1" not in report.summary(data) and "Below 1.0 (1 of 3): a:3 0.50 Torch." in report.summary(data)


def test_report_tells_the_roof_that_binds():
    ours = {"algorithm": DIRECT, "roofs": ROOFS}
    flops = SMALL.flops * 1e-11  # seconds at the peak
    results = [result_of("a:half", cpuconv=[[2 * flops]], torch=[[4 * flops]], **ours),
               result_of("a:above", cpuconv=[[flops / 2]], torch=[[flops]], **ours)]  # fmt: skip
    data = report.to_dict(results, run_of(CPUCONV, "torch"))
    rows = [[cell.strip() for cell in row.split("|")] for row in report.roofs_table(data).splitlines()]
    assert rows[2][1:9] == ["a:half", f"`{DIRECT}`", "", "0.000", "FMA", "50%", "2.00", ""]
    assert rows[0][-2] == "÷ Torch" and rows[3][6] == "200%"
    text = report.roofs_text(data)
    assert "FMA 100 GFLOP/s, L2 50 GB/s, memory 10 GB/s" in text and "busy while they were measured: a:above" in text
    assert text in report.markdown(results, run_of(CPUCONV, "torch"))
    assert json.loads(json.dumps(data))["roofs"] == [ROOFS.to_dict()]
    lines = report.lines_table(data).splitlines()
    assert "| FMA 50% " in lines[2] and "| FMA 200% " in lines[3]


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


@pytest.mark.parametrize(
    "page", ["docs/performance.md", "docs/performance/convolutions.md", "docs/performance/tables.md"]
)
def test_pages_have_their_markers(page):
    text = (ROOT / page).read_text()
    assert text.count(report.BEGIN) == text.count(report.END) == 1


def test_shares_of_a_line_are_medians_over_runs_and_the_largest_binds():
    seconds = SMALL.flops / 100e9  # at the peak
    runs = [measurement(ROOFS, DIRECT, cpuconv=[[factor * seconds]]) for factor in (2.0, 4.0, 10.0)]
    found = LineResult(LINE, runs).shares()
    assert next(iter(found)) == FMA and found[FMA] == pytest.approx(0.25)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert LineResult(LINE, [measurement(None, DIRECT, cpuconv=[[1.0]])]).shares() == {}
    assert LineResult(LINE, [measurement(ROOFS, torch=[[1.0]])]).shares() == {}


def test_measured_roofs():
    found = roofs.measure(1)
    assert found.fma_gflops > 0 and found.store_gbs > 0 and found.levels[-1].name == "memory"
    assert all(level.gbs > 0 for level in found.levels)
    sizes = [level.size for level in found.levels]
    assert sizes == sorted(sizes) and math.isinf(sizes[-1])
