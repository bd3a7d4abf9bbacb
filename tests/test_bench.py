"""The benchmark's own arithmetic, reports and processes, without any of the engines."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench import compare, overhead, report, shapes
from bench.engine import Engine, EngineError, Prepared, Session, sample
from bench.oracle import arrays, convolve, error
from bench.peers import OURS
from bench.peers.base import Form, symmetric_pads
from bench.results import LineResult, Ratio, Timing, geomean, mean_ratio
from cpuconv.problem import ConvProblem
from cpuconv.reference import conv2d

ROOT = Path(__file__).resolve().parents[1]
FAKE = "test_bench:FakePeer"
SMALL = ConvProblem(1, 4, 6, 6, 8, 3, 3, pads=(1, 1, 1, 1))


class FakePeer:
    """A peer that answers with the float64 sum, or fails as it is told."""

    name, package = "Fake", "numpy"

    def __init__(self, missing: str | None = None) -> None:
        self.missing = missing

    def available(self) -> str | None:
        return self.missing

    def prepare(self, problem, x, w, bias, threads):
        y = convolve(problem, x, w, bias)
        print("chatter on stdout")
        if problem.n == 2:
            raise ValueError("one image only")
        if problem.n == 3:
            os._exit(7)
        if problem.n == 4:
            time.sleep(60)
        return [Form("right", lambda: None, lambda: y), Form("wrong", lambda: None, lambda: y + 1.0)]


class FakeEngine:
    """An engine in this process: the seconds of each form, by name; an exception instead is raised."""

    version = "1"

    def __init__(self, key: str, forms: dict, error: float = 1e-7) -> None:
        self.key, self.name, self.forms, self.error = key, key.title(), forms, error
        self.asked: Counter[str] = Counter()

    def revive(self) -> None:
        pass

    def prepare(self, problem):
        return [Prepared(form, "", self.error) for form in self.forms]

    def time(self, form: str, seconds: float) -> list[float]:
        self.asked[form] += 1
        value = self.forms[form]
        if isinstance(value, Exception):
            raise value
        return [value, 2 * value, 3 * value]


def result_of(label: str = "a:1", **times: list[list[float]]) -> LineResult:
    line = shapes.Line(SMALL, label, "3x3 s1")
    return LineResult(line, {key: [Timing("plain", rounds=rounds)] for key, rounds in times.items()})


def run_of(*keys: str) -> report.Run:
    names = {key: key.title() for key in keys}
    return report.Run(names, dict.fromkeys(keys, "1.0"), 1, 2, 0.1, "cached", "auto")


# --- lines -------------------------------------------------------------------------------------------------------


def test_canonical_has_45_lines_each_in_a_family():
    lines = shapes.load()
    assert len(lines) == len({line.label for line in lines}) == 45
    families = Counter(line.family for line in lines)
    assert families["depthwise"] == 7 and families["dilated"] == 1 and families["grouped"] == 2
    assert families["1x7, 7x1"] == 2 and families["first layer"] == 4
    assert sum(families.values()) == 45


def test_lines_are_chosen_by_name_or_by_problem():
    assert [line.label for line in shapes.load(pattern="dw384$")] == ["mobilenetv2:dw384", "convnext:dw384"]
    assert {line.problem.r for line in shapes.load(pattern="kh11")} == {11}


def test_lines_with_an_activation_are_refused(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("mb1ic8ih8oc8oh8kh3ph1 act=relu\n")
    with pytest.raises(ValueError, match="plain convolutions"):
        shapes.load(file)


# --- oracle ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        SMALL,
        ConvProblem(2, 6, 7, 9, 6, 3, 2, stride=(2, 3), pads=(0, 1, 2, 1), groups=6),
        ConvProblem(1, 8, 11, 10, 4, 3, 3, dilation=(2, 3), pads=(3, 0, 1, 2), groups=2),
    ],
    ids=str,
)
def test_oracle_agrees_with_the_librarys_reference(problem):
    x, w, bias = arrays(problem)
    y = convolve(problem, x, w, bias)
    assert y.dtype == np.float64 and y.shape == problem.out_shape
    assert error(y, conv2d(x, w, bias, problem)) < 1e-12


def test_error_sees_a_wrong_shape_and_nan():
    y = np.ones((1, 2, 3, 3))
    assert error(y + 0.5, y) == 0.5
    assert math.isinf(error(y[:, :1], y)) and math.isinf(error(y * np.nan, y))


def test_symmetric_pads_only_where_the_output_is_the_same():
    assert symmetric_pads(ConvProblem(1, 3, 224, 224, 8, 7, 7, stride=(2, 2), pads=(3, 2, 3, 2))) == (3, 3)
    assert symmetric_pads(ConvProblem(1, 3, 9, 9, 8, 3, 3, pads=(0, 1, 1, 0))) is None


# --- arithmetic --------------------------------------------------------------------------------------------------


def test_ratio_by_rounds_and_by_fastest_runs():
    result = result_of(cpuconv=[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], torch=[[4.0, 4.0, 9.0], [1.5, 4.0, 8.0]])
    assert result.ratio(["torch"]) == Ratio(median=1.5, best=1.5)  # (4/2, 4/4) and 1.5/1
    assert result.gflops("torch") == pytest.approx(SMALL.flops / 4.0 / 1e9)


def test_ratio_takes_the_fastest_rival_and_leaves_ours_out():
    result = result_of(cpuconv=[[2.0]], torch=[[6.0]], mnn=[[1.0]])
    assert result.rival([OURS, "torch", "mnn"]) == "mnn"
    assert result.ratio([OURS, "torch", "mnn"]).median == 0.5
    assert result.ratio(["torch"]).median == 3.0
    assert result.ratio(["ncnn"]) is None and result_of(torch=[[1.0]]).ratio(["torch"]) is None


def test_geometric_mean_of_lines_that_have_a_ratio():
    results = [result_of(cpuconv=[[1.0]], torch=[[t]]) for t in (1.0, 4.0)] + [result_of(torch=[[1.0]])]
    assert mean_ratio(results, ["torch"]) == Ratio(pytest.approx(2.0), pytest.approx(2.0))
    assert mean_ratio(results, ["mnn"]) is None
    assert geomean([2.0, 8.0]) == pytest.approx(4.0) and math.isnan(geomean([]))


# --- measuring ---------------------------------------------------------------------------------------------------


def measured(*engines: FakeEngine, rounds: int = 3) -> LineResult:
    result, steps = LineResult(shapes.Line(SMALL, "a:1", "3x3 s1")), []
    compare.measure(result, engines, rounds, 0.01, lambda: steps.append(1))
    assert len(steps) == rounds
    return result


def test_every_engine_is_asked_each_round_and_hopeless_forms_once():
    engine = FakeEngine("torch", {"nchw": 5.0, "blocked": 1.0, "close": 1.5})
    result = measured(FakeEngine(OURS, {"auto": 0.5}), engine)
    assert engine.asked == {"nchw": 1, "blocked": 3, "close": 3}
    assert result.of("torch").form == "blocked" and result.ratio(["torch"]).median == 2.0
    assert result.notes == []


def test_a_failing_engine_loses_the_line_and_only_that():
    result = measured(FakeEngine(OURS, {"auto": 1.0}), FakeEngine("mnn", {"nchw": EngineError("boom")}))
    assert result.of("mnn") is None and result.of(OURS).median == 2.0
    assert result.notes == ["Mnn failed: boom"]


def test_a_wrong_output_is_left_out_ours_more_strictly():
    forms = {"plain": 1.0}
    result = measured(
        FakeEngine(OURS, forms, error=1e-3), FakeEngine("mnn", forms, 1e-3), FakeEngine("ncnn", forms, 0.1)
    )
    assert result.of("mnn") and result.of(OURS) is None and result.of("ncnn") is None
    assert [note.split(" is ")[0] for note in result.notes] == ["Cpuconv's plain", "Ncnn's plain"]


def test_sample_times_single_runs():
    runs = []
    times = sample(lambda: runs.append(time.sleep(0.001)), 0.02)
    assert 3 <= len(times) < len(runs) and all(0.0009 < t < 0.5 for t in times)
    assert len(sample(lambda: time.sleep(0.002), 0.0)) == 3


def test_a_session_checks_outputs_and_forgets_the_problem_before():
    session = Session(FakePeer(), threads=1)
    right, wrong = session.prepare(SMALL)
    assert (right.form, wrong.form) == ("right", "wrong") and right.error == 0.0 and wrong.error > 1e-3
    assert len(session.time("right", 0.001)) >= 3


def test_an_engine_process_answers_fails_dies_and_comes_back():
    engine = Engine(FAKE, 1, timeout=60.0)
    try:
        assert engine.name == "Fake" and engine.version == np.__version__
        assert [p.form for p in engine.prepare(SMALL)] == ["right", "wrong"]
        assert len(engine.time("right", 0.001)) >= 3
        with pytest.raises(EngineError, match="ValueError: one image only"):
            engine.prepare(ConvProblem(2, 1, 4, 4, 1, 1, 1))
        with pytest.raises(EngineError, match="ended with code 7"):
            engine.prepare(ConvProblem(3, 1, 4, 4, 1, 1, 1))
        engine.revive()
        assert engine.prepare(SMALL)
        engine.timeout = 0.5
        with pytest.raises(EngineError, match="no answer within 0.5 s"):
            engine.prepare(ConvProblem(4, 1, 4, 4, 1, 1, 1))
    finally:
        engine.close()


def test_a_missing_engine_says_why():
    with pytest.raises(EngineError, match="fake is not installed"):
        Engine(FAKE, 1, {"missing": "fake is not installed"}, timeout=60.0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_idle_engine_is_stopped():
    engine = Engine(FAKE, 1, timeout=60.0)
    try:
        engine.prepare(SMALL)
        stat, until = Path(f"/proc/{engine._process.pid}/stat"), time.monotonic() + 10.0
        while (state := stat.read_text().rpartition(")")[2].split()[0]) != "T" and time.monotonic() < until:
            time.sleep(0.001)  # a signal takes its time
        assert state == "T"
    finally:
        engine.close()


# --- reports -----------------------------------------------------------------------------------------------------


def test_groups_of_peers():
    assert list(run_of(OURS, "torch", "openvino", "mnn").groups) == [
        "best of Torch, Openvino",
        "best of all",
        "Torch",
        "Openvino",
        "Mnn",
    ]
    assert list(run_of(OURS, "torch").groups) == ["Torch"] and run_of("torch", "mnn").groups == {}


def test_report_has_every_line_and_names_the_slow_ones():
    results = [
        result_of("a:fast", cpuconv=[[1.0], [1.0]], torch=[[2.0], [2.0]]),
        result_of("a:slow", cpuconv=[[2.0], [2.0]], torch=[[1.0], [1.0]]),
        result_of("a:lost", torch=[[1.0], [1.0]]),
    ]
    results[2].notes.append("Cpuconv failed: boom")
    run = run_of(OURS, "torch")
    text = report.markdown(results, run)
    assert "| a:fast " in text and "2.00 (2.00)" in text and "| all " in text
    assert "Below 1.0 (1 of 3): a:slow 0.50 (0.50) Torch." in text
    assert "Left out: a:lost: Cpuconv failed: boom." in text
    data = json.loads(json.dumps(report.to_dict(results, run)))
    assert data["geomean"]["Torch"] == {"median": pytest.approx(1.0), "best": pytest.approx(1.0)}
    assert data["lines"][0]["engines"]["torch"]["round_medians"] == [2.0, 2.0]
    assert data["lines"][2]["ratios"] == {}


def test_readme_update_replaces_what_is_between_the_markers(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.update_readme(readme, "\nnew\n\n")
    assert readme.read_text() == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"


@pytest.mark.parametrize("text", ["", report.BEGIN, report.END + report.BEGIN, 2 * (report.BEGIN + report.END)])
def test_readme_without_its_markers_is_left_alone(tmp_path, text):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(ValueError, match="must hold"):
        report.update_readme(readme, "new")
    assert readme.read_text() == text


def test_the_readme_has_its_markers():
    text = (ROOT / "README.md").read_text()
    assert text.count(report.BEGIN) == text.count(report.END) == 1


# --- command lines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["compare.py", "overhead.py"])
def test_scripts_run_by_path(script, tmp_path):
    command = [sys.executable, str(ROOT / "bench" / script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and f"bench.{script[:-3]}" in done.stdout


def test_unknown_peer_is_named():
    with pytest.raises(SystemExit, match="not bogus"):
        compare.main(["--peers", "bogus", "--lines", "dw384"])


def test_microseconds_of_a_call():
    assert 500 < overhead.microseconds(lambda: time.sleep(0.001), 5) < 100_000


@pytest.mark.parametrize("style", ["text", "json"])
def test_overhead_prints_every_call(style, monkeypatch, capsys):
    monkeypatch.setattr(overhead, "subjects", lambda threads: {"empty": lambda: None, "nap": lambda: time.sleep(1e-4)})
    assert overhead.main(["--calls", "20", "--rounds", "3", *(["--json"] if style == "json" else [])]) == 0
    printed = capsys.readouterr().out
    if style == "json":
        calls = json.loads(printed)["calls"]
        assert calls["empty"]["best"] <= calls["empty"]["median"] < 100 <= calls["nap"]["best"]
    else:
        assert "best µs" in printed and "empty" in printed and "nap" in printed
