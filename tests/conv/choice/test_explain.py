"""The account of a choice: every candidate with its figures, or why it was left out."""

from __future__ import annotations

import json
import math

import pytest

import cpuconv
from autotune.machine.roofline import Level, Roofs, Work
from autotune.report.explain import NOT_TUNED, ROOFS_UNKNOWN, Explanation, Facts, account
from autotune.store.store import Row
from autotune.wisdom.tiers import Found
from autotune.workload import Candidate, Rejected
from cpuconv.tuning.workload import workload
from support.example import W, X

ROOFS = Roofs(100.0, 50.0, (Level("L1", 1e6, 1000.0), Level("memory", math.inf, 10.0)))
US = 1e-6


def row(name: str, micro: float = math.nan, **other) -> Row:
    state = "rejected" if math.isnan(micro) else "ok"
    return Row("d", "p", name, "s", state, median=micro * US, spread=micro * US / 10, count=7, **other)


def candidate(name: str, estimate: float, bound: float = 1.0) -> Candidate:
    return Candidate(name, bound * US, estimate * US, 2048, "standard")


ROWS = [
    row("best", 20.0, error=3e-6, threads_fraction=0.125),
    row("slow", 80.0),
    row("wrong", reason="error 0.5"),
    row("gone", 30.0),
]
OFFERED = [("slow", 10, 1), ("best", 12, 1), ("wrong", 13, 1), ("far", 90, 40), ("near", 50, 1)]


def told(algorithm: str = "best", roofs: Roofs | None = ROOFS, rows: list[Row] = ROWS, **other) -> Explanation:
    facts = Facts(
        "p",
        1e6,
        [Found(each, "store") for each in rows],
        [candidate(*each) for each in OFFERED],
        [Rejected("other", "does not apply")],
        work=lambda name: None if name == "gone" else Work(1e6, 100, 100, 100),
        roofs=roofs,
        **other,
    )
    return account(facts, algorithm, "store")


def test_every_candidate_has_its_line():
    lines = {line.candidate: line for line in told().lines}
    assert list(lines) == ["best", "gone", "slow", "wrong", "near", "far", "other"]
    best = lines["best"]
    assert (best.chosen, best.state, best.samples, best.left_out) == (True, "timed", 7, None)
    assert (best.measured, best.spread, best.estimate) == pytest.approx((20 * US, 2 * US, 12 * US))
    assert (best.gflops, best.share, best.bound_by) == (pytest.approx(50), pytest.approx(0.5), "compute")
    assert (best.error, best.workspace) == (3e-6, 2048)
    assert lines["slow"].bound_by == "overhead"
    assert (lines["wrong"].state, lines["wrong"].left_out) == ("rejected", "error 0.5")
    assert lines["far"].left_out == "not timed: at least 40.0 µs, the best takes 20.0"
    assert lines["near"].left_out == "not timed: the model ranks it lower"
    assert (lines["other"].state, lines["other"].left_out) == ("inapplicable", "does not apply")
    assert (lines["gone"].state, lines["gone"].share) == ("timed", None)


def test_what_is_printed_and_what_is_data():
    explanation = told(left_out={"slow": "it needs too much"})
    text = str(explanation)
    assert text.splitlines()[:2] == ["p", "best, decided by: store"]
    for word in ("bound by: compute. Do less arithmetic", "serial fraction: 12%", "20.0", "50%", "2 KiB", "too much"):
        assert word in text
    data = json.loads(json.dumps(explanation.to_dict(), allow_nan=False))
    assert data["remedy"].startswith("Do less arithmetic")
    assert data["lines"][0]["candidate"] == "best" and data["serial_fraction"] == 0.125


def test_a_candidate_has_a_line_of_each_weights():
    warm, cold = row("best", 20.0), row("best", 25.0, weights="cold", threads_fraction=0.5)
    explanation = told(rows=[warm, row("slow", 80.0), cold, row("slow", 22.0, weights="cold")])
    timed = [(line.candidate, line.weights, line.chosen) for line in explanation.lines if line.state == "timed"]
    assert timed == [("best", "warm", True), ("slow", "warm", False), ("slow", "cold", False), ("best", "cold", False)]
    assert explanation.serial_fraction is None
    # Timed with cold weights alone, these decide; a rejected row with warm ones does not.
    explanation = told(rows=[row("best", reason="error 0.5"), cold])
    first = explanation.lines[0]
    assert (first.candidate, first.weights, first.chosen, first.tier) == ("best", "cold", True, "store")
    assert explanation.serial_fraction == 0.5
    assert "cold" in str(explanation) and "store" in str(explanation)


def test_without_roofs_it_says_how_to_measure_them():
    explanation = told(roofs=None)
    assert explanation.remedy is None and ROOFS_UNKNOWN in str(explanation)
    untimed = told(roofs=None, rows=[])
    assert ROOFS_UNKNOWN not in str(untimed)
    assert [line.left_out for line in untimed.lines] == [NOT_TUNED] * len(OFFERED) + ["does not apply"]


def test_a_choice_that_the_sources_no_longer_offer_is_marked():
    (chosen,) = (line for line in told("gone").lines if line.chosen)
    assert (chosen.candidate, chosen.state) == ("gone", "timed")


def test_a_named_choice_is_told_as_such():
    of_solver = cpuconv.explain(X.shape, W.shape, padding=1, algorithm="im2col", threads=1)
    explanation = cpuconv.explain(X.shape, W.shape, padding=1, algorithm=of_solver.algorithm, threads=1)
    assert explanation.decided_by == "named" and explanation.algorithm.startswith("im2col")
    assert explanation.lines[0].chosen and explanation.lines[0].candidate == explanation.algorithm


def test_a_problem_in_a_few_words() -> None:
    def told(text: str) -> str:
        return workload.summary(cpuconv.ConvProblem.parse(text).key)

    assert told("mb1ic3ih224oc64oh112kh7sh2ph3") == "3→64 7x7/2 @224x224"
    assert told("mb8ic64ih56iw28oc32oh56ow28kh1kw3ph0pw1") == "64→32 1x3 @56x28 batch 8"
    assert told("g32mb1ic32ih112oc32oh112kh3ph1") == "32→32 3x3 @112x112 depthwise"
    assert told("g4mb1ic32ih14oc64oh14kh3ph2dh1") == "32→64 3x3 @14x14 4 groups dilation 2"
    assert told("mb1ic4ih8oc4oh4ow8kh3sh2sw1ph1") == "4→4 3x3/2x1 @8x8"
    assert workload.summary("no problem") == ""
