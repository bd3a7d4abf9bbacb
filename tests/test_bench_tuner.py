"""The tuner's figures: shapes drawn, figures judged, the small parts run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import fake_workload
import pytest
from rich.progress import Progress as Bar

from bench import tuner
from bench.shapes import drawn, family
from bench.tuner import Figure, Session, Times
from cpuconv import select


def test_drawn_shapes_are_the_same_for_a_seed_and_differ_otherwise() -> None:
    first = drawn.draw(40, 1)
    assert first == drawn.draw(40, 1)
    assert len({problem.key for problem in first}) == 40
    assert not {problem.key for problem in first} & {problem.key for problem in drawn.draw(40, 2)}
    assert all(drawn.FLOPS[0] <= problem.flops <= drawn.FLOPS[1] for problem in first)
    assert drawn.draw(1, 1, threads=2)[0].threads == 2


def test_drawn_shapes_are_of_every_family() -> None:
    many = drawn.draw(300, 0)
    assert len({family(problem) for problem in many}) >= 8
    assert all(any(reason is None for _, reason in select.applicable(problem)) for problem in many)


def test_figures_against_targets() -> None:
    assert Figure("part", "name", 1.0, target=1.0).met is True
    assert Figure("part", "name", 1.1, target=1.0).met is False
    assert Figure("part", "name", 94.0, target=95.0, most=False).met is False
    assert Figure("part", "name", 1.0).met is None


def test_times_are_compared_round_by_round() -> None:
    times = Times(["a", "b"], {"a": [1.0, 2.0, 4.0], "b": [1.0, 1.0, 2.0]})
    assert times.ratios(0, 1) == [1.0, 2.0, 2.0]
    assert (times.ratio(0, 1), times.ratio(1, 0)) == (2.0, 0.5)
    assert times.spread() == 1.0
    assert Times(["a", "a"], {"a": [1.0]}).ratio(0, 1) == 1.0


def test_small_parts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuner.VARIABLE, os.environ[tuner.VARIABLE])  # the look-ups' own store is put aside again
    arguments = ["--shapes", "1", "--only", "lookup", "--only", "large", "--calls", "50", "--rows", "400"]
    assert tuner.main([*arguments, "--json"]) in (0, 1)
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert [figure["part"] for figure in figures] == ["look-up", "look-up", "large store"]
    assert all(figure["value"] > 0 and figure["target"] for figure in figures)
    tuner.main(arguments)
    assert "400 rows: open, first look-up" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        tuner.main(["--efforts", "much"])


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Warmups of the fake workload, on its clock."""
    monkeypatch.setattr(tuner, "workload", fake_workload.workload)
    monkeypatch.setattr(tuner, "SPEC", None)
    fake_workload.install(monkeypatch.setattr)
    sources = ("good:1", "close:1", "hidden:1", "tie:1")
    problems = [each for source in sources for each in fake_workload.workload.load(source, layouts=None, threads=1)]
    return Session(tuner.parser().parse_args([]), problems, tmp_path, Bar(disable=True))


def test_warmups_are_judged(session: Session) -> None:
    found = {figure.name.partition(",")[0]: figure for figure in tuner.regret(session)}
    # Of forty ways the quick effort tries those eight that the model likes best, and these are slow.
    assert found["quick: worst"].name.endswith("hidden:1") and found["quick: worst"].value > 2.0
    assert found["normal: worst"].value < found["quick: worst"].value
    assert 1.0 <= found["quick: geomean over 4 shapes"].value < found["quick: worst"].value
    better = {figure.name: figure for figure in tuner.heuristic(session)}
    assert better["quick: tuned time over the model's, geomean"].value < 0.9
    assert better["normal: shapes slower beyond noise"].value == 0
    assert all(figure.met for figure in tuner.repeatability(session))
    assert [figure.target for figure in tuner.cost(session)] == [1.5, 6.0]


def test_nothing_to_judge_is_said(session: Session) -> None:
    session.problems = session.problems[:0]
    with pytest.raises(SystemExit, match="shape-limit"):
        list(tuner.regret(session))
