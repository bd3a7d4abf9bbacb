"""What reports of networks print and show in notebooks, and one definition of shares of roofs for all of them."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import cpuconv
from autotune.machine.roofline import Level, Roofs, classify
from baselib.screen import Report
from cpuconv.conv.least_work import work_of
from cpuconv.network.reports import profile as profiling
from cpuconv.network.reports.profile import Profile
from support.graphs import parse

WEIGHTS = ", ".join(str(at % 7 - 3) for at in range(32 * 32 * 9))
NET = f"""g (float[1,32,28,28] x) => (float[1,32,28,28] y) <float[32,32,3,3] w = {{{WEIGHTS}}}> {{
    c = Conv<pads = [1, 1, 1, 1]>(x, w)
    y = Relu(c)
}}"""
ROOFS = Roofs(100.0, 50.0, (Level("L1", 1e5, 400.0), Level("memory", float("inf"), 20.0)))


@pytest.fixture(scope="module")
def shown() -> tuple[cpuconv.Model, Profile]:
    """A network of one convolution, and its profile under known roofs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiling, "roofs", lambda threads: ROOFS)
        model = cpuconv.compile(parse(NET, 17), threads=1, strategy="heuristic")
        return model, model.profile({"x": np.zeros((1, 32, 28, 28), np.float32)}, 2)


def test_a_share_counts_what_the_algorithm_executes(shown: tuple[cpuconv.Model, Profile]) -> None:
    model, profile = shown
    (row,) = (row for row in profile.rows if row.op == "Conv")
    problems = [
        node.node_plan.offer.detail.problem
        for node in model._programs.last.executable.operations
        if hasattr(node.node_plan.offer.detail, "problem")
    ]
    work = work_of(problems[0], row.algorithm)
    assert work is not None
    assert row.roof_share == pytest.approx(classify(work, ROOFS, row.seconds).share)
    assert row.gflops == pytest.approx(problems[0].flops / row.seconds * 1e-9)  # of the direct sum


def test_winograd_stays_below_the_roof_where_the_direct_sum_is_above() -> None:
    problem = cpuconv.ConvProblem.parse("g1mb1ic64ih56iw56oc64oh56ow56kh3kw3sh1sw1ph1pw1dh0dw0")
    name = "winograd(rows=5,cols=5,v=2,n=11,block=121,chunk=1)"
    detail = SimpleNamespace(problem=problem, flops=problem.flops, choice=SimpleNamespace(candidate=name))
    plan = SimpleNamespace(offer=SimpleNamespace(detail=detail))
    node = SimpleNamespace(node_plan=plan, inputs=problem.in_bytes, weights=4, outputs=problem.out_bytes)
    work = profiling._least_work(node)
    assert work == work_of(problem, name) and work.flops < problem.flops / 2
    seconds = work.flops / 80e9
    share = classify(work, ROOFS, seconds).share
    assert share == pytest.approx(0.8) and problem.flops / seconds > 1.6 * 100e9


def test_profiles_say_when_roofs_were_measured_on_a_busy_machine(shown: tuple[cpuconv.Model, Profile]) -> None:
    _, profile = shown
    low = replace(profile, rows=[replace(row, roof_share=0.9) for row in profile.rows])
    high = replace(profile, rows=[replace(row, roof_share=2.19) for row in profile.rows])
    assert low.note is None and "busy" not in low.text()
    assert "up to 219% of a roof" in high.text() and "autotune doctor --measure" in high.text()


def test_reports_print_tables_and_show_them_in_notebooks(shown: tuple[cpuconv.Model, Profile]) -> None:
    model, profile = shown
    for report in (model.explain(), profile, cpuconv.explain((1, 8, 9, 9), (8, 8, 3, 3))):
        assert isinstance(report, Report)
        assert repr(report) == str(report) == report.text() and len(repr(report)) < 12_000
        html = report._repr_html_()
        assert html.count("<table>") == html.count("</table>") >= 1 and "<td" in html
        assert max(map(len, report.text(80).splitlines())) <= 80
    html = model._repr_html_()
    assert html.count("<tr>") == 1 + len(model.inputs) + len(model.outputs)  # the head, and a row each
    assert all(port.name in html for port in (*model.inputs, *model.outputs))
    assert "of roof" in profile.text() and "whole run" in profile.text()


def test_statistics() -> None:
    model = cpuconv.compile(parse("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"), threads=1)
    assert model.stats().to_dict()["runs"] == 0 and "runs" in model.stats().text()
    for items in (1, 1, 2):
        model.run({"x": np.zeros((items, 4), np.float32)})
    with pytest.raises(cpuconv.ArgumentError):
        model.run({"x": np.zeros((1, 4, 4), np.float32)})
    shown = model.stats()
    assert (shown.runs, shown.failures, shown.programs) == (3, 1, 2)
    assert 0 < shown.p50 <= shown.p90 <= shown.p99 <= shown.max <= shown.seconds and shown.program_bytes == model.nbytes
    assert shown.kernels_compiled + shown.kernels_loaded > 0
    lines = shown.prometheus().splitlines()
    assert 'cpuconv_run_seconds_count{model="g"} 3' in lines and 'cpuconv_runs_failed_total{model="g"} 1' in lines
    form = re.compile(r'(# (HELP|TYPE) cpuconv_\w+ .+|cpuconv_\w+\{model="g"(,quantile="0\.\d+")?\} [\d.e+-]+)')
    assert all(form.fullmatch(line) for line in lines)


def test_statistics_of_batches_and_concurrent_runs() -> None:
    text = "g (float[1,64] x) => (float[1,64] y) <float[64,64] w> { y = MatMul(x, w) }"
    options = {"threads": 1, "strategy": "heuristic"}
    alone, model = (
        cpuconv.compile(parse(text, w=np.ones((64, 64), np.float32)), **options, **more)  # type: ignore[arg-type]
        for more in ({}, {"batches": (1, 2)})
    )
    with cpuconv.Queue(model, 4) as queue:
        for _ in range(200):
            queue.submit({"x": np.ones((3, 64), np.float32)})
    shown = model.stats()
    assert (shown.runs, shown.failures, shown.programs) == (200, 0, 2)
    assert 0 < alone.stats().weight_bytes <= shown.weight_bytes
