"""The benchmark's own arithmetic and processes, without any of the engines."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench import compare, overhead, race, shapes
from bench.engine import Engine, EngineError, Session, sample
from bench.oracle import arrays, convolve, error
from bench.peers import CPUCONV
from bench.peers.base import symmetric_pads
from bench.results import LineResult, Measurement, Ratio, geomean, mean_ratio
from bench.settings import Settings, layout_names
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reference import conv2d
from support.running.events import until
from support.tuner.bench_fakes import LINE, PEER, ROOFS, SMALL, FakeEngine, FakePeer, measurement, result_of, run_of

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


def test_a_batch_replaces_that_of_every_line():
    lines, eight = shapes.load(pattern="vgg16"), shapes.load(pattern="vgg16", batch=8)
    assert {line.problem.n for line in eight} == {8} and len(eight) == len(lines) == 6
    assert all(b.problem.flops == 8 * a.problem.flops for a, b in zip(lines, eight, strict=True))
    assert [line.label for line in lines] == [line.label for line in eight]


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
    assert result.rival([CPUCONV, "torch", "mnn"]) == "mnn"
    assert result.ratio([CPUCONV, "torch", "mnn"]).median == 0.5
    assert result.ratio(["torch"]).median == 3.0
    assert result.ratio(["ncnn"]) is None and result_of(torch=[[1.0]]).ratio(["torch"]) is None


def test_geometric_mean_of_lines_that_have_a_ratio():
    results = [result_of(cpuconv=[[1.0]], torch=[[t]]) for t in (1.0, 4.0)] + [result_of(torch=[[1.0]])]
    assert mean_ratio(results, ["torch"]) == Ratio(pytest.approx(2.0), pytest.approx(2.0))
    assert mean_ratio(results, ["mnn"]) is None and mean_ratio([], ["torch"]) is None
    assert geomean([2.0, 8.0]) == pytest.approx(4.0) and math.isnan(geomean([]))


def test_figures_of_several_runs_are_medians_of_the_runs():
    results = [LineResult(LINE, [measurement(cpuconv=[[1.0]], torch=[[t]]) for t in times])
               for times in ((1.0, 2.0, 9.0), (4.0, 8.0, 1.0))]  # fmt: skip
    assert [result.ratio(["torch"]).median for result in results] == [2.0, 4.0]
    assert [result.of("torch").median for result in results] == [2.0, 4.0]
    assert mean_ratio(results, ["torch"]).median == pytest.approx(3.0)  # of the means 2, 4 and 3
    assert mean_ratio(results, ["torch"]).median != pytest.approx(math.sqrt(2.0 * 4.0))


def test_a_line_that_one_run_lost_keeps_the_figures_of_the_others():
    lost = Measurement(notes=["Torch failed: boom"])
    result = LineResult(LINE, [measurement(cpuconv=[[1.0]], torch=[[3.0]]), lost, lost])
    assert result.ratio(["torch"]).median == 3.0 and result.rival(["torch"]) == "torch"
    assert result.notes == ["Torch failed: boom"]


# --- measuring ---------------------------------------------------------------------------------------------------


def measured(*engines: FakeEngine, **settings: object) -> LineResult:
    result, steps, asked = Measurement(), [], Settings(**{"rounds": 3, **settings})
    race.measure(result, LINE, engines, asked, lambda: steps.append(1))
    assert len(steps) == asked.rounds
    return LineResult(LINE, [result])


def test_every_engine_is_asked_each_round_and_hopeless_forms_once():
    engine = FakeEngine("torch", {"nchw": 5.0, "blocked": 1.0, "close": 1.5})
    result = measured(FakeEngine(CPUCONV, {"auto": 0.5}), engine)
    assert engine.asked == {"nchw": 1, "blocked": 3, "close": 3}
    assert result.of("torch").form == "blocked" and result.ratio(["torch"]).median == 2.0
    assert result.notes == []


def test_on_plain_terms_only_plain_forms_are_asked():
    peer = FakeEngine("mnn", {"nchw": 1.5, "blocked": 1.0})
    plain = measured(FakeEngine(CPUCONV, {"NCHW": 1.0}), peer, layouts=layout_names("nchw"))
    assert peer.asked == {"nchw": 3} and plain.ratio(["mnn"]).median == 1.5
    either = measured(FakeEngine(CPUCONV, {"auto": 1.0}), peer)
    assert either.of("mnn").form == "blocked" and either.ratio(["mnn"]).median == 1.0


def test_a_failing_engine_loses_the_line_and_only_that():
    result = measured(FakeEngine(CPUCONV, {"auto": 1.0}), FakeEngine("mnn", {"nchw": EngineError("boom")}))
    assert result.of("mnn") is None and result.of(CPUCONV).median == 2.0
    assert result.notes == ["Mnn failed: boom"]


def test_a_wrong_output_is_left_out_ours_more_strictly():
    forms = {"plain": 1.0}
    result = measured(
        FakeEngine(CPUCONV, forms, error=1e-3), FakeEngine("mnn", forms, 1e-3), FakeEngine("ncnn", forms, 0.1)
    )
    assert result.of("mnn") and result.of(CPUCONV) is None and result.of("ncnn") is None
    assert [note.split(" is ")[0] for note in result.notes] == ["Cpuconv's plain", "Ncnn's plain"]


def test_sample_times_single_runs(clock):
    runs = []
    times = sample(lambda: runs.append(time.sleep(0.001)), 0.02)
    assert 3 <= len(times) < len(runs) and times == pytest.approx([0.001] * len(times))
    assert len(sample(lambda: time.sleep(0.002), 0.0)) == 3


def test_a_session_checks_outputs_and_forgets_the_problem_before():
    session = Session(FakePeer(), threads=1)
    right, wrong = session.prepare(SMALL)
    assert (right.form, wrong.form) == ("right", "wrong") and right.error == 0.0 and wrong.error > 1e-3
    assert (right.plain, right.algorithm, right.detail) == (False, "sum", "float64") and wrong.plain
    assert len(session.time("right", 0.001)) >= 3


def test_an_engine_process_answers_fails_dies_and_comes_back():
    engine = Engine(PEER, 1)
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
        Engine(PEER, 1, {"missing": "fake is not installed"})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_idle_engine_is_stopped():
    engine = Engine(PEER, 1)
    try:
        engine.prepare(SMALL)
        stat = Path(f"/proc/{engine._process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")  # a signal takes its time
    finally:
        engine.close()


# --- runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def engines(monkeypatch):
    """The engines that a race starts, in order; ours is twice as fast as the other."""
    started = []

    def start(key: str, threads: int, options: object, timeout: float) -> FakeEngine:
        if key == "mnn":
            raise EngineError("MNN is not installed")
        started.append(FakeEngine(key, {"auto": 1.0 if key == CPUCONV else 2.0}))
        return started[-1]

    monkeypatch.setattr(race, "Engine", start)
    return started


def ran(count: int, runs: int) -> race.Race:
    lines = [shapes.Line(SMALL, f"a:{number}", "3x3 s1") for number in range(count)]
    made = race.Race(lines, Settings(rounds=2, runs=runs, peers=("torch", "mnn")), Console(quiet=True))
    made.measure_all()
    assert not made.interrupted or count > 1
    return made


def test_each_run_has_engines_of_its_own(engines):
    made = ran(2, runs=3)
    assert [engine.key for engine in engines] == [CPUCONV, "torch"] * 3 and all(engine.closed for engine in engines)
    assert [len(result.runs) for result in made.results] == [3, 3] and list(made.run.names) == [CPUCONV, "torch"]
    assert made.results[0].ratio(["torch"]).median == 2.0
    assert {one.roofs for result in made.results for one in result.runs} == {ROOFS}


@pytest.mark.parametrize("interrupted, kept", [(1, [1, 1]), (5, [1, 1]), (9, [2, 2])])
def test_an_interrupted_race_keeps_whole_runs_or_what_there_is_of_the_first(engines, monkeypatch, interrupted, kept):
    asked, real = [], FakeEngine.time

    def time_or_stop(self, form, seconds):
        if self.key == CPUCONV:
            asked.append(form)
            if len(asked) == interrupted + 2:  # two rounds a line: in the second line of a run
                raise KeyboardInterrupt
        return real(self, form, seconds)

    monkeypatch.setattr(FakeEngine, "time", time_or_stop)
    made = ran(2, runs=3)
    assert made.interrupted and all(engine.closed for engine in engines)
    assert [len(result.runs) for result in made.results] == kept


# --- reports -----------------------------------------------------------------------------------------------------


def test_groups_of_peers():
    assert list(run_of(CPUCONV, "torch", "openvino", "mnn").groups) == [
        "best of Torch, Openvino",
        "best of all",
        "Torch",
        "Openvino",
        "Mnn",
    ]
    assert list(run_of(CPUCONV, "torch").groups) == ["Torch"] and run_of("torch", "mnn").groups == {}


def test_groups_on_plain_terms_and_groups_asked_for():
    keys = (CPUCONV, "torch", "onnxruntime", "openvino", "ncnn", "mnn")
    plain = run_of(*keys, layouts=layout_names("nchw")).groups
    assert list(plain)[:2] == ["best of Onnxruntime, Openvino, Ncnn, Mnn", "best of all"] and len(plain) == 7
    assert plain["best of all"] == keys[1:]
    asked = run_of(*keys, groups=("all-five", "main-three")).groups
    assert list(asked)[:2] == ["best of all", "best of Torch, Onnxruntime, Openvino"]


# --- command lines -----------------------------------------------------------------------------------------------


def test_unknown_peer_is_named():
    with pytest.raises(SystemExit, match="not bogus"):
        compare.main(["--peers", "bogus", "--lines", "dw384"])


@pytest.mark.parametrize("option", ["--threads", "--batch", "--runs", "--rounds"])
def test_counts_are_whole_numbers_from_1(option, capsys):
    with pytest.raises(SystemExit):
        compare.main([option, "0"])
    assert "must be a whole number from 1, not '0'" in capsys.readouterr().err


def test_unknown_group_is_named():
    with pytest.raises(SystemExit, match="'--groups' must be of main-three, all-five, reordering-four, not four"):
        compare.main(["--groups", "four", "--lines", "dw384"])


def test_compare_prints_the_report_and_writes_it(engines, tmp_path, capsys):
    files = [tmp_path / "out.json", tmp_path / "out.md"]
    options = ["--lines", "dw384$", "--runs", "2", "--rounds", "2", "--batch", "2", "--peers", "torch", "--targets"]
    assert compare.main([*options, "--details", "--json", str(files[0]), "--markdown", str(files[1])]) == 0
    printed, data, text = capsys.readouterr().out, json.loads(files[0].read_text()), files[1].read_text()
    assert (data["runs"], data["batch"], data["title"]) == (2, 2, "1 thread, layouts auto, batch 2")
    assert [line["problem"].split("ic")[0] for line in data["lines"]] == ["g384mb2", "g384mb2"]
    assert data["geomean"]["Torch"]["median"] == pytest.approx(2.0)
    for part in ("mobilenetv2:dw384", "depthwise", "1.20 or 85% of the binding roof", "2.00 (2.00)"):
        assert part in printed and part in text


def test_compare_without_a_line_fails(engines):
    assert compare.main(["--lines", "no such line"]) == 1


def test_microseconds_of_a_call(clock):
    assert overhead.microseconds(lambda: time.sleep(0.001), 5) == pytest.approx(1000)


def test_overhead_tells_every_call(tmp_path, monkeypatch, capsys, clock):
    naps = {"short": lambda: time.sleep(1e-6), "long": lambda: time.sleep(1e-4)}
    monkeypatch.setattr(overhead, "subjects", lambda threads: naps)
    monkeypatch.setattr(overhead, "sample", lambda call, seconds: [1.0 if call() is call() else 0.5])
    file = tmp_path / "out.json"
    assert overhead.main(["--calls", "20", "--rounds", "3", "--lines", "dw960|pw144", "--json", str(file)]) == 0
    data, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert [data["calls"][name]["median"] for name in naps] == pytest.approx([1, 100])
    assert [line["name"] for line in data["lines"]] == ["mobilenetv2:dw960", "mobilenetv2:pw144_24"]
    assert [line["ratio"] for line in data["lines"]] == [0.5, 0.5]  # the call that gives a new array, over the other
    assert "best µs" in printed and "short" in printed and "long" in printed
    assert "conv2d over plan: geomean 0.500, worst 0.50" in printed
