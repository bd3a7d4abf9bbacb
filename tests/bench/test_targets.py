"""Targets: which lines they are for, and when they are met."""

from __future__ import annotations

import pytest

from autotune.machine.roofline import FMA
from bench import shapes, targets
from bench.peers import CPUCONV
from bench.results import LineResult
from bench.settings import Run
from bench.targets import BINDING, Lines, Mean, Verdict, check
from cpuconv.problem.problem import ConvProblem
from support.tuner.bench_fakes import ROOFS, measurement, result_of, run_of

RUN = run_of(CPUCONV, "torch", "mnn")
POINTWISE = "pointwise(v=1,rows=1,cols=6,block=0)"


def at(ratio: float, text: str, label: str = "a:1") -> LineResult:
    """A line on which PyTorch takes `ratio` times as long as ours, and MNN ten times."""
    return result_of(label, ConvProblem.parse(text), cpuconv=[[1.0]], torch=[[ratio]], mnn=[[10.0]])


def verdict(name: str, *results: LineResult, run: Run = RUN) -> Verdict:
    return next(verdict for verdict in check(results, run) if verdict.name == name)


def test_every_line_is_subject_to_one_family():
    families = [target for target in targets.TARGETS if isinstance(target, Lines) and target.name != "every line"]
    for line in shapes.load():
        assert len([target.name for target in families if target.belongs(line.problem)]) == 1, line.label


@pytest.mark.parametrize(
    "text, name",
    [
        ("ic64ih28oc64kh3ph1", "3x3 s1, planes from 28, C and K from 64"),
        ("ic256ih33oc256kh3ph6dh5", "dilated"),
        ("ic64ih14oc64kh3ph1", "3x3 s1, planes about 14"),
        ("ic64ih7oc64kh3ph1", "3x3 s1, planes about 7"),
        ("g2ic96ih27oc256kh5ph2", "grouped"),
        ("ic48ih35oc64kh5ph2", "5x5 and up, 1x7, 7x1"),
        ("ic128ih17oc128kh1kw7ph0pw3", "5x5 and up, 1x7, 7x1"),
        ("ic64ih56oc64kh1", "1x1"),
        ("ic256ih56oc512kh1sh2", "1x1"),
        ("ic3ih224oc64kh7sh2ph3", "first layer"),
        ("ic32ih56oc64kh3sh2ph1", "3x3 s2"),
        ("g96ic96ih56oc96kh3ph1", "depthwise"),
    ],
)
def test_families_are_decided_from_the_problem(text, name):
    problem = ConvProblem.parse(text)
    families = [t.name for t in targets.TARGETS if isinstance(t, Lines) and t.belongs(problem)]
    assert families == ["every line", name]


def test_narrow_channels_are_held_to_the_general_targets_only():
    problem = ConvProblem.parse("ic32ih56oc64kh3ph1")
    assert [t.name for t in targets.TARGETS if isinstance(t, Lines) and t.belongs(problem)] == ["every line"]


def test_lines_short_of_a_target_are_named():
    results = at(1.3, "ic64ih28oc64kh3ph1", "a:good"), at(1.1, "ic64ih28oc64kh3ph1", "a:slow")
    found = verdict("3x3 s1, planes from 28, C and K from 64", *results)
    assert (found.wanted, found.reached, found.short) == ("1.20", "1.10 a:slow", ("a:slow 1.10",))
    assert not found.met and verdict("3x3 s1, planes from 28, C and K from 64", results[0]).met


def test_the_best_peer_of_each_line_counts():
    assert verdict("dilated", at(1.4, "ic64ih28oc64kh3ph2dh1")).met
    assert not verdict("dilated", at(20.0, "ic64ih28oc64kh3ph2dh1"), run=run_of(CPUCONV, "mnn")).short
    assert verdict("dilated", at(20.0, "ic64ih28oc64kh3ph2dh1")).reached == "10.00 a:1"


def test_more_threads_have_thresholds_of_their_own():
    line = at(0.93, "ic64ih28oc64kh3ph1")
    assert not verdict("every line", line).met
    assert verdict("every line", line, run=run_of(CPUCONV, "torch", "mnn", threads=2)).met


def shared(ratio: float, share: float, text: str, algorithm: str) -> LineResult:
    """A line bound by FMAs of which ours reaches a share."""
    problem = ConvProblem.parse(text)
    seconds = problem.flops / (ROOFS.fma_gflops * 1e9) / share
    run = measurement(ROOFS, algorithm, cpuconv=[[seconds]], torch=[[ratio * seconds]])
    return LineResult(shapes.Line(problem, "a:1", shapes.family(problem)), [run])


@pytest.mark.parametrize("ratio, share, met", [(0.99, 0.95, True), (0.99, 0.93, False), (1.04, 0.5, True)])
def test_a_share_of_the_roof_serves_as_well(ratio, share, met):
    found = verdict("1x1", shared(ratio, share, "ic512ih14oc512kh1", POINTWISE))
    assert found.met is met and found.wanted == f"1.03 or 94% of {FMA}"
    assert met or found.short == ("a:1 0.99, 93%",)


def test_depthwise_is_held_to_the_roof_that_binds():
    line = shared(1.1, 0.5, "g64ic64ih112oc64kh3ph1", "depthwise(rows=4,cols=4,held=1,block=0)")
    shares = line.shares()
    assert max(shares, key=shares.get) == "memory" and shares["memory"] > 0.85 > shares[FMA]
    found = verdict("depthwise", line)
    assert found.met and BINDING in found.wanted


def test_means_over_all_lines_and_for_each_peer():
    results = [at(1.0, "ic64ih28oc64kh3ph1"), at(4.0, "ic64ih28oc64kh1")]
    assert verdict("geometric mean, best peer", *results).reached == "2.00"
    each = verdict("geometric mean, each peer", *results, run=run_of(CPUCONV, "torch", "mnn"))
    assert each.met and each.reached == "2.00 Torch"
    low = verdict("geometric mean, each peer", at(1.2, "ic64ih28oc64kh1"))
    assert low.short == ("Torch 1.20",) and low.wanted == "1.50"


def test_a_line_without_our_figure_is_short():
    lost = result_of("a:lost", ConvProblem.parse("ic64ih28oc64kh1"), torch=[[1.0]])
    assert verdict("1x1", lost).short == ("a:lost not measured",)


def test_nothing_is_judged_without_peers_and_without_lines():
    assert check([at(1.0, "ic64ih28oc64kh1")], run_of(CPUCONV)) == [] and check([], RUN) == []


def test_the_table_is_what_the_project_asks_for():
    wanted = {target.name: (target.ratio, getattr(target, "share", None)) for target in targets.TARGETS}
    assert wanted["geometric mean, best peer"] == ((1.15, 1.15), None)
    assert wanted["every line"] == ((0.95, 0.92), None)
    assert wanted["depthwise"] == ((1.20, 1.20), (0.85, 0.85))
    assert all(wanted[name] == ((1.03, 1.03), (0.94, 0.90)) for name in ("1x1", "first layer", "3x3 s2"))
    assert sum(isinstance(target, Mean) for target in targets.TARGETS) == 2
